"""Refill groups: extra members of a step's set, for those whose rewards are equal."""

from typing import Any

import pytest
from marlaas.tests.noop_activities import NoopActivities, job, noop_workers, start
from temporalio.client import Client

GROUPS = 4


def dapo(name: str, **objective: Any) -> dict[str, Any]:
    sampling = {"groups_per_step": GROUPS, "samples_per_group": 4, "slots": 16}
    return job(name, steps=2, sampling=sampling, objective={"name": "dapo", **objective})


async def sampled(client: Client, spec: dict[str, Any], activities: NoopActivities) -> list[list[int]]:
    """Numbers of the groups that each step sampled, trained on and dropped from the stream."""
    async with noop_workers(client, activities):
        await (await start(client, spec, f"acme/{spec['job']}")).result()
    numbers = [
        sorted(int(group[-5:]) for group, _ in activities.rollouts if group.startswith(f"train-{step:08d}"))
        for step in range(2)
    ]
    dropped = [[int(group[-5:]) for group in one.groups] for one in activities.snapshots[1:]]
    assert dropped == numbers
    return numbers


@pytest.mark.parametrize(
    ("name", "equal", "limit", "count"),
    [
        ("varied", (), 1.0, 4),
        ("two-rounds", (1, 2, 4), 1.0, 7),
        ("bounded", range(100), 1.0, 8),
        ("half", range(100), 0.5, 6),
        ("fraction", range(100), 0.3, 6),
        ("off", range(100), 0.0, 4),
    ],
)
async def test_a_group_is_added_for_each_with_equal_rewards_up_to_the_limit(
    temporal: Client, name: str, equal: Any, limit: float, count: int
) -> None:
    activities = NoopActivities()
    activities.equal = lambda number: number in equal
    spec = dapo(f"refill-{name}", refill_limit=limit)
    assert await sampled(temporal, spec, activities) == [list(range(count))] * 2


async def test_refills_change_no_prompt_of_the_other_groups(temporal: Client) -> None:
    prompts: list[dict[str, int]] = []
    for name, equal in (("few", (0,)), ("many", (0, 1, 4, 5))):
        activities = NoopActivities()
        activities.equal = lambda number, equal=equal: number in equal
        await sampled(temporal, dapo(f"order-{name}"), activities)
        prompts.append(
            {one.group: one.prompt_index for data in activities.rollout_inputs for one in data.groups}
        )
    few, many = prompts
    assert few.items() <= many.items()
    assert len(many) == len(few) + 6

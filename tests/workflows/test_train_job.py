"""The control plane against a real Temporal server, with activities that do nothing."""

import asyncio
from typing import Any

import pytest
from marlaas.schemas.events import JobProgress, JobResult
from marlaas.tests.noop_activities import NoopActivities, job, noop_workers, start
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError


def root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@pytest.mark.parametrize("staleness", [0, 1, 3])
async def test_every_set_is_generated_by_version_t_minus_k_and_trained_once_in_order(
    temporal: Client, staleness: int
) -> None:
    """CASES 1: Every group is trained once."""
    activities = NoopActivities()
    async with noop_workers(temporal, activities):
        spec = job(f"order-{staleness}", max_staleness=staleness)
        handle = await start(temporal, spec, f"acme/order-{staleness}")
        result = JobResult.model_validate(await handle.result(), strict=False)
    assert result.outcome == "completed"
    assert result.revision.version == 6
    assert sorted(activities.rollouts) == [
        (f"train-{step:08d}-{index:05d}", max(0, step - staleness)) for step in range(6) for index in range(2)
    ]
    assert [version for _, version in activities.trained] == list(range(6))


async def test_evaluations_are_pinned_and_run_first_last_and_between(temporal: Client) -> None:
    """CASES 122: training goes on beside them; each samples one version, by which it is named."""
    activities = NoopActivities()
    spec = job("evaluated", evaluation={"prompts": 3, "samples": 2, "every": 2})
    async with noop_workers(temporal, activities):
        handle = await start(temporal, spec, "acme/evaluated")
        result = JobResult.model_validate(await handle.result(), strict=False)
    assert sorted(activities.evaluated) == [0, 2, 4, 6]
    assert [one.version for one in result.evaluations] == [0, 6]
    held_out = {(group, version) for group, version in activities.rollouts if not group.startswith("train")}
    assert held_out == {
        (f"{kind}-{version:08d}-{index:05d}", version)
        for kind in ("sampled", "greedy")
        for version in (0, 2, 4, 6)
        for index in range(3)
    }


async def test_stop_trains_on_what_was_dispatched_and_ends(temporal: Client) -> None:
    activities = NoopActivities()
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("stopped", steps=100_000, max_staleness=2), "acme/stopped")
        while len(activities.trained) < 3:
            await asyncio.sleep(0.02)
        await handle.signal("stop")
        result = JobResult.model_validate(await handle.result(), strict=False)
    assert result.outcome == "stopped"
    dispatched = {group.rsplit("-", 1)[0] for group, _ in activities.rollouts}
    assert len(dispatched) == len(activities.trained) == result.revision.version


async def test_pause_opens_no_step_until_resume(temporal: Client) -> None:
    activities = NoopActivities()
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("paused", steps=40), "acme/paused")
        await handle.signal("pause")
        while (await _progress(handle)).state != "paused" or (await _progress(handle)).open_steps:
            await asyncio.sleep(0.02)
        before = len(activities.trained)
        await asyncio.sleep(0.5)
        assert len(activities.trained) == before
        await handle.signal("resume")
        result = JobResult.model_validate(await handle.result(), strict=False)
    assert result.outcome == "completed"
    assert len(activities.trained) == 40


async def test_cancelling_a_job_cancels_its_open_steps(temporal: Client) -> None:
    activities = NoopActivities()
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("cancelled", steps=100_000, max_staleness=2), "acme/cancelled")
        while len(activities.trained) < 2:
            await asyncio.sleep(0.02)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as raised:
            await handle.result()
        assert isinstance(raised.value.cause, CancelledError)
        left = [
            one.id
            async for one in temporal.list_workflows("ExecutionStatus = 'Running'")
            if one.id.startswith("acme/cancelled/")
        ]
    assert left == []


@pytest.mark.parametrize(
    ("spec", "fragment"),
    [
        (None, "a job spec is a mapping of fields, not null"),
        ([1], "a job spec is a mapping of fields, not [1]"),
        (job("bad", steps=0), "steps is 0:"),
        (job("bad", steps="6"), 'steps is "6":'),
        (job("bad", lora={"rank": 8, "dropout": 0.1}), "lora.dropout"),
        (job("other"), "the workflow id is 'acme/bad', but the spec names 'acme/other'"),
    ],
)
async def test_a_bad_spec_fails_at_once_and_says_where(temporal: Client, spec: Any, fragment: str) -> None:
    async with noop_workers(temporal, NoopActivities()):
        handle = await start(temporal, spec, "acme/bad")
        with pytest.raises(WorkflowFailureError) as raised:
            await handle.result()
    assert fragment in str(root_cause(raised.value))
    assert (await handle.describe()).status == WorkflowExecutionStatus.FAILED


async def _progress(handle: Any) -> JobProgress:
    return JobProgress.model_validate(await handle.query("progress"), strict=False)

"""Values that are set while a job runs: where they act from, and what may not be set."""

import asyncio
from typing import Any

import pytest
from marlaas.schemas.events import JobProgress, JobResult
from marlaas.tests.noop_activities import NoopActivities, job, noop_workers, set_values, start
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError

BASE = {"steps": 12, "max_staleness": 2, "optimizer": {"learning_rate": 1e-3}}


async def paused(client: Client, activities: NoopActivities, name: str) -> WorkflowHandle[Any, Any]:
    """A job that trained a few steps and now waits."""
    handle = await start(client, job(name, **BASE), f"acme/{name}")
    while len(activities.trained) < 3:
        await asyncio.sleep(0.02)
    await handle.signal("pause")
    while (await progress(handle)).open_steps:
        await asyncio.sleep(0.02)
    return handle


async def progress(handle: WorkflowHandle[Any, Any]) -> JobProgress:
    return JobProgress.model_validate(await handle.query("progress"), strict=False)


@pytest.mark.parametrize("way", ["update", "signal"])
async def test_a_value_acts_from_the_next_step_and_is_recorded(temporal: Client, way: str) -> None:
    activities = NoopActivities()
    changes = {"optimizer.learning_rate": 1e-5, "sampling.temperature": 0.5, "steps": 14}
    async with noop_workers(temporal, activities):
        handle = await paused(temporal, activities, f"set-by-{way}")
        step = len(activities.trained)
        if way == "update":
            answer = await set_values(handle, changes)
            assert [(one["path"], one["from_step"]) for one in answer] == [(path, step) for path in changes]
        else:
            await handle.signal("set", changes)
        shown = await progress(handle)
        assert {one.path: (one.value, one.from_step) for one in shown.settings} == {
            path: (value, step) for path, value in changes.items()
        }
        assert shown.steps == 14
        await handle.signal("resume")
        result = JobResult.model_validate(await handle.result(), strict=False)
    assert (result.outcome, result.revision.version) == ("completed", 14)
    rates = [one.spec.optimizer.learning_rate for one in activities.inputs]
    assert rates == [1e-3] * step + [1e-5] * (14 - step)
    temperatures = {one.groups[0].group[6:14]: one.temperature for one in activities.rollout_inputs}
    assert [temperatures[f"{n:08d}"] for n in range(14)] == [1.0] * step + [0.5] * (14 - step)
    recorded = [len(one.settings) for one in activities.snapshots[1:]]
    assert recorded == [0] * step + [3] * (14 - step)
    assert {one.spec.optimizer.learning_rate for one in activities.snapshots} == {1e-3}


async def test_sampling_values_wait_for_a_set_that_is_not_dispatched(temporal: Client) -> None:
    """With K = 2 and step t in training, sets up to t + 2 are dispatched already."""
    activities = NoopActivities()
    activities.failed_samples, activities.failing_rounds = 10, 1
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("ahead", **BASE), "acme/ahead")
        while (await progress(handle)).state != "paused" or len((await progress(handle)).open_steps) < 3:
            await asyncio.sleep(0.02)
        answer = await set_values(handle, {"optimizer.learning_rate": 0.5, "sampling.temperature": 2.0})
        assert [one["from_step"] for one in answer] == [0, 3]
        await handle.cancel()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "refused-model",
            {"model": 3},
            "model can't be set while a job runs; what can: optimizer.learning_rate,",
        ),
        ("refused-negative", {"optimizer.learning_rate": -1}, "optimizer.learning_rate is -1"),
        (
            "refused-text",
            {"optimizer.learning_rate": "fast"},
            'optimizer.learning_rate is "fast": a number is needed',
        ),
        (
            "refused-flag",
            {"optimizer.learning_rate": True},
            "optimizer.learning_rate is true: a number is needed",
        ),
        ("refused-no-kl", {"objective.kl.coefficient": 0.1}, "the job has no objective.kl"),
        ("refused-too-many", {"optimizer.mini_batches": 3}, "optimizer.mini_batches is 3"),
        ("refused-dispatched", {"steps": 1}, "are dispatched already"),
        ("refused-empty", {}, "a mapping from paths to values is needed"),
    ],
)
async def test_what_cannot_be_set_is_refused_and_changes_nothing(
    temporal: Client, name: str, changes: dict[str, Any], message: str
) -> None:
    activities = NoopActivities()
    async with noop_workers(temporal, activities):
        handle = await paused(temporal, activities, name)
        with pytest.raises(WorkflowUpdateFailedError) as raised:
            await set_values(handle, changes)
        assert message in str(raised.value.cause)
        await handle.signal("set", changes)
        shown = await progress(handle)
        assert message in (shown.refused or "")
        assert shown.settings == ()
        await handle.signal("resume")
        await handle.result()
    assert {one.spec.optimizer.learning_rate for one in activities.inputs} == {1e-3}

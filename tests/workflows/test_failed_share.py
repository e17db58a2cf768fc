"""CASES 79 and 83: when too many samples failed, the job waits, says why, and goes on when that is mended."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from marlaas.schemas.events import JobProgress, JobResult
from marlaas.tests.noop_activities import NoopActivities, job, noop_workers, set_values, start
from marlaas.workflows import train_step
from temporalio.client import Client


async def until_paused(handle: Any) -> JobProgress:
    while True:
        progress = JobProgress.model_validate(await handle.query("progress"), strict=False)
        if progress.state == "paused":
            return progress
        await asyncio.sleep(0.02)


def failing(rounds: int) -> NoopActivities:
    activities = NoopActivities()
    activities.failed_samples, activities.failing_rounds = 6, rounds
    return activities


async def test_the_job_pauses_with_the_reason_and_scores_again_at_resume(temporal: Client) -> None:
    activities = failing(2)
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("mended", steps=2), "acme/mended")
        for step in range(2):
            for _ in range(2):
                progress = await until_paused(handle)
                reason = progress.reason or ""
                assert f"step {step}: 6 of 10 samples failed" in reason
                assert "more than rewards.max_failed_share 0.5 allows" in reason
                assert "ValueError: no" in reason
                assert len(activities.trained) == step
                rounds = len(activities.scored_rounds)
                await handle.signal("resume")
                while len(activities.scored_rounds) == rounds:
                    await asyncio.sleep(0.02)
        result = JobResult.model_validate(await handle.result(), strict=False)
    assert result.outcome == "completed"
    assert activities.scored_rounds == [0, 1, 2, 0, 1, 2]
    assert [one.rounds for one in activities.snapshots] == [1, 3, 3]


async def test_it_scores_again_by_itself(temporal: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_step, "_FIRST_WAIT", timedelta(milliseconds=50))
    activities = failing(3)
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("outage", steps=1), "acme/outage")
        await handle.result()
    assert activities.scored_rounds == [0, 1, 2, 3]


async def test_a_larger_share_can_be_allowed_while_it_is_paused(temporal: Client) -> None:
    activities = failing(1000)
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("allowed", steps=3, max_staleness=1), "acme/allowed")
        await until_paused(handle)
        (setting,) = await set_values(handle, {"rewards.max_failed_share": 0.6})
        assert setting["from_step"] == 0
        await handle.signal("resume")
        result = JobResult.model_validate(await handle.result(), strict=False)
    assert result.outcome == "completed"
    assert [one.spec.rewards.max_failed_share for one in activities.inputs] == [0.6] * 3


async def test_stop_gives_up_the_paused_step_and_those_after_it(temporal: Client) -> None:
    activities = failing(1000)
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("given-up", max_staleness=2), "acme/given-up")
        await until_paused(handle)
        await handle.signal("stop")
        result = JobResult.model_validate(await handle.result(), strict=False)
    assert (result.outcome, result.revision.version) == ("stopped", 0)
    assert "6 of 10 samples failed" in (result.untrained or "")
    assert "steps [0" in (result.untrained or "")
    assert activities.trained == []

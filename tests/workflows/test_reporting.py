"""What a job reports, and that no tracker and no failing report keeps it from going on."""

import asyncio
from typing import Any

import pytest
from marlaas.schemas.events import JobProgress, JobResult, ReportInput, ReportResult
from marlaas.schemas.tracker_calls import TrackerState
from marlaas.tests.noop_activities import NoopActivities, job, noop_workers, start
from marlaas.workflows.reporting import FINAL_TRIES
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

TRACKERS = [{"kind": "tensorboard"}]


async def progress(handle: Any) -> JobProgress:
    return JobProgress.model_validate(await handle.query("progress"), strict=False)


async def test_the_last_report_has_every_version_and_says_so(temporal: Client) -> None:
    activities = NoopActivities()
    spec = job("reported", trackers=TRACKERS, evaluation={"prompts": 2, "every": 2})
    async with noop_workers(temporal, activities):
        handle = await start(temporal, spec, "acme/reported")
        await handle.result()
    *_, last = reports = activities.reports
    assert (last.newest, last.evaluated, last.final) == (6, 6, True)
    assert [one.since for one in reports] == [
        0,
        *(1 + min(one.newest, one.evaluated) for one in reports[:-1]),
    ]
    assert [one.final for one in reports[:-1]] == [False] * (len(reports) - 1)


async def test_reports_come_beside_the_steps_when_there_are_trackers(temporal: Client) -> None:
    activities = NoopActivities()
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("beside", steps=100_000, trackers=TRACKERS), "acme/beside")
        while not activities.reports:
            await asyncio.sleep(0.02)
        await handle.signal("stop")
        await handle.result()
    assert not activities.reports[0].final


async def test_an_open_evaluation_is_not_taken_for_ended(temporal: Client) -> None:
    class Slow(NoopActivities):
        held = asyncio.Event()

        @activity.defn
        async def summarise_evaluation(self, data: Any) -> Any:
            if data["revision"]["version"] == 2:
                await self.held.wait()
            return {
                "version": data["revision"]["version"],
                "accuracy": 0.5,
                "greedy_accuracy": 0.5,
                "failed_samples": 0,
            }

    activities = Slow()
    spec = job("slow", steps=30, evaluation={"prompts": 1, "every": 2})
    async with noop_workers(temporal, activities):
        handle = await start(temporal, spec, "acme/slow")
        while not activities.reports:  # the first comes with 25 versions
            await asyncio.sleep(0.02)
        Slow.held.set()
        await handle.result()
    assert activities.reports[0].newest >= 24
    assert activities.reports[0].evaluated == 1
    assert (activities.reports[1].since, activities.reports[1].evaluated) == (2, 30)


async def test_a_report_that_fails_is_said_and_the_job_goes_on(temporal: Client) -> None:
    class Failing(NoopActivities):
        @activity.defn
        async def report(self, data: ReportInput) -> ReportResult:
            self.reports.append(data)
            raise ApplicationError("the store is away", non_retryable=True)

    activities = Failing()
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("unreported", trackers=TRACKERS), "acme/unreported")
        result = JobResult.model_validate(await handle.result(), strict=False)
        assert (result.outcome, result.revision.version) == ("completed", 6)
        (state,) = (await progress(handle)).trackers
    assert (state.kind, state.problem) == ("jsonl", "the store is away")
    assert {one.since for one in activities.reports} == {0}


async def test_a_tracker_that_fails_at_the_end_is_tried_again_and_is_seen(temporal: Client) -> None:
    activities = NoopActivities()
    down = TrackerState(kind="tensorboard", version=3, problem="the server is down")
    activities.trackers = (down,)
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("down", trackers=TRACKERS), "acme/down")
        await handle.result()
        assert (await progress(handle)).trackers == (down,)
    assert [one.final for one in activities.reports].count(True) == FINAL_TRIES


async def test_a_cancelled_job_reports_once_more_and_does_not_wait_for_a_tracker(temporal: Client) -> None:
    activities = NoopActivities()
    activities.trackers = (TrackerState(kind="tensorboard", version=3, problem="the server is down"),)
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("ended", steps=100_000, trackers=TRACKERS), "acme/ended")
        while len(activities.trained) < 3:
            await asyncio.sleep(0.02)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert [one.final for one in activities.reports].count(True) == 1
    assert activities.reports[-1].newest >= 2


async def test_a_job_that_fails_reports_what_it_had(temporal: Client) -> None:
    activities = NoopActivities()

    def fail_later() -> None:
        if len(activities.trained) == 5:
            raise ApplicationError("the fifth step cannot be trained", non_retryable=True)

    activities.on_trained = fail_later
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("broken"), "acme/broken")
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert activities.reports[-1].final
    assert activities.reports[-1].newest == 4

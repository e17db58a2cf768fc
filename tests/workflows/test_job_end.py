"""The end of a job: its stream goes, whatever the end, and nothing about that changes the end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from marlaas.activities.liveness import LOST_BYTES_ATTEMPTS
from marlaas.schemas.events import (
    Candidate,
    ClosedJob,
    CloseInput,
    JobResult,
    RewardInput,
    RewardResult,
    TrainInput,
)
from marlaas.schemas.names import COMMITTED_MEMO
from marlaas.storage.jetstream import StreamMissing
from marlaas.tests.noop_activities import NoopActivities, job, noop_workers, start
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError


class EndingActivities(NoopActivities):
    """Does to the job what `on_close` and `fails_at` say.

    Attributes:
        fails_at: version whose training fails for good.
        on_close: awaited by every attempt to close the job.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fails_at: int | None = None
        self.on_close: Callable[[], Awaitable[object]] = _nothing

    @activity.defn
    async def train(self, data: TrainInput) -> Candidate:
        if data.revision.version == self.fails_at:
            raise ApplicationError("no", type="UnusableModel", non_retryable=True)
        return await super().train(data)

    @activity.defn
    async def close_job(self, data: CloseInput) -> ClosedJob:
        result = await super().close_job(data)
        await self.on_close()
        return result


async def _nothing() -> None: ...


async def ended(handle: WorkflowHandle[Any, Any]) -> WorkflowExecutionStatus:
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    status = (await handle.describe()).status
    assert status is not None
    return status


async def trained(activities: NoopActivities, count: int) -> None:
    while len(activities.trained) < count:
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["completed", "stopped", "failed", "cancelled"])
async def test_a_job_is_closed_once_after_its_children(temporal: Client, how: str) -> None:
    """Also cases 104 and 109: what is left behind must not fill the server or be written again."""
    activities = EndingActivities()
    activities.fails_at = 3 if how == "failed" else None
    steps = 6 if how == "completed" else 100_000
    left: list[int] = []

    async def look() -> None:
        description = await temporal.get_workflow_handle(f"acme/end-{how}").describe()
        left.append(len(description.raw_description.pending_children))

    activities.on_close = look
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job(f"end-{how}", steps=steps, max_staleness=2), f"acme/end-{how}")
        if how in ("stopped", "cancelled"):
            await trained(activities, 2)
            await (handle.signal("stop") if how == "stopped" else handle.cancel())
        status = await ended(handle)
        memo = await (await handle.describe()).memo()
    expected = {"failed": WorkflowExecutionStatus.FAILED, "cancelled": WorkflowExecutionStatus.CANCELED}
    assert status == expected.get(how, WorkflowExecutionStatus.COMPLETED)
    assert activities.closed == [f"acme/end-{how}"]
    assert left == [0]
    assert memo == ({COMMITTED_MEMO: len(activities.trained)} if how in expected else {})


async def test_a_job_that_fails_at_its_start_is_closed(temporal: Client) -> None:
    class Refusing(EndingActivities):
        @activity.defn
        async def initialise(self, data: Any) -> Candidate:
            raise ApplicationError("no", type="UnusableModel", non_retryable=True)

    activities = Refusing()
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("no-start"), "acme/no-start")
        assert await ended(handle) == WorkflowExecutionStatus.FAILED
    assert activities.closed == ["acme/no-start"]


async def test_a_close_that_fails_changes_no_end(temporal: Client) -> None:
    activities = EndingActivities()

    async def fail() -> None:
        raise ApplicationError("no server", non_retryable=True)

    activities.on_close = fail
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("unclosed"), "acme/unclosed")
        result = JobResult.model_validate(await handle.result(), strict=False)
        activities.fails_at = 2
        failing = await start(temporal, job("unclosed-failed"), "acme/unclosed-failed")
        assert await ended(failing) == WorkflowExecutionStatus.FAILED
        assert await (await failing.describe()).memo() == {COMMITTED_MEMO: 2}
    assert result.outcome == "completed"
    scheduled = [
        event.activity_task_scheduled_event_attributes
        async for event in handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    assert scheduled[-1].activity_type.name == "close_job"
    assert scheduled[-1].schedule_to_close_timeout.seconds == 120


async def test_a_cancellation_that_meets_the_close_lets_the_job_be_closed(temporal: Client) -> None:
    activities = EndingActivities()
    began = asyncio.Event()

    async def wait_once() -> None:
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()

    activities.on_close = wait_once
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("late-cancel"), "acme/late-cancel")
        await began.wait()
        await handle.cancel()
        assert await ended(handle) == WorkflowExecutionStatus.CANCELED
    assert activities.closed == ["acme/late-cancel"] * 2


async def test_a_stream_that_is_gone_ends_the_job_after_a_few_tries(temporal: Client) -> None:
    """Case 104: nothing waits for what cannot come."""
    tries: list[str] = []

    class Streamless(EndingActivities):
        @activity.defn
        async def reward(self, data: RewardInput) -> RewardResult:
            tries.append(data.groups[0].group)
            raise StreamMissing("read", data.spec.key.stream)

    sampling = {"groups_per_step": 1, "samples_per_group": 2, "slots": 16}
    async with noop_workers(temporal, Streamless()):
        handle = await start(temporal, job("gone", sampling=sampling), "acme/gone")
        assert await ended(handle) == WorkflowExecutionStatus.FAILED
    assert len(tries) == LOST_BYTES_ATTEMPTS

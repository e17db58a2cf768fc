"""What every activity needs to be preempted well: heartbeats, hand-back at shutdown, plain failures."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from .engines import EngineFailure

T = TypeVar("T")

PERMANENT = frozenset(
    {
        "InvalidEnvironment",
        "UnusableModel",
        "UnusableStart",
        "JobExists",
        "ConflictingCommit",
        "UnusableDataset",
        "UnreadableDocument",
    }
)
"""Failures that no other worker and no later hour can mend."""

_LONGEST_MESSAGE = 4000
"""Characters of a failure that history keeps; Temporal refuses one that is too large."""

LOST_BYTES = frozenset({"CorruptBlob", "MissingBlob", "StreamMissing"})
LOST_BYTES_ATTEMPTS = 5
"""A server that is just starting may deny what it has; after so many attempts the bytes count as lost."""


class LivenessInterceptor(Interceptor):
    """Wraps every activity.

    A lost worker is noticed by missing heartbeats, so each activity sends them, whatever it does; a
    worker that is told to end hands its work back at once; a failure is retried unless its kind says
    that retries can't mend it.
    """

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next)


class _Outbound(ActivityOutboundInterceptor):
    """Remembers the last details, which a heartbeat without details would erase."""

    details: tuple[Any, ...] = ()

    def heartbeat(self, *details: Any) -> None:
        self.details = details
        super().heartbeat(*details)


class _Inbound(ActivityInboundInterceptor):
    """One activity: the SDK makes a new chain of interceptors for each."""

    _outbound: _Outbound

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._outbound = _Outbound(outbound)
        super().init(self._outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        self._outbound.details = tuple(activity.info().heartbeat_details)  # of the attempt before
        beats = asyncio.create_task(self._beat())
        try:
            return await _until_shutdown(super().execute_activity(input))
        except (ApplicationError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise _as_failure(error) from error
        finally:
            beats.cancel()

    async def _beat(self) -> None:
        timeout = activity.info().heartbeat_timeout
        while timeout is not None:
            activity.heartbeat(*self._outbound.details)
            await asyncio.sleep(timeout.total_seconds() / 4)


async def _until_shutdown(work: Awaitable[T]) -> T:
    """The result of `work`, unless the worker is told to end first.

    Raises:
        ApplicationError: retried at once, elsewhere, when the worker is ending.
    """
    task = asyncio.ensure_future(work)
    ending = asyncio.create_task(activity.wait_for_worker_shutdown())
    try:
        await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApplicationError(
            "the worker is ending",
            type="WorkerShutdown",
            next_retry_delay=timedelta(milliseconds=10),
            category=ApplicationErrorCategory.BENIGN,
        )
    finally:
        ending.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _as_failure(error: Exception) -> ApplicationError:
    kind = error.kind if isinstance(error, EngineFailure) else type(error).__name__
    permanent = kind in PERMANENT or (kind in LOST_BYTES and activity.info().attempt >= LOST_BYTES_ATTEMPTS)
    message = str(error)
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE]}… ({len(message)} characters)"
    return ApplicationError(message, type=kind, non_retryable=permanent)

"""Reports what a job commits, beside its training: late, in batches, or not at all, it holds up nothing."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.common import Priority
from temporalio.exceptions import ActivityError

from ..schemas.events import ReportInput, ReportResult
from ..schemas.job_spec import JobSpec
from ..schemas.names import CPU_QUEUE
from ..schemas.tracker_calls import TrackerState
from .activity_calls import RETRY

_BATCH = 25
"""Versions that a job without trackers lets come together: `marlaas metrics` does not wait for the JSONL."""
_PAUSE = timedelta(seconds=15)
"""Least time between two reports, which start processes on a CPU worker."""
FINAL_TRIES = 3
"""At a job's end no later report catches up what a tracker did not take."""
_LONGEST = timedelta(minutes=10)
_LONGEST_LAST = timedelta(minutes=3)
"""That the end of a run waits for a report."""


class Reporter:
    """One report at a time, in the order of versions.

    Args:
        reported: rows of versions up to this one have been reported.
        committed: gives the newest version, and the version up to which evaluations have ended.
    """

    def __init__(self, spec: JobSpec, reported: int, committed: Callable[[], tuple[int, int]]) -> None:
        self._spec = spec
        self.reported = reported
        self.trackers: tuple[TrackerState, ...] = ()
        self._committed = committed
        self._seen = (reported, reported)
        self._closing = False
        self._loop = asyncio.create_task(self._run())

    async def close(self, *, final: bool, tries: int = 1) -> None:
        """Reports what is left, within a bounded time, and ends. Repeats do nothing.

        Args:
            final: the job has ended; otherwise its next run goes on.
            tries: as long as a tracker fails.
        """
        if self._closing:
            return
        self._closing = True
        await self._loop
        for _ in range(tries):
            await self._report(_LONGEST_LAST, final=final)
            if not any(tracker.problem for tracker in self.trackers):
                return

    async def _run(self) -> None:
        while not self._closing:
            await workflow.wait_condition(lambda: self._closing or self._is_due())
            if self._closing:
                return
            await self._report(_LONGEST, final=False)
            try:
                await workflow.wait_condition(lambda: self._closing, timeout=_PAUSE)
            except TimeoutError:
                continue

    def _is_due(self) -> bool:
        if any(tracker.behind for tracker in self.trackers):
            return True
        if self._spec.trackers:
            return self._committed() != self._seen
        return self._committed()[0] >= self._seen[0] + _BATCH

    async def _report(self, longest: timedelta, *, final: bool) -> None:
        newest, evaluated = self._seen = self._committed()
        try:
            result = await workflow.execute_activity(
                "report",
                ReportInput(
                    spec=self._spec,
                    since=self.reported + 1,
                    newest=newest,
                    evaluated=evaluated,
                    final=final,
                ),
                task_queue=CPU_QUEUE,
                result_type=ReportResult,
                schedule_to_close_timeout=longest,
                heartbeat_timeout=timedelta(seconds=self._spec.durability.heartbeat_seconds),
                retry_policy=RETRY,
                priority=Priority(priority_key=5, fairness_key=self._spec.tenant),
            )
        except ActivityError as error:
            problem = str(error.cause or error)
            self.trackers = (TrackerState(kind="jsonl", version=None, problem=problem),)
            return
        self.trackers = result.trackers
        self.reported = min(newest, evaluated)

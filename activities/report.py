"""Reporting what is committed: JSONL in the bucket, and the job's trackers."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from temporalio import activity

from ..schemas.events import ReportInput, ReportResult
from ..schemas.metric_row import MetricRow
from ..schemas.names import JobKey
from ..schemas.tracker_calls import Position, TrackerState
from ..schemas.trackers import Tracker
from ..storage.metric_log import MetricLog
from ..storage.metric_rows import MetricRows
from ..storage.object_store import ObjectStore
from ..storage.revisions import Revisions

_ROWS_AT_ONCE = 200
_SECONDS = 60.0
"""That each tracker has in one report."""


class TrackerFailure(Exception):
    """A tracker did not take its rows; the message is its library's."""


class OpenTracker(Protocol):
    """A job's place in a tracker."""

    position: Position

    async def append(self, rows: Sequence[MetricRow], *, final: bool) -> None:
        """Adds rows after the position, in order of version. Raises TrackerFailure."""
        ...


class Trackers(Protocol):
    """Runs trackers' libraries, which may hang or crash, where they can harm nobody."""

    def open(self, tracker: Tracker, key: JobKey) -> AbstractAsyncContextManager[OpenTracker]:
        """A job's place in a tracker. Raises TrackerFailure."""
        ...


class ReportActivities:
    """Runs on CPU workers."""

    def __init__(self, store: ObjectStore, revisions: Revisions, trackers: Trackers) -> None:
        self._store = store
        self._revisions = revisions
        self._trackers = trackers

    @activity.defn
    async def report(self, data: ReportInput) -> ReportResult:
        """Brings the job's JSONL and its trackers up to what is committed.

        Killed anywhere, repeated, or run an hour later elsewhere: every sink is asked what it has, and
        is given what follows. Two at once: the JSONL is replaced on a condition; on one machine a
        tracker has one writer at a time; on two, MLflow and W&B know a row by its key, and files are
        each machine's own. A tracker that fails is named in the result and fails nothing.

        Raises as `MetricLog` does.
        """
        log = MetricLog(self._store, self._revisions, data.spec)
        await log.update(data.since, data.newest)
        rows = MetricRows(self._revisions, data.spec)
        states = await asyncio.gather(*(self._bring_up(one, data, rows) for one in data.spec.trackers))
        return ReportResult(trackers=tuple(states))

    async def _bring_up(self, tracker: Tracker, data: ReportInput, rows: MetricRows) -> TrackerState:
        began, reached = None, None
        problem = None
        try:
            async with asyncio.timeout(_SECONDS), self._trackers.open(tracker, data.spec.key) as place:
                position = place.position
                if position.newest_only:
                    await place.append(await _newest(data, rows), final=data.final)
                    return TrackerState(kind=tracker.kind, version=data.newest)
                began = reached = position.step
                steps = range(reached + 1, data.newest + 1)
                if data.final or len(steps) >= position.batch:
                    for start in range(0, len(steps), _ROWS_AT_ONCE):
                        part = steps[start : start + _ROWS_AT_ONCE]
                        await place.append(await rows.steps(part), final=False)
                        reached = part[-1]
                await place.append(await _evaluations(data, rows, position), final=data.final)
        except TimeoutError:
            problem = f"it did not take its rows within {_SECONDS:.0f} seconds"
        except TrackerFailure as error:
            problem = str(error)
        behind = problem is not None and reached is not None and reached != began
        return TrackerState(kind=tracker.kind, version=reached, behind=behind, problem=problem)


async def _evaluations(data: ReportInput, rows: MetricRows, position: Position) -> list[MetricRow]:
    due = rows.evaluated(position.evaluation + 1, min(data.evaluated, data.newest), data.newest)
    found = await rows.evaluations(due)
    return found if data.final or len(found) >= position.batch else []


async def _newest(data: ReportInput, rows: MetricRows) -> list[MetricRow]:
    """The newest row of a step and of an evaluation, as far as there are any."""
    due = rows.evaluated(0, min(data.evaluated, data.newest), data.newest)
    return [*await rows.steps([data.newest]), *(await rows.evaluations(due[-2:]))[-1:]]

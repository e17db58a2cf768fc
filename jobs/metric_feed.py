"""The rows of metrics of a job, from its beginning and as they are committed."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from ..schemas.metric_row import MetricRow
from ..schemas.names import JobKey
from ..storage.metric_rows import MetricRows
from ..storage.revisions import Revisions
from .errors import JobNotFound, ServiceUnreachable
from .snapshot import JobSnapshot

_SECONDS = 1.0


async def metric_feed(
    revisions: Revisions, key: JobKey, progress: Callable[[], Awaitable[JobSnapshot]] | None
) -> AsyncGenerator[MetricRow]:
    """Every row once, ordered by version as far as they are there. Needs no worker.

    Args:
        progress: asked whether the job has ended, until when there are rows to come; None ends with the
            rows that are there.

    Raises:
        JobNotFound: when nothing was ever stored under the job's name.
        StoreUnavailable, StoreRefused, UnreadableDocument: from the store.
    """
    document = await revisions.job(key)
    if document is None:
        raise JobNotFound(f"the object store has no job {key}")
    rows = MetricRows(revisions, document.spec)
    version, given = 0, set[int]()
    while True:
        over = await _is_over(progress)  # asked first: what was committed before the end is then seen
        newest = await _newest(revisions, key, version)
        steps = await rows.steps(range(version + 1, newest + 1))
        due = [one for one in rows.evaluated(0, newest, newest) if one not in given]
        evaluations = await rows.evaluations(due)
        for row in sorted((*steps, *evaluations), key=lambda row: (row.version, row.kind == "evaluation")):
            yield row
        version = newest
        given |= {row.version for row in evaluations}
        if over:
            return
        await asyncio.sleep(_SECONDS)


async def _is_over(progress: Callable[[], Awaitable[JobSnapshot]] | None) -> bool:
    if progress is None:
        return True
    try:
        return (await progress()).is_over
    except JobNotFound:
        return True  # Temporal has forgotten it
    except ServiceUnreachable:
        return False


async def _newest(revisions: Revisions, key: JobKey, known: int) -> int:
    if known == 0:
        return await revisions.latest_version(key) or 0
    while await revisions.revision(key, known + 1) is not None:
        known += 1
    return known

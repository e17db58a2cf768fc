"""Follows a job to its end, through outages of the servers."""

import asyncio
from collections.abc import AsyncGenerator

from temporalio.service import RPCError

from ..storage.documents import UnreadableDocument
from ..storage.object_store import StoreRefused, StoreUnavailable
from .observer import JobObserver
from .recent_rewards import RecentRewards
from .snapshot import JobSnapshot, Problem


async def watch(observer: JobObserver, rewards: RecentRewards, seconds: float) -> AsyncGenerator[JobSnapshot]:
    """Snapshots at intervals; the last one is of the job's end.

    Once there was a first one, an outage is a snapshot too: the last that was seen, with the outage
    among its problems. What a workflow does not answer is as it was seen last.

    Args:
        seconds: from one look to the next.

    Raises:
        JobNotFound: when there is no such job.
        RPCError: when Temporal does not answer at the beginning.
    """
    last: JobSnapshot | None = None
    while True:
        try:
            snapshot = await observer.snapshot()
        except RPCError as error:
            if last is None:
                raise
            outage = Problem(kind="no answer", where="Temporal", message=error.message)
            yield last.model_copy(update={"problems": (outage,), "pending": ()})
        else:
            last = await _completed(snapshot, last, rewards)
            yield last
            if last.is_over:
                return
        await asyncio.sleep(seconds)


async def _completed(snapshot: JobSnapshot, last: JobSnapshot | None, rewards: RecentRewards) -> JobSnapshot:
    update = _no_fewer(snapshot, last)
    version = snapshot.version
    if last is not None and version is None:
        version = last.version
        if not snapshot.is_over:
            update["progress"] = last.progress
    try:
        update["rewards"] = await rewards.up_to(version)
    except (StoreUnavailable, StoreRefused, UnreadableDocument) as error:
        outage = Problem(kind="no answer", where="object store", message=str(error))
        update |= {"problems": (*snapshot.problems, outage), "rewards": last.rewards if last else ()}
    return snapshot.model_copy(update=update)


def _no_fewer(snapshot: JobSnapshot, last: JobSnapshot | None) -> dict[str, object]:
    """Open work with as many groups sampled as were seen before.

    What a rollout reports is forgotten for the moments from its end to its workflow's word of it, and
    from its worker's death to the first word of the next. What was sampled stays sampled.
    """
    if last is None:
        return {}
    steps = {one.step: one.groups_sampled for one in last.open_steps}
    evaluations = {one.version: one.groups_sampled for one in last.open_evaluations}
    return {
        "open_steps": tuple(
            one.model_copy(update={"groups_sampled": max(one.groups_sampled, steps.get(one.step, 0))})
            for one in snapshot.open_steps
        ),
        "open_evaluations": tuple(
            one.model_copy(
                update={"groups_sampled": max(one.groups_sampled, evaluations.get(one.version, 0))}
            )
            for one in snapshot.open_evaluations
        ),
    }

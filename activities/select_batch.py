"""From scored groups to the batch of a step."""

import asyncio

from temporalio import activity

from ..schemas.batch import Batch
from ..schemas.events import SelectedBatch, SelectInput
from ..schemas.names import JobKey
from ..schemas.trajectory import ScoredGroup, Trajectory, part_means
from ..storage.object_store import ObjectStore
from ..storage.trajectory_log import TrajectoryLog
from .reward import MissingTrajectories


class SelectActivities:
    """Runs on CPU workers."""

    def __init__(self, store: ObjectStore, log: TrajectoryLog) -> None:
        self._store = store
        self._log = log

    @activity.defn
    async def select_batch(self, data: SelectInput) -> SelectedBatch:
        """Stores the batch of a step: with `ordered` selection, the step's own set.

        Reads what every attempt finds alike, since each subject holds one message, and writes a
        content-addressed blob: it may be killed, repeated or run twice at once.

        Raises:
            MissingTrajectories: when a group of the set is not on the stream whole.
        """
        key = data.key
        groups = await asyncio.gather(
            *(_scored_group(self._log, key, group, data.round) for group in data.groups)
        )
        blob = await self._store.put_blob(key.bucket, Batch.assemble(list(groups)).to_bytes())
        samples = [sample for scored, _ in groups for sample in scored.samples]
        failures = [sample.failure for sample in samples if sample.failure is not None]
        return SelectedBatch(
            blob=blob,
            groups=len(groups),
            samples=len(samples),
            failed_samples=len(failures),
            failure=failures[0] if failures else None,
            reward_parts=part_means(scored for scored, _ in groups),
        )


async def _scored_group(
    log: TrajectoryLog, key: JobKey, group: str, round: int
) -> tuple[ScoredGroup, list[Trajectory]]:
    scored = await log.last_scored(key, group, round)
    if scored is None:
        raise MissingTrajectories(f"job {key}, group {group}: no scored message is on the stream")
    trajectories = await log.trajectories(key, group, len(scored.samples))
    if len(trajectories) < len(scored.samples):
        raise MissingTrajectories(f"job {key}, group {group}: scored samples are not on the stream any more")
    return scored, [trajectories[sample.sample][1] for sample in scored.samples]

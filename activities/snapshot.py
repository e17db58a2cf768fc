"""Committing a policy version."""

from temporalio import activity

from ..schemas.events import SnapshotInput
from ..schemas.manifest import AdapterRevision, Manifest
from ..storage.revisions import Revisions
from ..storage.trajectory_log import TrajectoryLog


class SnapshotActivities:
    """Runs on CPU workers."""

    def __init__(self, revisions: Revisions, log: TrajectoryLog) -> None:
        self._revisions = revisions
        self._log = log

    @activity.defn
    async def snapshot(self, data: SnapshotInput) -> AdapterRevision:
        """Commits a candidate by a conditional put, then drops the groups that it consumed.

        Killed before the put, the step did not happen; killed after it, the retry loses the put,
        reads what is committed and returns that. Two at once: one wins, both return the winner's.
        The purge comes second and repeats harmlessly; the batch blob holds what it drops.

        Raises:
            ConflictingCommit: when the version was committed from another parent.
        """
        spec, candidate = data.spec, data.candidate
        revision, _ = await self._revisions.commit(
            Manifest(
                key=spec.key,
                version=candidate.version,
                parent=candidate.parent,
                spec_digest=spec.digest,
                adapter=candidate.adapter,
                optimizer=candidate.optimizer,
                batch=candidate.batch,
                metrics=candidate.metrics,
                fingerprint=candidate.fingerprint,
            )
        )
        await self._log.purge_groups(spec.key, data.groups)
        return revision

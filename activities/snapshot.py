"""Committing a policy version."""

import time

from temporalio import activity

from ..schemas.events import SnapshotInput
from ..schemas.manifest import AdapterRevision, JobDocument, Manifest
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

        Version 0 claims the job's name by the same put: of two runs one wins, whoever began earlier, and
        an attempt of a run that has lost commits nothing. Only the winner has a stream made. Killed
        before that, the retry makes it; an attempt that was stopped just there and wakes after the end
        of the job leaves an empty stream.

        Raises:
            ConflictingCommit: when the version was committed from another parent or by another run.
        """
        spec, candidate, run = data.spec, data.candidate, data.first_run_id
        claim = run and JobDocument(
            spec=spec, spec_digest=spec.digest, first_run_id=run, dataset=data.dataset
        )
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
                phases=data.phases,
                time=time.time(),
                fingerprint=candidate.fingerprint,
                settings=data.settings,
                epoch=data.epoch,
                claim=claim or None,
            )
        )
        if candidate.version == 0:
            await self._log.ensure_stream(spec.key)
        await self._log.purge_groups(spec.key.in_epoch(data.epoch), data.groups, data.rounds)
        return revision

"""A job that has ended goes on."""

import asyncio

from temporalio import activity

from ..schemas.events import EvaluationResult, JobState, ReopenInput, Started
from ..schemas.manifest import AdapterRevision, Manifest
from ..schemas.names import JobKey
from ..storage.revisions import Revisions
from ..storage.trajectory_log import TrajectoryLog
from .evaluation import result_of


class NothingToResume(Exception):
    """The job has no version to go on from, or not with this spec."""


class ReopenActivities:
    """Runs on CPU workers."""

    def __init__(self, revisions: Revisions, log: TrajectoryLog) -> None:
        self._revisions = revisions
        self._log = log

    @activity.defn
    async def reopen_job(self, data: ReopenInput) -> JobState:
        """Begins the job's next epoch, and reads where it goes on from what is committed.

        The conditional put of the epoch's document makes this run the only one that goes on; from then on
        attempts of earlier epochs commit nothing. Killed anywhere or run twice: the run recognises its own
        document, the old stream is deleted if it is there, the new one made if it is not. The newest version
        is read after the epoch began, so one that was committed meanwhile is gone on from.

        Raises:
            NothingToResume: when no version is committed, or the job was started with another spec.
        """
        key, spec = data.spec.key, data.spec
        claim, version = await asyncio.gather(self._revisions.job(key), self._revisions.latest_version(key))
        if claim is None or version is None:
            raise NothingToResume(
                f"job {key} has no committed version: there is nothing to resume; submit it"
            )
        if claim.spec_digest != spec.digest:
            raise NothingToResume(
                f"job {key} was started with another spec. It is resumed with the same; `--set` changes "
                "what may change, and a new name starts a new job"
            )
        if claim.dataset is None:
            raise NothingToResume(f"job {key} began before jobs could be resumed; submit it under a new name")
        epoch = await self._revisions.begin_epoch(key, data.first_run_id, version)
        await self._log.delete_stream(key.in_epoch(epoch - 1))
        await self._log.ensure_stream(key.in_epoch(epoch))
        version = await self._revisions.latest_version(key)
        assert version is not None
        base, newest = await self._manifest(key, 0), await self._manifest(key, version)
        return JobState(
            started=Started(
                dataset=claim.dataset, fingerprint=base.fingerprint, adapter=base.adapter, epoch=epoch
            ),
            recent=await self._recent(key, version, spec.max_staleness),
            next_step=version,
            paused=False,
            stopping=False,
            evaluations=await self._evaluations(key),
            last=None,
            settings=newest.settings,
        )

    async def _manifest(self, key: JobKey, version: int) -> Manifest:
        manifest = await self._revisions.manifest(key, version)
        if manifest is None:
            raise NothingToResume(f"job {key} has no manifest of version {version}: something deleted it")
        return manifest

    async def _recent(self, key: JobKey, version: int, staleness: int) -> tuple[AdapterRevision, ...]:
        """The last K+1 versions: what the next steps are generated from."""
        wanted = range(max(0, version - staleness), version + 1)
        found = await asyncio.gather(*(self._revisions.revision(key, one) for one in wanted))
        return tuple(one for one in found if one is not None)

    async def _evaluations(self, key: JobKey) -> tuple[EvaluationResult, ...]:
        """The first and the latest that have ended."""
        versions = await self._revisions.evaluated_versions(key)
        found = [
            await self._revisions.evaluation(key, one) for one in sorted({*versions[:1], *versions[-1:]})
        ]
        return tuple(result_of(one) for one in found if one is not None)

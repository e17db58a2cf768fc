"""The start of a job: its name is claimed and its dataset fixed."""

import asyncio
from collections.abc import Awaitable, Callable

from temporalio import activity

from ..schemas.dataset import Dataset, DatasetRef
from ..schemas.events import ClaimInput
from ..schemas.job_spec import JobSpec
from ..schemas.manifest import JobDocument
from ..storage.object_store import ObjectStore
from ..storage.revisions import Revisions
from ..storage.trajectory_log import TrajectoryLog
from .engines import RewardScorer


class JobExists(Exception):
    """The job's name belongs to another run."""


class StartActivities:
    """Runs on CPU workers."""

    def __init__(
        self,
        store: ObjectStore,
        revisions: Revisions,
        log: TrajectoryLog,
        scorer: RewardScorer,
        build_dataset: Callable[[JobSpec], Awaitable[Dataset]],
    ) -> None:
        self._build_dataset = build_dataset
        self._store = store
        self._revisions = revisions
        self._log = log
        self._scorer = scorer

    @activity.defn
    async def claim_job(self, data: ClaimInput) -> None:
        """Makes the job's name this run's, and its stream ready.

        Killed anywhere or run twice: bucket and stream are made if they are missing, and the
        conditional put of job.json is won by one run, which recognises its own id when it asks again.

        Raises:
            JobExists: when another run owns the name, however long ago.
        """
        spec = data.spec
        wanted = JobDocument(spec=spec, spec_digest=spec.digest, first_run_id=data.first_run_id)
        found = await self._revisions.claim(wanted)
        if found.first_run_id != data.first_run_id:
            latest = await self._revisions.latest_version(spec.key)
            reached = "no version yet" if latest is None else f"version {latest} of {found.spec.steps}"
            same = "the same" if found.spec_digest == spec.digest else "another"
            raise JobExists(
                f"job {spec.key} exists: first run {found.first_run_id}, {same} spec, {reached}; "
                "choose another job name"
            )
        await self._log.ensure_stream(spec.key)

    @activity.defn
    async def prepare_dataset(self, spec: JobSpec) -> DatasetRef:
        """Builds the dataset from the environment and stores it; checks that the reward loads.

        Killed anywhere or run twice: the blob is content-addressed. If the environment gave other
        rows the second time, or the reward's file was another, the first result that Temporal records
        is what the job is held to.

        Raises:
            InvalidEnvironment: naming the field, line or entry.
        """
        dataset, code = await asyncio.gather(
            self._build_dataset(spec), self._scorer.check(spec.key, spec.environment)
        )
        blob = await self._store.put_blob(spec.key.bucket, dataset.model_dump_json().encode())
        return DatasetRef(
            blob=blob, train=len(dataset.train), held_out=len(dataset.held_out), reward_code=code
        )

"""The start of a job: its name is looked up and its dataset fixed."""

import asyncio
from collections.abc import Awaitable, Callable

from temporalio import activity

from ..schemas.dataset import Dataset, DatasetRef
from ..schemas.events import ClaimInput
from ..schemas.job_spec import JobSpec
from ..storage.object_store import ObjectStore
from ..storage.revisions import Revisions
from .engines import RewardScorer


class JobExists(Exception):
    """The job's name belongs to another run."""


class StartActivities:
    """Runs on CPU workers."""

    def __init__(
        self,
        store: ObjectStore,
        revisions: Revisions,
        scorer: RewardScorer,
        build_dataset: Callable[[JobSpec], Awaitable[Dataset]],
    ) -> None:
        self._build_dataset = build_dataset
        self._store = store
        self._revisions = revisions
        self._scorer = scorer

    @activity.defn(name="claim_job")  # what it once did, and what histories call it
    async def check_name(self, data: ClaimInput) -> None:
        """Refuses a name that another run has before anything is computed, and makes the tenant's bucket.

        Claims nothing: `snapshot` does, with version 0. So a job whose model, dataset or reward is found
        to be bad leaves its name free, and two runs that both get past this are told apart there. May
        be killed, repeated, or run twice at once.

        Raises:
            JobExists: when another run has committed version 0, however long ago.
        """
        spec = data.spec
        await self._store.ensure_bucket(spec.key.bucket)
        found = await self._revisions.job(spec.key)
        if found is not None and found.first_run_id != data.first_run_id:
            latest = await self._revisions.latest_version(spec.key)
            same = "the same" if found.spec_digest == spec.digest else "another"
            raise JobExists(
                f"job {spec.key} exists: first run {found.first_run_id}, {same} spec, version {latest} of "
                f"{found.spec.steps}; choose another job name"
            )

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

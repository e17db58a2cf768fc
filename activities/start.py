"""The start of a job: its name is looked up and its dataset fixed."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from itertools import accumulate

from temporalio import activity

from ..environments.invalid import of_mixture
from ..schemas.contract import Digest
from ..schemas.dataset import Dataset, DatasetPart, DatasetRef
from ..schemas.environment import Environment, MixtureEnvironment
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
        """Builds the dataset from the environment and stores it; checks that the rewards load.

        Killed anywhere or run twice: the blob is content-addressed. If the environment gave other
        rows the second time, or the reward's file was another, the first result that Temporal records
        is what the job is held to.

        Raises:
            InvalidEnvironment: naming the field, line or entry.
        """
        dataset, codes = await asyncio.gather(self._build_dataset(spec), self._reward_codes(spec))
        blob = await self._store.put_blob(spec.key.bucket, dataset.model_dump_json().encode())
        return DatasetRef(
            blob=blob,
            train=len(dataset.train),
            held_out=len(dataset.held_out),
            reward_code=codes.get(""),
            parts=_parts(spec, dataset, codes),
        )

    async def _reward_codes(self, spec: JobSpec) -> dict[str, Digest | None]:
        """By the environment's name."""

        async def one(index: int, environment: Environment) -> Digest | None:
            with of_mixture(index) if isinstance(spec.environment, MixtureEnvironment) else nullcontext():
                return await self._scorer.check(spec.key, environment)

        codes = await asyncio.gather(
            *(one(index, environment) for index, environment in enumerate(spec.environments.values()))
        )
        return dict(zip(spec.environments, codes, strict=True))


def _parts(spec: JobSpec, dataset: Dataset, codes: Mapping[str, Digest | None]) -> tuple[DatasetPart, ...]:
    """Of a mixture, where the rows of each environment are."""
    if not isinstance(spec.environment, MixtureEnvironment):
        return ()
    train = Counter(row.environment for row in dataset.train)
    held_out = Counter(row.environment for row in dataset.held_out)
    firsts = accumulate((train[one.name] for one in spec.environment.of), initial=0)
    return tuple(
        DatasetPart(
            name=one.name,
            weight=one.weight,
            first=first,
            count=train[one.name],
            held_out=held_out[one.name],
            reward_code=codes[one.name],
        )
        for one, first in zip(spec.environment.of, firsts, strict=False)
    )

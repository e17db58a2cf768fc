"""Who has a job's name, and what becomes of its stream: killed, repeated, two at once, or late."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from marlaas.activities.close import CloseActivities
from marlaas.activities.datasets import Datasets
from marlaas.activities.liveness import PERMANENT
from marlaas.activities.reward import RewardActivities
from marlaas.activities.rollout import RolloutActivities
from marlaas.activities.snapshot import SnapshotActivities
from marlaas.activities.start import JobExists, StartActivities
from marlaas.activities.train import TrainActivities, UnusableStart
from marlaas.environments.scoring import Score
from marlaas.schemas.dataset import Dataset
from marlaas.schemas.engine_calls import SampleCall, SampledGroup
from marlaas.schemas.events import (
    ClaimInput,
    ClosedJob,
    CloseInput,
    GroupAssignment,
    InitialiseInput,
    RewardInput,
    RolloutInput,
    SnapshotInput,
    Started,
)
from marlaas.schemas.job_spec import JobSpec, parse_job_spec
from marlaas.schemas.manifest import AdapterRevision
from marlaas.schemas.names import training_group
from marlaas.storage.jetstream import StreamMissing
from marlaas.storage.revisions import ConflictingCommit
from marlaas.tests.noop_activities import FINGERPRINT
from temporalio.testing import ActivityEnvironment

from .conftest import Job, Storage
from .stand_ins import ListedSampler, ListedScorer, ListedTrainer

GROUPS = (GroupAssignment(group=training_group(0, 0), prompt_index=0),)


async def no_dataset(_: object) -> Dataset:
    raise AssertionError


class Runs:
    """Runs of workflows that want the same name, up to their version 0, and their end."""

    def __init__(self, storage: Storage, job: Job, scratch: Path) -> None:
        self.storage, self.job, self.key = storage, job, job.spec.key
        self._start = StartActivities(
            storage.store, storage.revisions, ListedScorer(lambda row, text: Score(1.0, None)), no_dataset
        )
        self._train = TrainActivities(storage.cache, storage.revisions, ListedTrainer(), scratch)
        self._snapshot = SnapshotActivities(storage.revisions, storage.log)
        self._close = CloseActivities(storage.revisions, storage.log)

    async def check_name(self, run: str, spec: JobSpec | None = None) -> None:
        data = ClaimInput(spec=spec or self.job.spec, first_run_id=run)
        await ActivityEnvironment().run(self._start.check_name, data)

    async def commit(self, run: str | None, spec: JobSpec | None = None) -> AdapterRevision:
        spec = spec or self.job.spec
        candidate = await ActivityEnvironment().run(
            self._train.initialise, InitialiseInput(spec=spec, dataset=self.job.dataset)
        )
        data = SnapshotInput(spec=spec, candidate=candidate, groups=(), first_run_id=run)
        return await ActivityEnvironment().run(self._snapshot.snapshot, data)

    async def close(self, run: str) -> ClosedJob:
        data = CloseInput(key=self.key, first_run_id=run)
        return await ActivityEnvironment().run(self._close.close_job, data)

    async def has_stream(self) -> bool:
        try:
            await self.storage.log.count(self.key)
        except StreamMissing:
            return False
        return True


@pytest.fixture
async def runs(storage: Storage, job: Job, tmp_path: Path) -> Runs:
    await storage.log.delete_stream(job.spec.key)
    return Runs(storage, job, tmp_path)


async def test_of_runs_that_want_one_name_the_first_to_commit_version_0_has_it(runs: Runs) -> None:
    names = [f"run {number}" for number in range(4)]
    await asyncio.gather(*map(runs.check_name, names))
    results = await asyncio.gather(*map(runs.commit, names), return_exceptions=True)
    won = [one for one in results if isinstance(one, AdapterRevision)]
    lost = [one for one in results if isinstance(one, ConflictingCommit)]
    assert (len(won), len(lost)) == (1, 3)
    winner = names[results.index(won[0])]
    assert all(f"exists: run {winner} committed its version 0 first" in str(one) for one in lost)
    assert await runs.commit(winner) == won[0]
    await runs.check_name(winner)
    with pytest.raises(JobExists, match=f"first run {winner}, the same spec, version 0 of 4"):
        await runs.check_name("later")


async def test_a_run_without_version_0_leaves_its_name_free_and_no_stream(runs: Runs) -> None:
    await runs.check_name("first")
    assert await runs.close("first") == ClosedJob(version=None)
    other = runs.job.spec.model_copy(update={"seed": 5})
    await runs.check_name("second", other)
    assert not await runs.has_stream()
    revision = await runs.commit("second", other)
    assert revision.version == 0
    assert await runs.has_stream()


async def test_a_dead_run_that_wakes_takes_nothing_from_the_one_that_has_the_name(runs: Runs) -> None:
    """CASES 109 and 125: whoever is late is refused."""
    await runs.check_name("dead")
    mine = runs.job.spec.model_copy(update={"seed": 5})
    revision = await runs.commit("alive", mine)
    for spec in (runs.job.spec, mine):
        with pytest.raises(ConflictingCommit, match="exists: run alive committed its version 0 first"):
            await runs.commit("dead", spec)
    with pytest.raises(ConflictingCommit):
        await runs.commit(None)
    assert await runs.close("dead") == ClosedJob(version=None)
    assert await runs.has_stream()
    assert await runs.storage.revisions.revision(runs.key, 0) == revision
    claim = await runs.storage.revisions.job(runs.key)
    assert claim is not None
    assert (claim.first_run_id, claim.spec) == ("alive", mine)


async def test_a_job_that_is_closed_twice_has_no_stream_and_keeps_its_versions(runs: Runs) -> None:
    await runs.commit("run")
    assert await runs.has_stream()
    closed = await asyncio.gather(*(runs.close("run") for _ in range(3)))
    assert closed == [ClosedJob(version=0)] * 3
    assert await runs.close("run") == ClosedJob(version=0)
    assert not await runs.has_stream()
    with pytest.raises(JobExists):
        await runs.check_name("later")


async def test_what_wakes_after_the_end_makes_no_stream(runs: Runs) -> None:
    """Case 109, of rollouts and rewards."""
    storage, spec = runs.storage, runs.job.spec
    base = await runs.commit("run")
    datasets = Datasets(storage.store)
    scorer = ListedScorer(lambda row, text: Score(1.0, None))
    rewards = RewardActivities(datasets, storage.log, scorer, groups_at_once=2)
    started = Started(dataset=runs.job.dataset, fingerprint=FINGERPRINT)
    rollout = RolloutInput(
        spec=spec, started=started, revision=base, groups=GROUPS, samples=3, temperature=1.0
    )
    reward = RewardInput(spec=spec, dataset=runs.job.dataset, groups=GROUPS, samples=3)

    class ClosingSampler(ListedSampler):
        """The job ends while this samples."""

        async def sample(self, call: SampleCall) -> AsyncGenerator[SampledGroup]:
            await runs.close("run")
            async for group in super().sample(call):
                yield group

    for sampler in (ClosingSampler(), ListedSampler()):
        rollouts = RolloutActivities(storage.cache, datasets, storage.log, sampler)
        with pytest.raises(StreamMissing, match="A job has one from its version 0 to its end"):
            await ActivityEnvironment().run(rollouts.rollout, rollout)
    with pytest.raises(StreamMissing):
        await ActivityEnvironment().run(rewards.reward, reward)
    assert not await runs.has_stream()


async def test_a_job_starts_from_a_version_of_another(runs: Runs) -> None:
    """CASES 16: the trainer is given that version's tensors, and the digest of the model they are for."""
    before = runs.job.spec.model_copy(update={"job": "before", "seed": 7})
    await runs.commit("first", before)

    def started(version: int, **changes: Any) -> JobSpec:
        start = {"job": f"{before.tenant}/before", "version": version}
        return parse_job_spec({**runs.job.spec.model_dump(mode="json"), "start": start, **changes})

    revision = await runs.commit("second", started(0))
    adapter = await runs.storage.store.get_blob(runs.key.bucket, revision.adapter)
    assert adapter.decode() == f"adapter 7 on {FINGERPRINT.base}"
    optimizer = await runs.storage.store.get_blob(runs.key.bucket, revision.optimizer)
    assert optimizer.decode() == "optimizer 0"
    with pytest.raises(UnusableStart, match=r"version 3 of job .*/before is not committed"):
        await runs.commit("third", started(3))
    with pytest.raises(UnusableStart, match=r"job .*/before has lora rank=16 .* and this job rank=8"):
        await runs.commit("third", started(0, lora={"rank": 8}))
    assert UnusableStart.__name__ in PERMANENT

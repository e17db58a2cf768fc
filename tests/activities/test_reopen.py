"""The start of a further epoch: what it goes on from, and what becomes of attempts of the one before."""

from pathlib import Path

import pytest
from marlaas.activities.close import CloseActivities
from marlaas.activities.reopen import NothingToResume, ReopenActivities
from marlaas.activities.snapshot import SnapshotActivities
from marlaas.activities.train import TrainActivities
from marlaas.schemas.contract import BlobRef
from marlaas.schemas.events import (
    Candidate,
    CloseInput,
    InitialiseInput,
    JobState,
    ReopenInput,
    SnapshotInput,
)
from marlaas.schemas.job_spec import JobSpec
from marlaas.schemas.manifest import AdapterRevision, EvaluationDocument
from marlaas.schemas.settings import Setting
from marlaas.schemas.trajectory import ScoredGroup, ScoredSample
from marlaas.storage.jetstream import StreamMissing
from marlaas.storage.revisions import ConflictingCommit
from marlaas.tests.noop_activities import METRICS
from temporalio.testing import ActivityEnvironment

from .conftest import Job, Storage
from .stand_ins import ListedTrainer

SCORED = ScoredGroup(
    group="train-00000002-00000",
    prompt_index=0,
    status="ok",
    samples=(ScoredSample(sample=0, stream_sequence=1, reward=1.0),),
)


class Epochs:
    """A job with two steps, by the run `first`, and what further runs do with it."""

    def __init__(self, storage: Storage, job: Job, scratch: Path) -> None:
        self.storage, self.spec, self.dataset = storage, job.spec, job.dataset
        self.key = job.spec.key
        self._train = TrainActivities(storage.cache, storage.revisions, ListedTrainer(), scratch)
        self._snapshot = SnapshotActivities(storage.revisions, storage.log)
        self._reopen = ReopenActivities(storage.revisions, storage.log)

    async def begin(self) -> AdapterRevision:
        candidate = await ActivityEnvironment().run(
            self._train.initialise, InitialiseInput(spec=self.spec, dataset=self.dataset)
        )
        return await self.commit(candidate, epoch=0, run="first")

    async def commit(self, candidate: Candidate, epoch: int, run: str | None = None) -> AdapterRevision:
        data = SnapshotInput(
            spec=self.spec,
            candidate=candidate,
            groups=(),
            first_run_id=run,
            dataset=self.dataset if run else None,
            epoch=epoch,
            settings=(Setting(path="steps", value=9, from_step=1),) if candidate.version else (),
        )
        return await ActivityEnvironment().run(self._snapshot.snapshot, data)

    async def step(self, parent: AdapterRevision, epoch: int, content: bytes) -> AdapterRevision:
        manifest = await self.storage.revisions.manifest(self.key, 0)
        assert manifest is not None
        return await self.commit(
            Candidate(
                version=parent.version + 1,
                parent=parent.manifest,
                adapter=await self.blob(content),
                optimizer=parent.optimizer,
                batch=await self.blob(b"batch"),
                metrics=METRICS,
                fingerprint=manifest.fingerprint,
            ),
            epoch,
        )

    async def blob(self, content: bytes) -> BlobRef:
        return await self.storage.store.put_blob(self.key.bucket, content)

    async def reopen(self, run: str, spec: JobSpec | None = None) -> JobState:
        data = ReopenInput(spec=spec or self.spec, first_run_id=run)
        return await ActivityEnvironment().run(self._reopen.reopen_job, data)


@pytest.fixture
async def epochs(storage: Storage, job: Job, tmp_path: Path) -> Epochs:
    await storage.log.delete_stream(job.spec.key)
    return Epochs(storage, job, tmp_path)


async def test_it_goes_on_from_the_newest_version_with_what_the_next_steps_need(epochs: Epochs) -> None:
    base = await epochs.begin()
    one = await epochs.step(base, 0, b"one")
    two = await epochs.step(one, 0, b"two")
    for version in (0, 1, 2):
        await epochs.storage.revisions.put_evaluation(
            EvaluationDocument(
                key=epochs.key,
                version=version,
                prompts=2,
                samples=2,
                accuracy=version / 4,
                greedy_accuracy=0.5,
                reward_mean=0.5,
                failed_samples=0,
                greedy_completions=(),
            )
        )
    state = await epochs.reopen("second")
    assert state.next_step == 2
    assert state.recent == (two,)  # K = 0
    assert (state.started.epoch, state.started.dataset) == (1, epochs.dataset)
    assert state.started.adapter == base.adapter
    assert [(found.version, found.accuracy) for found in state.evaluations] == [(0, 0.0), (2, 0.5)]
    assert [setting.path for setting in state.settings] == ["steps"]
    assert await epochs.reopen("second") == state, "a retry begins no epoch of its own"
    assert (await epochs.reopen("third")).started.epoch == 2


async def test_attempts_of_an_earlier_epoch_neither_commit_nor_publish(epochs: Epochs) -> None:
    """CASES 109: whoever wakes late is refused."""
    base = await epochs.begin()
    await epochs.reopen("second")
    with pytest.raises(ConflictingCommit, match="epoch 0, and the job was resumed since: run second"):
        await epochs.step(base, 0, b"late")
    log = epochs.storage.log
    with pytest.raises(StreamMissing):
        await log.publish(epochs.key, SCORED)
    await log.publish(epochs.key.in_epoch(1), SCORED)
    close = CloseActivities(epochs.storage.revisions, log)
    await ActivityEnvironment().run(close.close_job, CloseInput(key=epochs.key, first_run_id="first"))
    assert await log.count(epochs.key.in_epoch(1)) == 1, "the late end of the first run leaves it alone"
    one = await epochs.step(base, 1, b"one")
    assert one.version == 1
    await ActivityEnvironment().run(
        close.close_job, CloseInput(key=epochs.key, first_run_id="second", epoch=1)
    )
    with pytest.raises(StreamMissing):
        await log.count(epochs.key.in_epoch(1))


async def test_without_a_version_or_with_another_spec_there_is_nothing_to_resume(epochs: Epochs) -> None:
    with pytest.raises(NothingToResume, match="has no committed version"):
        await epochs.reopen("second")
    await epochs.begin()
    with pytest.raises(NothingToResume, match="was started with another spec"):
        await epochs.reopen("second", epochs.spec.model_copy(update={"seed": 5}))
    assert await epochs.storage.revisions.owner(epochs.key, 1) is None

"""Every activity: killed half-way and repeated, run twice at once, run late."""

import asyncio
import itertools
from pathlib import Path

import pytest
from marlaas.activities.datasets import Datasets
from marlaas.activities.engines import EngineFailure
from marlaas.activities.evaluation import EvaluationActivities
from marlaas.activities.liveness import PERMANENT
from marlaas.activities.reward import MissingTrajectories, RewardActivities, UnusableReward
from marlaas.activities.rollout import RolloutActivities
from marlaas.activities.select_batch import SelectActivities
from marlaas.activities.snapshot import SnapshotActivities
from marlaas.activities.start import StartActivities
from marlaas.activities.train import TrainActivities
from marlaas.environments.invalid import ChangedReward, InvalidEnvironment
from marlaas.environments.scoring import Score
from marlaas.schemas.batch import Batch
from marlaas.schemas.contract import Digest
from marlaas.schemas.dataset import Dataset
from marlaas.schemas.environment import Environment
from marlaas.schemas.events import (
    Candidate,
    GroupAssignment,
    InitialiseInput,
    RewardInput,
    RewardResult,
    RolloutInput,
    SelectInput,
    SnapshotInput,
    Started,
    SummariseInput,
    TrainInput,
)
from marlaas.schemas.manifest import AdapterRevision
from marlaas.schemas.names import JobKey, evaluation_group, training_group
from marlaas.schemas.objective import KlSpec, ObjectiveSpec
from marlaas.storage.revisions import ConflictingCommit
from marlaas.tests.noop_activities import FINGERPRINT
from temporalio.testing import ActivityEnvironment

from .conftest import Job, Storage
from .stand_ins import HeldScorer, ListedSampler, ListedScorer, ListedTrainer


def right_when_even(row: object, completion: str) -> Score:
    return Score(reward=float(int(completion) % 2 == 0), failure=None)


class Cluster:
    """All activities over one storage, called as Temporal would."""

    def __init__(self, storage: Storage, job: Job, scratch: Path) -> None:
        self.storage, self.job = storage, job
        self.sampler = ListedSampler()
        self.scorer = ListedScorer(right_when_even)
        self.datasets = Datasets(storage.store)
        self.trainer = ListedTrainer()
        self.train = TrainActivities(storage.cache, storage.revisions, self.trainer, scratch)
        self.select = SelectActivities(storage.store, storage.log)
        self.snapshots = SnapshotActivities(storage.revisions, storage.log)
        self.evaluation = EvaluationActivities(storage.revisions, storage.log)
        self.started = Started(dataset=job.dataset, fingerprint=FINGERPRINT)
        self.environment = ActivityEnvironment()

    async def base(self) -> AdapterRevision:
        candidate = await self.environment.run(
            self.train.initialise, InitialiseInput(spec=self.job.spec, dataset=self.job.dataset)
        )
        return await self.snapshot(candidate)

    async def rollout(self, data: RolloutInput, sampler: ListedSampler | None = None) -> None:
        activities = RolloutActivities(
            self.storage.cache, self.datasets, self.storage.log, sampler or self.sampler
        )
        await ActivityEnvironment().run(activities.rollout, data)

    async def reward(
        self, groups: tuple[GroupAssignment, ...], samples: int = 3, round: int = 0
    ) -> RewardResult:
        activities = RewardActivities(self.datasets, self.storage.log, self.scorer, groups_at_once=2)
        data = RewardInput(
            spec=self.job.spec, dataset=self.job.dataset, groups=groups, samples=samples, round=round
        )
        return await ActivityEnvironment().run(activities.reward, data)

    async def selected(self, groups: tuple[str, ...], round: int = 0) -> Batch:
        data = SelectInput(spec=self.job.spec, step=0, groups=groups, round=round)
        result = await self.environment.run(self.select.select_batch, data)
        again = await self.environment.run(self.select.select_batch, data)
        assert result == again
        return Batch.from_bytes(await self.storage.store.get_blob(self.job.spec.key.bucket, result.blob))

    async def snapshot(self, candidate: Candidate, groups: tuple[str, ...] = ()) -> AdapterRevision:
        data = SnapshotInput(spec=self.job.spec, candidate=candidate, groups=groups)
        return await ActivityEnvironment().run(self.snapshots.snapshot, data)

    def rollout_input(self, revision: AdapterRevision, step: int = 0) -> RolloutInput:
        return RolloutInput(
            spec=self.job.spec,
            started=self.started,
            revision=revision,
            groups=assignments(step),
            samples=3,
            temperature=1.0,
        )


def assignments(step: int) -> tuple[GroupAssignment, ...]:
    return tuple(GroupAssignment(group=training_group(step, index), prompt_index=index) for index in range(2))


GROUPS = tuple(one.group for one in assignments(0))


@pytest.fixture
def cluster(storage: Storage, job: Job, tmp_path: Path) -> Cluster:
    return Cluster(storage, job, tmp_path)


async def test_a_rollout_that_was_killed_samples_only_what_is_missing(cluster: Cluster) -> None:
    """CASES 103: Finished trajectories survive."""
    data = cluster.rollout_input(await cluster.base())
    with pytest.raises(EngineFailure):
        await cluster.rollout(data, ListedSampler(lives=1))
    await cluster.rollout(data)
    assert [group.group for group in cluster.sampler.calls[0].groups] == [GROUPS[1]]
    assert await cluster.storage.log.count(cluster.job.spec.key) == 6
    await cluster.rollout(data)
    assert len(cluster.sampler.calls) == 1


async def test_a_group_that_was_published_in_part_is_completed(cluster: Cluster) -> None:
    data = cluster.rollout_input(await cluster.base())
    key = cluster.job.spec.key
    await cluster.rollout(data)
    whole = await cluster.storage.log.trajectories(key, GROUPS[0], 3)
    await cluster.storage.log.purge_groups(key, [GROUPS[0]])
    await cluster.storage.log.publish(key, whole[1][1])
    await cluster.rollout(data)
    assert [one.sample for one in cluster.sampler.calls[1].groups[0].samples] == [0, 2]
    completed = await cluster.storage.log.trajectories(key, GROUPS[0], 3)
    assert {n: one[1] for n, one in completed.items()} == {n: one[1] for n, one in whole.items()}


async def test_two_rollouts_at_once_leave_one_message_a_sample(cluster: Cluster) -> None:
    data = cluster.rollout_input(await cluster.base())
    await asyncio.gather(*(cluster.rollout(data, ListedSampler()) for _ in range(5)))
    assert await cluster.storage.log.count(cluster.job.spec.key) == 6


async def test_rewards_run_twice_at_once_agree_even_if_the_function_does_not(cluster: Cluster) -> None:
    await cluster.rollout(cluster.rollout_input(await cluster.base()))
    numbers = itertools.count()
    cluster.scorer = ListedScorer(lambda row, text: Score(reward=float(next(numbers)), failure=None))
    await asyncio.gather(*(cluster.reward(assignments(0)) for _ in range(4)))
    first = await cluster.selected(GROUPS)
    await cluster.reward(assignments(0))
    assert (await cluster.selected(GROUPS)).to_bytes() == first.to_bytes()
    assert await cluster.storage.log.count(cluster.job.spec.key) == 8


async def test_failed_samples_have_weight_0_and_are_counted(cluster: Cluster) -> None:
    await cluster.rollout(cluster.rollout_input(await cluster.base()))

    def fail_one(row: object, completion: str) -> Score:
        seeds = cluster.sampler.calls[0].groups[0].samples
        if completion == str(seeds[1].seed % 97):
            return Score(reward=None, failure="ValueError: no")
        return Score(reward=0.25, failure=None)

    cluster.scorer = ListedScorer(fail_one)
    await cluster.reward(assignments(0))
    batch = await cluster.selected(GROUPS)
    assert batch.valid.tolist() == [1, 0, 1, 1, 1, 1]
    assert batch.rewards.tolist() == [0.25, 0.0, 0.25, 0.25, 0.25, 0.25]


async def test_another_round_scores_only_what_failed_and_takes_the_place_of_the_first(
    cluster: Cluster,
) -> None:
    await cluster.rollout(cluster.rollout_input(await cluster.base()))
    first_group = {str(one.seed % 97) for one in cluster.sampler.calls[0].groups[0].samples}
    scored: list[str] = []

    def failing(row: object, completion: str) -> Score:
        scored.append(completion)
        failed = completion in first_group and completion != min(first_group)
        return Score(reward=None, failure="down") if failed else Score(reward=0.25, failure=None)

    cluster.scorer = ListedScorer(failing)
    result = await cluster.reward(assignments(0))
    assert (result.failed_samples, result.failed_groups, result.varied_groups) == (2, 1, 0)
    before = await cluster.selected(GROUPS)
    scored.clear()
    cluster.scorer = ListedScorer(lambda row, completion: Score(reward=float(completion), failure=None))
    result = await cluster.reward(assignments(0), round=1)
    assert (result.failed_samples, result.failed_groups, result.varied_groups) == (0, 0, 1)
    after = await cluster.selected(GROUPS, round=1)
    mended = [0.25 if text == min(first_group) else float(text) for text in _texts(cluster)]
    assert after.rewards.tolist() == [*mended[:3], 0.25, 0.25, 0.25]
    assert after.valid.tolist() == [1] * 6
    assert (await cluster.selected(GROUPS)).to_bytes() == before.to_bytes()
    await cluster.reward(assignments(0), round=2)
    assert (await cluster.selected(GROUPS, round=2)).to_bytes() == after.to_bytes()
    await cluster.storage.log.purge_groups(cluster.job.spec.key, GROUPS, rounds=3)
    assert await cluster.storage.log.count(cluster.job.spec.key) == 0


def _texts(cluster: Cluster) -> list[str]:
    return [str(one.seed % 97) for group in cluster.sampler.calls[0].groups for one in group.samples]


async def test_a_group_with_one_reward_fails_and_keeps_its_place(cluster: Cluster) -> None:
    cluster.sampler.failing = {0, 1}
    await cluster.rollout(cluster.rollout_input(await cluster.base()))
    await cluster.reward(assignments(0))
    scored = await cluster.storage.log.scored(cluster.job.spec.key, GROUPS[0])
    assert scored is not None
    assert scored.status == "failed"
    assert "1 of 3 samples have a reward" in (scored.reason or "")
    batch = await cluster.selected(GROUPS)
    assert batch.valid.tolist() == [0] * 6
    assert batch.mask[batch.offsets[0] : batch.offsets[1]].tolist() == [0, 0]


async def test_rewards_refuse_a_group_that_is_not_whole(cluster: Cluster) -> None:
    await cluster.base()
    with pytest.raises(MissingTrajectories, match="3 of 3 samples are not on the stream"):
        await cluster.reward(assignments(0))


@pytest.mark.parametrize(
    ("refusal", "expected", "message"),
    [
        (
            InvalidEnvironment("environment.reward", "is 'rewards:exact'; importing it failed: E"),
            UnusableReward,
            "environment.reward: is 'rewards:exact'; importing it failed: E; it was fine when the job began",
        ),
        (ChangedReward("it changed"), ChangedReward, "it changed"),
    ],
)
async def test_a_reward_that_no_longer_loads_is_retried_and_leaves_nothing_running(
    cluster: Cluster, refusal: Exception, expected: type[Exception], message: str
) -> None:
    """CASES 83 and 79: the job waits for its reward to be mended; no sample is counted as failed."""
    await cluster.rollout(cluster.rollout_input(await cluster.base()))
    scorer = cluster.scorer = HeldScorer(right_when_even, refusal)
    with pytest.raises(expected, match=message):
        await cluster.reward(assignments(0))
    assert scorer.waiting == 0
    assert expected.__name__ not in PERMANENT
    assert await cluster.storage.log.scored(cluster.job.spec.key, GROUPS[0]) is None
    cluster.scorer = ListedScorer(right_when_even)
    await cluster.reward(assignments(0))
    assert (await cluster.selected(GROUPS)).valid.tolist() == [1] * 6


async def test_groups_of_one_tenant_that_are_in_hand_are_bounded(cluster: Cluster) -> None:
    """However many activities it has here: the stream keeps the others, not this worker's memory."""
    base = await cluster.base()
    for step in range(3):
        await cluster.rollout(cluster.rollout_input(base, step))
    scorer = HeldScorer(right_when_even)
    activities = RewardActivities(cluster.datasets, cluster.storage.log, scorer, groups_at_once=2)
    spec, dataset = cluster.job.spec, cluster.job.dataset.model_copy(update={"reward_code": "c" * 64})
    running = [
        asyncio.create_task(
            ActivityEnvironment().run(
                activities.reward,
                RewardInput(spec=spec, dataset=dataset, groups=assignments(step), samples=3),
            )
        )
        for step in range(3)
    ]
    while scorer.waiting < 6:
        await asyncio.sleep(0)
    scorer.gate.set()
    assert [one.groups for one in await asyncio.gather(*running)] == [2, 2, 2]
    assert scorer.most == 6, "three samples in each of two groups"
    assert scorer.codes == {"c" * 64}


async def test_the_reward_that_was_checked_is_the_one_that_the_job_is_held_to(cluster: Cluster) -> None:
    class Checked(ListedScorer):
        async def check(self, job: JobKey, environment: Environment) -> Digest | None:
            return "c" * 64

    async def dataset(_: object) -> Dataset:
        return await cluster.datasets.get(cluster.job.spec.key.bucket, cluster.job.dataset)

    storage = cluster.storage
    start = StartActivities(storage.store, storage.revisions, Checked(right_when_even), dataset)
    ref = await cluster.environment.run(start.prepare_dataset, cluster.job.spec)
    assert ref == cluster.job.dataset.model_copy(update={"reward_code": "c" * 64})


async def test_a_batch_holds_exactly_what_was_sampled_in_order(cluster: Cluster) -> None:
    await cluster.rollout(cluster.rollout_input(await cluster.base()))
    await cluster.reward(assignments(0))
    batch = await cluster.selected(GROUPS)
    seeds = [one.seed for group in cluster.sampler.calls[0].groups for one in group.samples]
    tokens = [batch.token_ids[start : start + 4].tolist() for start in batch.offsets[:-1]]
    assert tokens == [[1, 2, seed % 97, 3] for seed in seeds]
    assert batch.mask.tolist() == [0, 0, 1, 1] * 6
    assert batch.logprobs.tolist() == [0, 0, -0.25, -0.125] * 6
    assert batch.group.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.rewards.tolist() == [float(seed % 97 % 2 == 0) for seed in seeds]


async def test_one_of_several_snapshots_commits_and_all_return_it(cluster: Cluster) -> None:
    base = await cluster.base()
    await cluster.rollout(cluster.rollout_input(base))
    await cluster.reward(assignments(0))
    selected = await cluster.environment.run(
        cluster.select.select_batch, SelectInput(spec=cluster.job.spec, step=0, groups=GROUPS)
    )
    data = TrainInput(spec=cluster.job.spec, started=cluster.started, revision=base, batch=selected.blob)
    candidate = await cluster.environment.run(cluster.train.train, data)
    other = candidate.model_copy(update={"optimizer": base.optimizer})
    revisions = await asyncio.gather(
        *(cluster.snapshot(one, GROUPS) for one in (candidate, other, candidate, other))
    )
    assert len({one.model_dump_json() for one in revisions}) == 1
    assert revisions[0].version == 1
    assert await cluster.snapshot(other, GROUPS) == revisions[0]
    assert await cluster.storage.log.count(cluster.job.spec.key) == 0


async def test_a_penalty_against_the_start_is_given_the_adapter_of_version_0(cluster: Cluster) -> None:
    base = await cluster.base()
    batch = base.adapter  # the stand-in reads any bytes
    spec = cluster.job.spec
    kl = KlSpec(coefficient=0.1, reference="start")
    against_start = spec.model_copy(update={"objective": ObjectiveSpec(kl=kl)})
    started = cluster.started.model_copy(update={"adapter": base.adapter})
    for one in (spec, against_start):
        data = TrainInput(spec=one, started=started, revision=base, batch=batch)
        await cluster.environment.run(cluster.train.train, data)
    assert cluster.trainer.starts == [None, f"adapter {spec.seed}"]


async def test_a_snapshot_from_another_parent_is_refused(cluster: Cluster) -> None:
    base = await cluster.base()
    candidate = Candidate(
        version=1,
        parent="f" * 64,
        adapter=base.adapter,
        optimizer=base.optimizer,
        batch=None,
        metrics=None,
        fingerprint=FINGERPRINT,
    )
    with pytest.raises(ConflictingCommit):
        await cluster.snapshot(candidate)


async def test_a_rollout_that_wakes_after_the_commit_changes_no_later_batch(cluster: Cluster) -> None:
    base = await cluster.base()
    await cluster.rollout(cluster.rollout_input(base, step=1))
    await cluster.reward(assignments(1))
    later = tuple(one.group for one in assignments(1))
    before = await cluster.selected(later)
    await cluster.rollout(cluster.rollout_input(base, step=0))
    assert (await cluster.selected(later)).to_bytes() == before.to_bytes()


async def test_an_evaluation_is_written_once_and_leaves_nothing_on_the_stream(cluster: Cluster) -> None:
    base = await cluster.base()
    for greedy, samples in ((False, 2), (True, 1)):
        groups = tuple(
            GroupAssignment(group=evaluation_group(0, n, greedy=greedy), prompt_index=2 + n) for n in range(2)
        )
        data = cluster.rollout_input(base).model_copy(update={"groups": groups, "samples": samples})
        await cluster.rollout(data)
        await cluster.reward(groups, samples)
    summary = SummariseInput(spec=cluster.job.spec, dataset=cluster.job.dataset, revision=base)
    first = await cluster.environment.run(cluster.evaluation.summarise_evaluation, summary)
    again = await cluster.environment.run(cluster.evaluation.summarise_evaluation, summary)
    seeds = [one.seed % 97 for group in cluster.sampler.calls[0].groups for one in group.samples]
    assert first == again
    assert first.accuracy == sum(seed % 2 == 0 for seed in seeds) / 4
    assert await cluster.storage.log.count(cluster.job.spec.key) == 0

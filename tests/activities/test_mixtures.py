"""Jobs of several environments: each row is scored by its own, and held to that one's code."""

import json
from pathlib import Path
from typing import Any

import pytest
from marlaas.activities.datasets import Datasets
from marlaas.activities.evaluation import EvaluationActivities
from marlaas.activities.reward import RewardActivities
from marlaas.activities.rollout import RolloutActivities
from marlaas.activities.start import StartActivities
from marlaas.environments.datasets import build_dataset
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.environments.scoring import Score
from marlaas.schemas.contract import Digest
from marlaas.schemas.dataset import Dataset, DatasetPart, Row
from marlaas.schemas.environment import Environment, RowsEnvironment
from marlaas.schemas.events import GroupAssignment, RewardInput, RolloutInput, Started, SummariseInput
from marlaas.schemas.job_spec import JobSpec, RewardLimits, parse_job_spec
from marlaas.schemas.manifest import AdapterRevision
from marlaas.schemas.names import JobKey, evaluation_group, training_group
from marlaas.schemas.trajectory import ScoredGroup, ScoredSample, Trajectory
from marlaas.tests.noop_activities import FINGERPRINT
from temporalio.testing import ActivityEnvironment

from .conftest import Job, Storage
from .stand_ins import ListedSampler

CODES = {"rewards:sums": "1" * 64, "rewards:words": "2" * 64}


class CodedScorer:
    """Keeps which environment and code each row was scored with."""

    def __init__(self, refused: str = "") -> None:
        self._refused = refused
        self.scored = set[tuple[str, str, str | None]]()

    async def check(self, job: JobKey, environment: Environment) -> Digest | None:
        if (reward := _reward(environment)) == self._refused:
            raise InvalidEnvironment("environment.reward", "is no function")
        return CODES[reward]

    async def score(
        self,
        job: JobKey,
        environment: Environment,
        limits: RewardLimits,
        row: Row,
        completion: str,
        *,
        code: Digest | None,
    ) -> Score:
        self.scored.add((row.messages[0].content.split()[0], _reward(environment), code))
        return Score(reward=1.0, failure=None)


def _reward(environment: Environment) -> str:
    assert isinstance(environment, RowsEnvironment)
    assert isinstance(environment.reward, str)
    return environment.reward


@pytest.fixture
def spec(job: Job, tmp_path: Path) -> JobSpec:
    of: list[dict[str, Any]] = []
    for name, count, weight in (("sums", 5, 1), ("words", 7, 3)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(json.dumps({"prompt": f"{name} {n}"}) for n in range(count)))
        rows = {"kind": "jsonl", "path": str(path), "reward": f"rewards:{name}"}
        of.append({"name": name, "weight": weight, "environment": rows})
    changed = {"environment": {"kind": "mixture", "of": of}, "evaluation": {"prompts": 4, "samples": 2}}
    return parse_job_spec(job.spec.model_dump(mode="json") | changed)


async def _build(spec: JobSpec) -> Dataset:
    return build_dataset(spec)


async def test_rows_are_scored_by_their_own_environment(storage: Storage, spec: JobSpec) -> None:
    scorer = CodedScorer()
    start = StartActivities(storage.store, storage.revisions, scorer, _build)
    ref = await ActivityEnvironment().run(start.prepare_dataset, spec)
    assert ref.parts == (
        DatasetPart(name="sums", weight=1, first=0, count=4, held_out=1, reward_code="1" * 64),
        DatasetPart(name="words", weight=3, first=4, count=4, held_out=3, reward_code="2" * 64),
    )
    assert (ref.train, ref.held_out, ref.reward_code) == (8, 4, None)

    datasets = Datasets(storage.store)
    dataset = await datasets.get(spec.key.bucket, ref)
    for part, begin in zip(ref.parts, (8, 9), strict=True):
        mine = [*range(part.first, part.first + part.count), *range(begin, begin + part.held_out)]
        assert {dataset.row(index).environment for index in mine} == {part.name}

    groups = tuple(GroupAssignment(group=training_group(0, n), prompt_index=n) for n in range(12))
    revision = AdapterRevision(version=0, manifest="0" * 64, adapter=ref.blob, optimizer=ref.blob)
    rollout = RolloutActivities(storage.cache, datasets, storage.log, ListedSampler())
    await ActivityEnvironment().run(
        rollout.rollout,
        RolloutInput(
            spec=spec,
            started=Started(dataset=ref, fingerprint=FINGERPRINT),
            revision=revision,
            groups=groups,
            samples=2,
            temperature=1.0,
        ),
    )
    rewards = RewardActivities(datasets, storage.log, scorer, groups_at_once=4)
    data = RewardInput(spec=spec, dataset=ref, groups=groups, samples=2)
    await ActivityEnvironment().run(rewards.reward, data)
    assert scorer.scored == {
        (name, f"rewards:{name}", CODES[f"rewards:{name}"]) for name in ("sums", "words")
    }


async def test_an_evaluation_has_the_figures_of_each_environment(storage: Storage, spec: JobSpec) -> None:
    start = StartActivities(storage.store, storage.revisions, CodedScorer(), _build)
    ref = await ActivityEnvironment().run(start.prepare_dataset, spec)
    for index, count in enumerate([2, 0, 0, 1]):
        await _publish(storage, spec.key, evaluation_group(0, index, greedy=False), [count > 0, count > 1])
        await _publish(storage, spec.key, evaluation_group(0, index, greedy=True), [count > 0])
    revision = AdapterRevision(version=0, manifest="0" * 64, adapter=ref.blob, optimizer=ref.blob)
    evaluation = EvaluationActivities(storage.revisions, storage.log)
    data = SummariseInput(spec=spec, dataset=ref, revision=revision)
    result = await ActivityEnvironment().run(evaluation.summarise_evaluation, data)
    assert (result.accuracy, result.greedy_accuracy, result.reward_mean) == (3 / 8, 2 / 4, 3 / 8)
    document = await storage.revisions.evaluation(spec.key, 0)
    assert document is not None
    assert (document.prompts, document.pass_at) == (4, {1: 3 / 8, 2: 2 / 4})
    found = document.by_environment
    assert {name: (one.prompts, one.accuracy, one.pass_at[2]) for name, one in found.items()} == {
        "sums": (1, 1.0, 1.0),
        "words": (3, 1 / 6, pytest.approx(1 / 3)),
    }


async def _publish(storage: Storage, key: JobKey, group: str, right: list[bool]) -> None:
    """The trajectories of a group and its scores."""
    for sample in range(len(right)):
        trajectory = Trajectory(
            group=group,
            sample=sample,
            prompt_index=0,
            version=0,
            adapter="0" * 64,
            token_ids=[1],
            mask=[1],
            logprobs=[0.0],
            finish_reason="stop",
            text="",
        )
        await storage.log.publish(key, trajectory)
    samples = tuple(
        ScoredSample(sample=n, stream_sequence=1, reward=float(one)) for n, one in enumerate(right)
    )
    await storage.log.publish(key, ScoredGroup(group=group, prompt_index=0, status="ok", samples=samples))


async def test_a_reward_that_does_not_load_is_named_with_its_place(storage: Storage, spec: JobSpec) -> None:
    start = StartActivities(storage.store, storage.revisions, CodedScorer("rewards:words"), _build)
    with pytest.raises(InvalidEnvironment, match=r"environment\.of\.1\.environment\.reward: is no function"):
        await ActivityEnvironment().run(start.prepare_dataset, spec)

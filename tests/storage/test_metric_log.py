"""JSONL of a job's metrics: every row once, however often and by however many it is written."""

import asyncio
import json
from typing import Any

import pytest
from marlaas.schemas.job_spec import EvaluationSpec, JobSpec
from marlaas.schemas.manifest import EvaluationDocument, Manifest
from marlaas.schemas.names import JobKey
from marlaas.storage.documents import UnreadableDocument
from marlaas.storage.metric_log import CHUNK, MetricLog
from marlaas.storage.metric_rows import MetricRows
from marlaas.storage.object_store import ObjectStore
from marlaas.storage.revisions import Revisions
from marlaas.tests.noop_activities import METRICS

from .test_revisions import candidate, claim_of


class Committed:
    """A job whose versions and evaluations a test commits."""

    def __init__(self, store: ObjectStore, key: JobKey) -> None:
        self.store, self.key = store, key
        self.revisions = Revisions(store)
        evaluation = EvaluationSpec(prompts=2, every=2)
        self.spec: JobSpec = claim_of(key, "run").spec.model_copy(update={"evaluation": evaluation})
        self._parent: str | None = None

    async def version(self, version: int) -> None:
        manifest: Manifest = await candidate(self.store, self.key, version, self._parent)
        metrics = METRICS.model_copy(update={"reward_mean": version / 10}) if version else None
        revision, _ = await self.revisions.commit(
            manifest.model_copy(update={"metrics": metrics, "time": float(version)})
        )
        self._parent = revision.manifest

    async def evaluation(self, version: int) -> None:
        await self.revisions.put_evaluation(
            EvaluationDocument(
                key=self.key,
                version=version,
                prompts=2,
                samples=1,
                accuracy=0.5,
                greedy_accuracy=0.5,
                reward_mean=None,
                failed_samples=0,
                greedy_completions=(),
            )
        )

    def log(self) -> MetricLog:
        return MetricLog(self.store, self.revisions, self.spec)

    async def lines(self, first: int = 0) -> list[dict[str, Any]]:
        stored = await self.store.get(self.key.bucket, self.key.metrics_key(first))
        return [json.loads(line) for line in (stored or b"").decode().splitlines()]

    async def keys(self, first: int = 0) -> list[tuple[int, str]]:
        return [(line["version"], line["kind"]) for line in await self.lines(first)]


@pytest.fixture
def job(store: ObjectStore, key: JobKey) -> Committed:
    return Committed(store, key)


async def test_rows_are_what_was_committed(job: Committed) -> None:
    for version in range(2):
        await job.version(version)
    await job.evaluation(0)
    await job.log().update(0, 1)
    base, step = await job.lines()
    assert base == {
        "job": str(job.key),
        "version": 0,
        "kind": "evaluation",
        "time": None,
        "eval/accuracy": 0.5,
        "eval/greedy_accuracy": 0.5,
        "eval/failed_samples": 0.0,
        "eval/prompts": 2.0,
    }
    assert (step["version"], step["kind"], step["time"], step["reward/mean"]) == (1, "step", 1.0, 0.1)


async def test_a_late_evaluation_takes_its_place_and_no_update_repeats_a_row(job: Committed) -> None:
    for version in range(5):
        await job.version(version)
    await job.log().update(0, 4)
    assert await job.keys() == [(version, "step") for version in (1, 2, 3, 4)]
    await job.evaluation(4)
    await job.evaluation(2)
    await job.log().update(2, 4)
    everything = [(1, "step"), (2, "step"), (2, "evaluation"), (3, "step"), (4, "step"), (4, "evaluation")]
    assert await job.keys() == everything
    tagged = await job.store.get_tagged(job.key.bucket, job.key.metrics_key(0))
    await job.log().update(0, 4)
    assert await job.store.get_tagged(job.key.bucket, job.key.metrics_key(0)) == tagged


async def test_an_overtaken_writer_drops_no_row(job: Committed) -> None:
    """CASES 22: Of two writers neither loses rows."""
    for version in range(9):
        await job.version(version)
    await asyncio.gather(*(job.log().update(0, last) for last in (8, 3, 5, 1, 8, 2)))
    assert await job.keys() == [(version, "step") for version in range(1, 9)]
    await job.log().update(0, 2)  # a writer that wakes an hour later
    assert await job.keys() == [(version, "step") for version in range(1, 9)]


async def test_rows_beyond_a_hundred_versions_go_to_the_next_object(job: Committed) -> None:
    last = CHUNK + 2
    for version in range(last + 1):
        await job.version(version)
    await job.log().update(0, last)
    assert await job.keys() == [(version, "step") for version in range(1, CHUNK)]
    assert await job.keys(CHUNK) == [(version, "step") for version in range(CHUNK, last + 1)]


async def test_lines_that_are_not_ours_are_refused_by_name(job: Committed) -> None:
    await job.version(0)
    await job.version(1)
    await job.store.put_new(job.key.bucket, job.key.metrics_key(0), b'{"step": 1}\n')
    with pytest.raises(UnreadableDocument, match=job.key.metrics_key(0)):
        await job.log().update(0, 1)


@pytest.mark.parametrize(
    ("every", "versions"), [(0, [0, 7]), (3, [0, 3, 6, 7])], ids=["first-and-last", "between-too"]
)
def test_versions_that_may_be_evaluated(job: Committed, every: int, versions: list[int]) -> None:
    spec = job.spec.model_copy(update={"evaluation": EvaluationSpec(prompts=2, every=every)})
    assert MetricRows(job.revisions, spec).evaluated(0, 7, 7) == versions
    spec = job.spec.model_copy(update={"evaluation": EvaluationSpec(prompts=0, every=every)})
    assert MetricRows(job.revisions, spec).evaluated(0, 7, 7) == []

"""Named parts from a server's answer to a step's batch, in real reward processes."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from marlaas.schemas.environment import Environment
from marlaas.schemas.events import SelectedBatch, SelectInput
from marlaas.tests.reward_server import as_json, reward_server
from marlaas.workers.reward_pool import RewardPool
from pydantic import TypeAdapter

from .conftest import Job, Storage
from .test_activities import GROUPS, Cluster, assignments


@pytest.fixture
async def cluster(storage: Storage, job: Job, tmp_path: Path) -> AsyncGenerator[Cluster]:
    pool = RewardPool(2, processes=2)
    cluster = Cluster(storage, job, tmp_path)
    cluster.scorer = cast(Any, pool)
    yield cluster
    await pool.close()


def use(cluster: Cluster, *parts: dict[str, Any]) -> None:
    content = {"kind": "jsonl", "path": "rows.jsonl", "reward": parts}
    environment = TypeAdapter[Any](Environment).validate_python(content)
    cluster.job.spec = cluster.job.spec.model_copy(update={"environment": environment})


async def selected(cluster: Cluster, round: int = 0) -> SelectedBatch:
    data = SelectInput(spec=cluster.job.spec, step=0, groups=GROUPS, round=round)
    return await cluster.environment.run(cluster.select.select_batch, data)


async def test_half_an_outage_fails_its_samples_and_another_round_mends_them(cluster: Cluster) -> None:
    """CASES 79 and 80: 503 for some is no reward of 0; the others keep theirs, and the means are of them."""
    await cluster.rollout(cluster.rollout_input(await cluster.base()))
    texts = [str(one.seed % 97) for one in cluster.sampler.calls[0].groups[0].samples]
    down, asked = {texts[0]}, list[str]()

    def answer(body: Any) -> tuple[int, bytes]:
        asked.append(body["completion"])
        if body["completion"] in down:
            return 503, b"busy"
        second_row = body["fields"] == {"n": 1}
        return as_json({"parts": {"fluent": 0.5, "short": None if second_row else 1}})

    with reward_server(answer) as server:
        http = {"kind": "http", "url": server.url, "retries": 0, "name": "remote"}
        use(cluster, {"kind": "length", "max": 1, "weight": 2.0}, http)
        result = await cluster.reward(assignments(0))
        failed = sum(text in down for text in asked)
        assert 1 <= failed < 6
        assert (result.failed_samples, result.failed_groups) == (failed, 0)
        assert result.failure == f"RemoteFailure: {server.url} answered with status 503: busy"

        first = await selected(cluster)
        assert (first.failed_samples, first.failure) == (failed, result.failure)
        assert first.reward_parts == {"length": 1.0, "remote.fluent": 0.5, "remote.short": 1.0}
        batch = await cluster.selected(GROUPS)
        assert batch.valid.sum() == 6 - failed
        assert set(batch.rewards[batch.valid == 1]) == {2.5, 3.5}

        down.clear()
        asked.clear()
        await cluster.reward(assignments(0), round=1)
        assert len(asked) == failed
    second = await cluster.selected(GROUPS, round=1)
    assert second.rewards.tolist() == [3.5] * 3 + [2.5] * 3
    assert (await selected(cluster, round=1)).failed_samples == 0


async def test_a_sample_to_which_nothing_applies_has_no_reward(cluster: Cluster) -> None:
    """CASES 73: None is neither 0 nor NaN, and a group of such samples fails."""
    await cluster.rollout(cluster.rollout_input(await cluster.base()))
    with reward_server(lambda body: as_json({"reward": body["fields"]["n"] or None})) as server:
        use(cluster, {"kind": "http", "url": server.url, "name": "remote"})
        result = await cluster.reward(assignments(0))
    assert (result.failed_samples, result.failed_groups) == (3, 1)
    assert result.failure == "NoReward: no reward applies to the sample: remote are None"
    batch = await cluster.selected(GROUPS)
    assert batch.valid.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.rewards.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert (await selected(cluster)).reward_parts == {"remote": 1.0}

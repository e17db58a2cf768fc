"""Rewards of parts in the reward pool: servers, tokens, and what a part may use."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.environments.scoring import Score
from marlaas.schemas.dataset import Message, Row
from marlaas.schemas.environment import Environment
from marlaas.schemas.job_spec import RewardLimits
from marlaas.schemas.names import JobKey
from marlaas.tests.reward_server import as_json, reward_server
from marlaas.workers.reward_pool import RewardPool
from pydantic import TypeAdapter

TARGETS = Path(__file__).parent / "targets"
JOB = JobKey(tenant="acme", job="sums")
ROOMY = RewardLimits(cpu_seconds=30, wall_seconds=120, memory_mb=512, attempts=2)


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[RewardPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TARGETS), prepend=":")
        pool = RewardPool(2, processes=2)
    yield pool
    await pool.close()


def parts(*listed: dict[str, Any]) -> Environment:
    content = {"kind": "jsonl", "path": "unused", "reward": listed}
    return TypeAdapter[Any](Environment).validate_python(content)


async def ask(
    pool: RewardPool,
    environment: Environment,
    completion: str,
    limits: RewardLimits = ROOMY,
    answer: object = 7,
) -> Score:
    messages = (Message(role="user", content="?"),)
    row = Row(source="line 1", messages=messages, fields={"answer": answer})
    return await pool.score(JOB, environment, limits, row, completion, code=None)


async def test_parts_are_summed_and_only_named_tokens_get_there(
    pool: RewardPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 79: a server that is down is a failure; the call that finds it up again has its reward."""
    monkeypatch.setenv("MARLAAS_REWARD_OURS", "ours")
    monkeypatch.setenv("MARLAAS_REWARD_THEIRS", "theirs")
    up = False
    with reward_server(lambda body: as_json({"reward": 0.5}) if up else (503, b"busy")) as server:
        remote = {"url": server.url, "retries": 0, "token_variable": "MARLAAS_REWARD_OURS"}
        environment = parts(
            {"kind": "math-verify", "field": "answer", "name": "right"},
            {"kind": "http", "weight": 2.0, **remote},
            {"kind": "function", "function": "rewards:tokens", "name": "user", "weights": {"seen": 4}},
        )
        down = await ask(pool, environment, "it is 0.5", answer=r"\frac{1}{2}")
        assert down == Score(None, f"RemoteFailure: {server.url} answered with status 503: busy")
        up = True
        score = await ask(pool, environment, "it is 0.5", answer=r"\frac{1}{2}")
        named = {"right": 1.0, "http": 0.5, "user.seen": 1.0, "user.unseen": None}
        assert score == Score(6.0, None, named)
        assert server.asked[0][1]["authorization"] == "Bearer ours"


async def test_a_token_that_the_worker_lacks_refuses_the_environment(pool: RewardPool) -> None:
    http = {"kind": "http", "url": "http://127.0.0.1:9", "token_variable": "MARLAAS_REWARD_NONE"}
    with pytest.raises(InvalidEnvironment, match="which is not set in this worker's environment") as caught:
        await pool.check(JOB, parts(http))
    assert caught.value.path == "environment.reward.0.token_variable"


async def test_the_wall_limit_bounds_all_tries_of_a_server_and_waiting_is_no_cpu_time(
    pool: RewardPool,
) -> None:
    with reward_server(lambda body: None) as server:
        environment = parts({"kind": "http", "url": server.url, "retries": 20, "timeout_seconds": 3600})
        limits = RewardLimits(cpu_seconds=0.5, wall_seconds=1.0, attempts=2)
        score = await ask(pool, environment, "", limits)
        assert score.failure == "no answer in 2 attempts; in the last it took longer than 1 s"
        assert len(server.asked) <= 2


@pytest.mark.parametrize("expression", ["9^{9^{9^{9}}}", "10000000!"])
async def test_mathematics_without_end_is_ended(pool: RewardPool, expression: str) -> None:
    environment = parts({"kind": "math-verify", "field": "answer"})
    short = RewardLimits(cpu_seconds=0.3, wall_seconds=120, memory_mb=512, attempts=2)
    score = await ask(pool, environment, f"${expression}$", short)
    assert score.failure == "used more than 0.3 s of CPU time"
    assert (await ask(pool, environment, "$7$")).reward == 1.0

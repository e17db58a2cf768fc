"""Tenants of one reward pool: one whose rewards hang holds up no other, and a job keeps to its code."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest
from marlaas.environments.invalid import ChangedReward, InvalidEnvironment
from marlaas.environments.scoring import Score
from marlaas.schemas.contract import Digest
from marlaas.schemas.dataset import Message, Row
from marlaas.schemas.environment import JsonlEnvironment, ReasoningGymEnvironment
from marlaas.schemas.job_spec import RewardLimits
from marlaas.schemas.names import JobKey
from marlaas.workers.reward_pool import RewardPool

HANGING, QUICK = JobKey(tenant="hanging", job="a"), JobKey(tenant="quick", job="a")
FOREVER = RewardLimits(wall_seconds=3600, attempts=1)
ENVIRONMENT = JsonlEnvironment(kind="jsonl", path="unused", reward="rewards:reward")
EDITED = JsonlEnvironment(kind="jsonl", path="unused", reward="edited:reward")
ROW = Row(source="line 1", messages=(Message(role="user", content="?"),), fields={})


@asynccontextmanager
async def pool_of(at_once: int) -> AsyncGenerator[RewardPool]:
    pool = RewardPool(at_once, processes=2 * at_once)
    yield pool
    await pool.close()


@contextmanager
def hanging(pool: RewardPool, count: int) -> Generator[list[asyncio.Task[Score]]]:
    """So many scores that do not end by themselves."""
    tasks = [
        asyncio.create_task(pool.score(HANGING, ENVIRONMENT, FOREVER, ROW, "sleep", code=None))
        for _ in range(count)
    ]
    yield tasks
    for task in tasks:
        task.cancel()


async def score(pool: RewardPool, completion: str = "one", code: Digest | None = None) -> float | None:
    return (await pool.score(QUICK, EDITED, RewardLimits(), ROW, completion, code=code)).reward


async def test_a_tenant_whose_rewards_hang_leaves_a_slot_to_the_others() -> None:
    """CASES 14: the hanging ones never end here, so whoever had to wait for one would wait for ever."""
    async with pool_of(2) as pool:
        with hanging(pool, 5) as hung:
            await asyncio.sleep(0)
            for _ in range(3):
                done = await pool.score(QUICK, ENVIRONMENT, RewardLimits(), ROW, "one", code=None)
                assert done == Score(1.0, None)
            assert not any(task.done() for task in hung)
        await asyncio.gather(*hung, return_exceptions=True)


async def test_with_one_slot_a_hanging_score_delays_others_by_one_attempt_only() -> None:
    """CASES 14: the slot is free between the attempts of a score, not only after the last."""
    ended: list[str] = []

    async def run(job: JobKey, limits: RewardLimits, completion: str) -> Score:
        found = await pool.score(job, ENVIRONMENT, limits, ROW, completion, code=None)
        ended.append(job.tenant)
        return found

    async with pool_of(1) as pool:
        limits = RewardLimits(wall_seconds=0.5, attempts=3)
        slow = [asyncio.create_task(run(HANGING, limits, "sleep")) for _ in range(2)]
        await asyncio.sleep(0)
        await run(QUICK, RewardLimits(), "one")
        found = await asyncio.gather(*slow)
    assert ended == ["quick", "hanging", "hanging"]
    assert {one.failure for one in found} == {
        "no answer in 3 attempts; in the last it took longer than 0.5 s"
    }


async def test_a_job_starts_while_every_slot_is_taken() -> None:
    """A check waits for no score, not even for those of its own tenant."""
    async with pool_of(1) as pool:
        with hanging(pool, 3) as hung:
            await asyncio.sleep(0)
            await pool.check(QUICK, ENVIRONMENT)
            await pool.check(JobKey(tenant="hanging", job="b"), ENVIRONMENT)
            assert not any(task.done() for task in hung)
        await asyncio.gather(*hung, return_exceptions=True)


async def test_a_check_beside_a_score_leaves_no_more_processes_than_are_wanted() -> None:
    pool = RewardPool(1, processes=1)
    with hanging(pool, 1) as hung:
        await asyncio.sleep(0)
        await pool.check(QUICK, ENVIRONMENT)
        while len(reward_processes()) > 1:
            await asyncio.sleep(0.01)
    await asyncio.gather(*hung, return_exceptions=True)
    await pool.close()


def reward_processes() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [one for one in children if one.status() != "zombie" and "reward_child" in "".join(one.cmdline())]


class Edited:
    """The file of a reward that is edited while a job runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("def reward(completion, **_): return 0.25\n")

    def write(self, source: str) -> str:
        self.path.write_text(source)
        return hashlib.sha256(source.encode()).hexdigest()


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edited:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return Edited(tmp_path / "edited.py")


async def lose_warm_children(pool: RewardPool) -> None:
    """More of other jobs than the pool keeps."""
    for number in range(2):
        await pool.check(JobKey(tenant="other", job=f"job-{number}"), EDITED)


async def test_a_job_keeps_to_the_code_that_it_began_with(edited: Edited) -> None:
    """CASES 83: told apart from the reward's own failures, and mended by restoring the file."""
    before = edited.path.read_text()
    async with pool_of(1) as pool:
        code = await pool.check(QUICK, EDITED)
        assert code == hashlib.sha256(before.encode()).hexdigest()
        now = edited.write("def reward(completion, **_): return 0.75 # better\n")
        assert await score(pool, code=code) == 0.25, "a warm process has the job's code"
        await lose_warm_children(pool)
        assert code is not None
        with pytest.raises(
            ChangedReward, match=f"the file of edited changed.*{code[:12]} then, {now[:12]} now"
        ):
            await score(pool, code=code)
        edited.write(before)
        assert await score(pool, code=code) == 0.25


async def test_a_warm_process_with_other_code_is_not_asked(edited: Edited) -> None:
    """As when the job's dataset was prepared twice, and the result of the other attempt was recorded."""
    async with pool_of(1) as pool:
        await pool.check(QUICK, EDITED)
        code = edited.write("def reward(completion, **_): return 0.75 # better\n")
        assert await score(pool, code=code) == 0.75


async def test_a_job_that_recorded_no_code_takes_what_is_there(edited: Edited) -> None:
    async with pool_of(1) as pool:
        assert await score(pool) == 0.25
        edited.write("def reward(completion, **_): return 0.75 # better\n")
        await lose_warm_children(pool)
        assert await score(pool) == 0.75


async def test_code_without_a_file_is_not_recorded() -> None:
    async with pool_of(1) as pool:
        builtin = JsonlEnvironment(kind="jsonl", path="unused", reward="builtins:len")
        with pytest.raises(InvalidEnvironment, match="cannot be called"):
            await pool.check(QUICK, builtin)
        loose = JsonlEnvironment(kind="jsonl", path="unused", reward="builtins:dict")
        assert await pool.check(QUICK, loose) is None
        task = ReasoningGymEnvironment(kind="reasoning-gym", task="chain_sum")
        assert await pool.check(QUICK, task) is None


async def test_of_a_package_the_init_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    (tmp_path / "edited").mkdir()
    init = Edited(tmp_path / "edited" / "__init__.py")
    async with pool_of(1) as pool:
        code = await pool.check(QUICK, EDITED)
    assert code == hashlib.sha256(init.path.read_bytes()).hexdigest()

"""The reward pool: every fault stays with its sample, and no process stays behind."""

import asyncio
import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.environments.scoring import Score
from marlaas.schemas.dataset import Message, Row
from marlaas.schemas.environment import Environment, JsonlEnvironment, ReasoningGymEnvironment
from marlaas.schemas.job_spec import RewardLimits
from marlaas.schemas.names import JobKey
from marlaas.workers.reward_pool import RewardPool

TARGETS = Path(__file__).parent / "targets"
JOB = JobKey(tenant="acme", job="sums")
ENVIRONMENT = JsonlEnvironment(kind="jsonl", path="unused", reward="rewards:reward")
ROOMY = RewardLimits(cpu_seconds=30, wall_seconds=120, memory_mb=512, attempts=2)
SHORT = RewardLimits(cpu_seconds=0.3, wall_seconds=120, memory_mb=512, attempts=2)
FIELDS = {"tool": {"args": {"b": None, "c": [1, 2.5]}}}


def row(**fields: Any) -> Row:
    return Row(source="line 1", messages=(Message(role="user", content="?"),), fields={**FIELDS, **fields})


@pytest.fixture(scope="module")
async def shared_pool() -> AsyncIterator[RewardPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TARGETS), prepend=":")
        pool = RewardPool(3, processes=3)
    yield pool
    await pool.close()


@pytest.fixture
def pool(shared_pool: RewardPool, monkeypatch: pytest.MonkeyPatch) -> RewardPool:
    """The pool that has survived every test so far."""
    monkeypatch.setenv("SECRET", "of the worker")
    return shared_pool


async def ask(
    pool: RewardPool,
    completion: str,
    limits: RewardLimits = ROOMY,
    *,
    environment: Environment = ENVIRONMENT,
    job: JobKey = JOB,
    **fields: Any,
) -> Score:
    return await pool.score(job, environment, limits, row(**fields), completion, code=None)


async def reward(pool: RewardPool, completion: str, **options: Any) -> float:
    score = await ask(pool, completion, **options)
    assert score.failure is None
    assert score.reward is not None
    return score.reward


async def failure(pool: RewardPool, completion: str, limits: RewardLimits = ROOMY, **fields: Any) -> str:
    score = await ask(pool, completion, limits, **fields)
    assert score.reward is None
    assert score.failure is not None
    return score.failure


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("one", 1.0),
        ("half", 0.5),
        ("true", 1.0),
        ("false", 0.0),
        ("numpy", 0.25),
        ("numpy bool", 1.0),
        ("fraction", 0.125),
        ("messages", 1.0),
        ("fields", 1.0),
        ("threads", 8.0),
        ("run", 1.0),
        ("allocate some", 1.0),
        ("print", 1.0),
        ("stdin", 1.0),
        ("secret", 0.0),
    ],
)
async def test_rewards(pool: RewardPool, completion: str, expected: float) -> None:
    assert await reward(pool, completion) == expected


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("none", "NoReward: no reward applies to the sample: the reward function returned None"),
        ("nan", "the reward function returned nan; it has to be a finite number of at most 1e+100"),
        ("inf", "the reward function returned -inf; it has to be a finite number of at most 1e+100"),
        ("text", "the reward function returned '1.0'; it has to be a number or None"),
        ("complex", "the reward function returned 1j; it has to be a number or None"),
        ("huge", "which is no number: int too large to convert to float"),
        ("array", "which is no number"),
        ("liar", "which is no number: in __float__"),
        ("raise", "JSONDecodeError: Expecting property name enclosed in double quotes"),
        ("raise", "(rewards.py, line "),
        ("raise escapes", "ValueError: \\x1b[31m red \\x00"),
        ("raise surrogate", "ValueError: half \\ud83d a pair"),
        ("recurse", "RecursionError: maximum recursion depth exceeded"),
    ],
)
async def test_plain_failures_are_told_and_keep_the_process(
    pool: RewardPool, completion: str, text: str
) -> None:
    process = await reward(pool, "pid")
    assert text in await failure(pool, completion)
    assert await reward(pool, "pid") == process


@pytest.mark.parametrize("completion", ["spin", "hold", "catch"])
async def test_cpu_seconds_end_python_and_c_alike_and_at_once(pool: RewardPool, completion: str) -> None:
    process = await reward(pool, "pid")
    assert await failure(pool, completion, SHORT) == "used more than 0.3 s of CPU time"
    assert await reward(pool, "pid") != process


async def test_cpu_seconds_are_of_one_call_and_not_of_waiting(pool: RewardPool) -> None:
    limits = RewardLimits(cpu_seconds=0.2, wall_seconds=120, attempts=1)
    assert await reward(pool, "burn", limits=limits) == 1.0
    process = await reward(pool, "pid")
    for _ in range(5):
        assert await reward(pool, "burn", limits=limits) == 1.0
    assert await reward(pool, "nap", limits=limits) == 1.0
    assert await reward(pool, "pid") == process


async def test_a_reward_that_blocks_the_signal_does_so_for_one_call_only(pool: RewardPool) -> None:
    process = await reward(pool, "pid")
    assert await reward(pool, "block") == 1.0
    assert await reward(pool, "pid") == process
    assert await failure(pool, "spin", SHORT) == "used more than 0.3 s of CPU time"


@pytest.mark.parametrize("completion", ["sleep", "stop"])
async def test_the_wall_limit_ends_what_uses_no_cpu(pool: RewardPool, completion: str) -> None:
    limits = RewardLimits(wall_seconds=0.5, attempts=2)
    assert await failure(pool, completion, limits) == (
        "no answer in 2 attempts; in the last it took longer than 0.5 s"
    )
    assert await reward(pool, "one") == 1.0


async def test_the_memory_limit(pool: RewardPool) -> None:
    process = await reward(pool, "pid")
    text = await failure(pool, "allocate")
    assert text.startswith("needed more than 512 MB of memory: MemoryError")
    assert await reward(pool, "pid") != process


async def test_memory_that_earlier_calls_kept_is_not_this_ones_failure() -> None:
    """Each call keeps 150 MB; the fourth finds no room, and succeeds in a new process."""
    pool = RewardPool(1, processes=1)
    assert [await reward(pool, "hoard") for _ in range(5)] == [1, 2, 3, 1, 2]
    await pool.close()


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("os exit", "exited with code 3"),
        ("kill", "was ended by SIGKILL"),
        ("segfault", "was ended by SIGSEGV; it printed last:\nFatal Python error: Segmentation fault"),
        ("close", "exited with code 1"),
    ],
)
async def test_a_lost_process_is_tried_again_and_then_named(
    pool: RewardPool, completion: str, text: str
) -> None:
    told = await failure(pool, completion)
    assert told.startswith("no answer in 2 attempts; in the last it lost its process, which ")
    assert text in told
    assert await reward(pool, "one") == 1.0


async def test_a_process_lost_once_costs_the_sample_nothing(pool: RewardPool, tmp_path: Path) -> None:
    assert await reward(pool, "fails once", folder=str(tmp_path)) == 1.0
    assert (tmp_path / "attempts").read_text() == "xx"


async def test_attempts_are_bounded(pool: RewardPool, tmp_path: Path) -> None:
    limits = ROOMY.model_copy(update={"attempts": 3})
    assert "no answer in 3 attempts" in await failure(pool, "fails thrice", limits, folder=str(tmp_path))
    assert (tmp_path / "attempts").read_text() == "xxx"


async def test_sys_exit_is_a_failure_at_once(pool: RewardPool) -> None:
    process = await reward(pool, "pid")
    assert (await failure(pool, "exit")).startswith("SystemExit: 3 (rewards.py, line ")
    assert await reward(pool, "pid") != process


async def test_a_changed_directory_does_not_last(pool: RewardPool) -> None:
    process = await reward(pool, "pid")
    assert [await reward(pool, "chdir") for _ in range(3)] == [1.0, 1.0, 1.0]
    assert await reward(pool, "pid") == process


@pytest.mark.parametrize("completion", ["thread", "grandchild", "fork"])
async def test_what_a_reward_leaves_running_ends_with_its_process(
    pool: RewardPool,
    running: Callable[[int], bool],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    completion: str,
) -> None:
    process = await reward(pool, "pid")
    await reward(pool, completion, folder=str(tmp_path))
    assert await reward(pool, "pid") != process
    assert "acme/sums: a reward left " in caplog.text
    if completion == "grandchild":
        grandchild = int((tmp_path / "grandchild").read_text())
        await until(lambda: not running(grandchild))


async def test_the_wall_limit_ends_grandchildren_too(
    pool: RewardPool, running: Callable[[int], bool], tmp_path: Path
) -> None:
    limits = RewardLimits(wall_seconds=1, attempts=1)
    assert "took longer than 1 s" in await failure(pool, "slow grandchild", limits, folder=str(tmp_path))
    grandchild = int((tmp_path / "grandchild").read_text())
    await until(lambda: not running(grandchild))


async def test_faults_are_isolated_to_their_samples(pool: RewardPool) -> None:
    """CASES 80 and 79: the neighbours keep their rewards, and a fault is never a reward of 0."""
    completions = ["one", "raise", "half", "os exit", "one", "spin", "half", "none", "one", "exit"] * 2
    scores = await asyncio.gather(*(ask(pool, completion, SHORT) for completion in completions))
    rewards = {"one": 1.0, "half": 0.5}
    for completion, score in zip(completions, scores, strict=True):
        assert score.reward == rewards.get(completion)
        assert (score.failure is None) == (completion in rewards)


async def test_randomness_depends_on_the_inputs_alone(pool: RewardPool) -> None:
    first = await reward(pool, "random")
    await reward(pool, "hash")
    assert await reward(pool, "random") == first
    assert await reward(pool, "random", other=1) != first
    others = RewardPool(1, processes=1)
    assert await reward(others, "random") == first
    assert await reward(others, "hash") == await reward(pool, "hash")
    await others.close()


async def test_async_rewards(pool: RewardPool) -> None:
    later = JsonlEnvironment(kind="jsonl", path="unused", reward="rewards:later")
    assert [await reward(pool, "", environment=later) for _ in range(3)] == [1.0, 1.0, 1.0]
    text = (await ask(pool, "raise", environment=later)).failure or ""
    assert text.startswith("ValueError: later (rewards.py, line ")


async def test_reasoning_gym_tasks_score_in_the_pool(pool: RewardPool) -> None:
    environment = ReasoningGymEnvironment(
        kind="reasoning-gym", task="chain_sum", pool=3, answer="last-number"
    )
    fields = {"entry": '{"answer":"-7","metadata":{}}'}
    task_row = row(**fields)
    right = await pool.score(JOB, environment, ROOMY, task_row, "so it is -7.", code=None)
    wrong = await pool.score(JOB, environment, ROOMY, task_row, "so it is 9.", code=None)
    assert (right, wrong) == (Score(1.0, None), Score(0.0, None))


async def test_a_process_serves_one_job_and_environment() -> None:
    """Warm processes are kept for the latest two owners; no owner sees another's."""
    pool = RewardPool(1, processes=2)
    neighbour = JobKey(tenant="other", job="sums")
    sibling = JobKey(tenant="acme", job="products")
    later = JsonlEnvironment(kind="jsonl", path="unused", reward="rewards:pid")
    ours = await reward(pool, "pid")
    theirs = await reward(pool, "pid", job=neighbour)
    assert await reward(pool, "pid") == ours
    assert await reward(pool, "pid", job=neighbour) == theirs
    siblings = await reward(pool, "pid", job=sibling)
    anothers = await reward(pool, "pid", environment=later)
    assert len({ours, theirs, siblings, anothers}) == 4
    assert await reward(pool, "pid", job=sibling) == siblings
    assert await reward(pool, "pid") != ours
    await pool.close()


async def test_calls_at_once_and_processes_are_bounded(running: Callable[[int], bool]) -> None:
    pool = RewardPool(3, processes=3)
    jobs = [JobKey(tenant="acme", job=f"job-{index}") for index in range(5)]
    pids = await asyncio.gather(*(reward(pool, "pid", job=jobs[index % 2]) for index in range(40)))
    assert len(set(pids)) <= 3
    pids += [await reward(pool, "pid", job=job) for job in jobs]
    await until(lambda: sum(running(int(pid)) for pid in set(pids)) == 3)
    await pool.close()
    assert not any(running(int(pid)) for pid in pids)


async def test_the_queue_of_one_tenant_does_not_delay_another() -> None:
    pool = RewardPool(1, processes=2)
    busy, quick = JobKey(tenant="busy", job="a"), JobKey(tenant="quick", job="a")
    done: list[str] = []

    async def run(job: JobKey) -> None:
        await reward(pool, "one", job=job)
        done.append(job.tenant)

    queue = [asyncio.create_task(run(busy)) for _ in range(50)]
    await asyncio.sleep(0)
    await run(quick)
    assert done.count("busy") <= 3
    await asyncio.gather(*queue)
    await pool.close()


async def test_cancelled_calls_free_their_slot_and_end_their_process(
    pool: RewardPool, running: Callable[[int], bool], tmp_path: Path
) -> None:
    slow = [asyncio.create_task(ask(pool, "slow grandchild", folder=str(tmp_path))) for _ in range(2)]
    queued = [asyncio.create_task(ask(pool, "one")) for _ in range(3)]
    await until(lambda: (tmp_path / "grandchild").exists() and (tmp_path / "grandchild").read_text() != "")
    for task in [*slow, *queued[:2]]:
        task.cancel()
    outcomes = await asyncio.gather(*slow, *queued[:2], return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert await queued[2] == Score(1.0, None)
    assert await asyncio.gather(*(reward(pool, "one") for _ in range(4))) == [1.0] * 4
    grandchild = int((tmp_path / "grandchild").read_text())
    await until(lambda: not running(grandchild))


async def test_a_warm_process_that_died_while_idle_costs_nothing(pool: RewardPool) -> None:
    once = ROOMY.model_copy(update={"attempts": 1})
    pid = int(await reward(pool, "pid"))
    os.kill(pid, 9)
    await until(lambda: not Path(f"/proc/{pid}").exists())
    assert await reward(pool, "one", limits=once) == 1.0


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            "import no_such_library",
            "importing it failed: ModuleNotFoundError: No module named 'no_such_library'",
        ),
        ("raise KeyError('k')", r"KeyError: 'k' \(bad_reward.py, line 1: raise KeyError\('k'\)\)"),
        ("def reward(", "SyntaxError"),
        ("import sys; sys.exit(2)", "SystemExit: 2"),
        ("import os; os._exit(4)", "importing it ends the process: it exited with code 4"),
        (
            "import ctypes; ctypes.string_at(0)",
            "was ended by SIGSEGV; it printed last:\nFatal Python error",
        ),
        ("print('about to'); import os; os.abort()", "it was ended by SIGABRT; it printed last:\nabout to"),
        ("while True: pass", "importing it uses more than 1 s of CPU time"),
        ("import time; time.sleep(600)", "importing it takes longer than 3 s"),
        ("", "has nothing of that name"),
    ],
)
async def test_a_reward_that_cannot_be_loaded_is_the_jobs_failure_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, problem: str
) -> None:
    (tmp_path / "bad_reward.py").write_text(source)
    (tmp_path / "sitecustomize.py").write_text(
        "from marlaas.workers import reward_child\nreward_child.LOAD_CPU_SECONDS = 1\n"
        if "while" in source
        else ""
    )
    monkeypatch.setattr("marlaas.workers.reward_pool.LOAD_CPU_SECONDS", 1)
    monkeypatch.setattr("marlaas.workers.reward_pool._LOAD_WALL_SECONDS", 3 if "sleep" in source else 300)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    pool = RewardPool(1, processes=1)
    environment = JsonlEnvironment(kind="jsonl", path="unused", reward="bad_reward:reward")
    with pytest.raises(InvalidEnvironment, match=problem) as caught:
        await ask(pool, "one", environment=environment)
    assert caught.value.path == "environment.reward"
    await pool.close()


async def test_check_keeps_the_process_warm(pool: RewardPool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await pool.check(JOB, ENVIRONMENT)
    first = await reward(pool, "pid")
    assert await reward(pool, "pid") == first
    unknown = ReasoningGymEnvironment(kind="reasoning-gym", task="chain_sun")
    with pytest.raises(InvalidEnvironment, match="did you mean"):
        await pool.check(JOB, unknown)


PARENT = """
import asyncio, sys
from marlaas.schemas.dataset import Message, Row
from marlaas.schemas.environment import JsonlEnvironment
from marlaas.schemas.job_spec import RewardLimits
from marlaas.schemas.names import JobKey
from marlaas.workers.reward_pool import RewardPool

async def main():
    pool = RewardPool(1, processes=1)
    job = JobKey(tenant="acme", job="sums")
    environment = JsonlEnvironment(kind="jsonl", path="unused", reward="rewards:reward")
    row = Row(source="1", messages=(Message(role="user", content="?"),), fields={"folder": sys.argv[1]})
    score = await pool.score(job, environment, RewardLimits(), row, "pid", code=None)
    print(int(score.reward), flush=True)
    await pool.score(job, environment, RewardLimits(cpu_seconds=1000), row, sys.argv[2], code=None)

asyncio.run(main())
"""


@pytest.mark.parametrize("completion", ["slow grandchild", "hold", "stop"])
def test_nothing_outlives_a_worker_killed_with_9(
    running: Callable[[int], bool], tmp_path: Path, completion: str
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path), completion],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline())]
    if completion == "slow grandchild":
        while not (tmp_path / "grandchild").exists() or not (tmp_path / "grandchild").read_text():
            time.sleep(0.01)
        pids.append(int((tmp_path / "grandchild").read_text()))
    time.sleep(0.2)
    assert all(running(pid) for pid in pids)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while any(running(pid) for pid in pids):
        time.sleep(0.01)

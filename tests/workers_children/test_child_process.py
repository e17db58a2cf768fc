"""The child runtime: what a parent and its children say to one another, and that none outlives the other."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from marlaas.workers.child_process import ChildDied, ChildError, ChildProcess
from marlaas.workers.child_runtime import MAX_FRAME, FrameTooLong
from pydantic import BaseModel

Running = Callable[[int], bool]


@pytest.fixture
async def child() -> AsyncIterator[ChildProcess]:
    process = ChildProcess.start("child_targets:plain")
    yield process
    await process.close()
    assert not process.alive


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what must happen; the test's own time limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.01)


async def test_call_returns_the_reply(child: ChildProcess) -> None:
    class Sum(BaseModel):
        a: int
        b: int

    assert await child.call("add", {"a": 2, "b": 3}) == 5
    assert await child.call("add", Sum(a=4, b=5)) == 9
    values: list[Any] = [None, [], "\x00 ü 🙂 \ud800", 0.1 + 0.2, 2**80, -0.0, {"a": [1, {"b": None}]}]
    for value in values:
        assert await child.call("echo", {"value": value}) == value


async def test_floats_cross_unchanged(child: ChildProcess) -> None:
    values = [1e-310, 1e308, -1.7976931348623157e308, 0.1, 1 / 3, float("inf"), float("-inf")]
    assert await child.call("echo", {"value": values}) == values


async def test_frames_of_ten_megabytes(child: ChildProcess) -> None:
    text = "é0123456" * (10 * 2**20 // 9)
    numbers = list(range(200_000))
    got = await asyncio.gather(
        child.call("echo", {"value": text}),
        child.call("echo", {"value": numbers}),
        child.call("echo", {"value": 1}),
    )
    assert got == [text, numbers, 1]


async def test_a_payload_over_the_limit_is_refused_and_harms_nothing(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.workers.child_runtime.MAX_FRAME", 1000)
    with pytest.raises(FrameTooLong, match="at most 1000 fit"):
        await child.call("echo", {"value": "x" * 1000})
    assert MAX_FRAME > 10 * 2**20
    assert await child.call("echo", {"value": 1}) == 1


async def test_many_concurrent_calls_get_their_own_replies(child: ChildProcess) -> None:
    sums = await asyncio.gather(*(child.call("add", {"a": i, "b": i}) for i in range(2000)))
    assert sums == [2 * i for i in range(2000)]


async def test_exceptions_cross_with_type_message_and_traceback(child: ChildProcess) -> None:
    with pytest.raises(ChildError, match=r"^ValueError: no good \ud800$") as caught:
        await child.call("raise", {"message": "no good \ud800"})
    assert (caught.value.type, caught.value.message) == ("ValueError", "no good \ud800")
    assert "child_targets.py" in caught.value.traceback
    with pytest.raises(ChildError, match="_UnprintableError: <str"):
        await child.call("raise_unprintable", {})
    with pytest.raises(ChildError, match="TypeError: Object of type object is not JSON serializable"):
        await child.call("unsendable", {})
    with pytest.raises(ChildError, match=r"LookupError: .*no method 'nothing'; there are add, close"):
        await child.call("nothing", {})
    assert await child.call("echo", {"value": 1}) == 1


async def test_printing_reaches_the_log_and_no_frame(
    child: ChildProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "marlaas.workers.child_output")
    text = "a line\nanother \x1b[31mred\x1b[0m"
    assert await child.call("print", {"text": text}) == "printed"
    assert await child.call("echo", {"value": 1}) == 1
    await until(lambda: "hello raw bytes" in caplog.text)
    assert "another" in caplog.text
    assert "\x1b" not in caplog.text.replace(text, "")
    assert f"child_targets:plain[{child.pid}]" in caplog.text


async def test_a_flood_of_output_is_drained_and_logged_in_part(
    child: ChildProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "marlaas.workers.child_output")
    assert await child.call("print", {"text": "y" * 99 + "\n" + ("x" * 99 + "\n") * 50_000}) == "printed"
    await until(lambda: "the log lacks some of it" in caplog.text)
    assert len(caplog.text) < 2**20


@pytest.mark.parametrize(
    ("method", "payload", "exit_code", "signal_number", "text"),
    [
        ("exit", {"code": 7}, 7, None, "exited with code 7"),
        ("exit", {"code": 0}, 0, None, "exited with code 0"),
        ("signal", {"signal": signal.SIGKILL}, None, signal.SIGKILL, "was ended by SIGKILL"),
        ("signal", {"signal": signal.SIGPROF}, None, signal.SIGPROF, "was ended by SIGPROF"),
        ("signal", {"signal": 40}, None, 40, "was ended by signal 40"),
    ],
)
async def test_a_death_fails_every_request_in_flight(
    child: ChildProcess,
    method: str,
    payload: dict[str, Any],
    exit_code: int | None,
    signal_number: int | None,
    text: str,
) -> None:
    await child.call("print", {"text": "famous last words"})
    calls = [child.call(method, payload), *(child.call("echo", {"value": i}) for i in range(20))]
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, ChildDied)
        assert (outcome.exit_code, outcome.signal) == (exit_code, signal_number)
        assert text in str(outcome)
        assert "famous last words" in outcome.output
    assert not child.alive
    with pytest.raises(ChildDied, match=text):
        await child.call("echo", {"value": 1})


async def test_segmentation_fault_shows_the_python_line(child: ChildProcess) -> None:
    with pytest.raises(ChildDied, match="SIGSEGV") as caught:
        await child.call("signal", {"signal": signal.SIGSEGV})
    assert "child_targets.py" in caught.value.output


async def test_replies_sent_before_the_death_still_count(child: ChildProcess) -> None:
    first = asyncio.create_task(child.call("echo", {"value": "x" * 10**6}))
    second = asyncio.create_task(child.call("exit", {"code": 1}))
    assert await first == "x" * 10**6
    with pytest.raises(ChildDied):
        await second


async def test_a_target_that_cannot_be_imported_says_so() -> None:
    child = ChildProcess.start("no_such_module:run")
    with pytest.raises(ChildDied, match="No module named 'no_such_module'"):
        await child.call("echo", {})
    await child.close()


async def test_kill_ends_a_child_that_holds_the_interpreter_lock(child: ChildProcess) -> None:
    assert await child.call("echo", {"value": 1}) == 1
    held = asyncio.create_task(child.call("hold", {}))
    await asyncio.sleep(0.1)
    child.kill()
    with pytest.raises(ChildDied, match="SIGKILL"):
        await held


async def test_a_closed_connection_or_garbage_ends_the_child(
    child: ChildProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ChildDied):
        await child.call("close", {})
    other = ChildProcess.start("child_targets:plain")
    with pytest.raises(ChildDied, match="SIGKILL"):
        await other.call("garbage", {})
    assert "sent what is no frame" in caplog.text
    await other.close()


async def test_a_fork_that_comes_back_answers_nothing(child: ChildProcess) -> None:
    assert await child.call("fork_returns", {}) == "parent"
    assert [await child.call("echo", {"value": i}) for i in range(50)] == list(range(50))


@pytest.mark.parametrize("method", ["grandchild", "stubborn_grandchild"])
@pytest.mark.parametrize("ending", ["kill", "exit"])
async def test_grandchildren_end_with_the_child(
    child: ChildProcess, running: Running, method: str, ending: str
) -> None:
    grandchild = await child.call(method, {})
    assert running(grandchild)
    if ending == "kill":
        child.kill()
    with pytest.raises(ChildDied):
        await child.call("exit", {"code": 1})
    await until(lambda: not running(grandchild))


async def test_streams_interleave_and_end() -> None:
    child = ChildProcess.start("child_targets:interleaving")

    async def collect(name: int, count: int) -> list[Any]:
        return [reply async for reply in child.stream("count", {"name": name, "count": count})]

    collected = await asyncio.gather(*(collect(name, 10 * name) for name in range(20)))
    assert collected == [[[name, i] for i in range(10 * name)] for name in range(20)]
    await child.close()


async def test_cancellation_reaches_the_child_and_spares_the_others() -> None:
    child = ChildProcess.start("child_targets:interleaving")
    endless = 10**9
    other = asyncio.create_task(anext(child.stream("count", {"name": 9, "count": endless})))
    async with contextlib.aclosing(child.stream("count", {"name": 1, "count": endless})) as replies:
        assert await anext(replies) == [1, 0]
    task = asyncio.create_task(child.call("count", {"name": 2, "count": endless}))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while set(await child.call("cancelled", {})) < {1, 2}:
        await asyncio.sleep(0.01)
    assert await other == [9, 0]
    assert child.alive
    await child.close()


async def test_a_request_cancelled_before_its_turn_is_never_begun(child: ChildProcess) -> None:
    assert await child.call("echo", {"value": 1}) == 1
    slow = asyncio.create_task(child.call("sleep", {"seconds": 1}))
    await asyncio.sleep(0.05)
    deadly = asyncio.create_task(child.call("exit", {"code": 1}))
    await asyncio.sleep(0.05)
    deadly.cancel()
    await slow
    assert await child.call("echo", {"value": 1}) == 1


async def test_receive_times_out() -> None:
    child = ChildProcess.start("child_targets:timing_out")
    while not await child.call("any", {}):
        await asyncio.sleep(0.05)
    await child.close()


async def test_env_is_all_that_the_child_sees() -> None:
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH")}
    child = ChildProcess.start("child_targets:plain", env={**env, "COLOUR": "blue"})
    assert set(await child.call("environment", {})) - {"LC_CTYPE"} == {"PATH", "PYTHONPATH", "COLOUR"}
    await child.close()


async def test_interrupts_do_not_reach_the_child(child: ChildProcess) -> None:
    assert await child.call("echo", {"value": 1}) == 1
    assert os.getsid(child.pid) == child.pid
    os.kill(child.pid, signal.SIGINT)
    assert await child.call("echo", {"value": 1}) == 1


async def test_a_stopped_child_is_killed() -> None:
    child = ChildProcess.start("child_targets:plain", silence_seconds=2)
    assert await child.call("echo", {"value": 1}) == 1
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(ChildDied, match="was ended by SIGKILL after 2 s without a sign of life"):
        await child.call("echo", {"value": 1})


async def test_a_child_that_holds_its_interpreter_is_killed() -> None:
    child = ChildProcess.start("child_targets:plain", silence_seconds=2)
    with pytest.raises(ChildDied, match="without a sign of life"):
        await child.call("hold", {})


async def test_a_child_that_works_for_long_gives_signs_of_life() -> None:
    child = ChildProcess.start("child_targets:plain", silence_seconds=2)
    await child.call("sleep", {"seconds": 4})
    assert child.alive
    await child.close()


async def test_only_the_main_thread_may_start_children() -> None:
    faults: list[BaseException] = []

    async def start() -> None:
        ChildProcess.start("child_targets:plain")

    def in_thread() -> None:
        try:
            asyncio.run(start())
        except RuntimeError as fault:
            faults.append(fault)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert "main thread" in str(faults[0])


def test_the_end_of_the_event_loop_ends_the_child(running: Running) -> None:
    async def start() -> int:
        child = ChildProcess.start("child_targets:plain")
        await child.call("echo", {"value": 1})
        return child.pid

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        pid = runner.run(start())
    assert not running(pid)


PARENT = """
import asyncio, os, sys
from marlaas.workers.child_process import ChildProcess

async def main():
    child = ChildProcess.start("child_targets:plain")
    grandchildren = [await child.call("grandchild", {}), await child.call("stubborn_grandchild", {})]
    print(child.pid, *grandchildren, flush=True)
    await child.call(sys.argv[1], {"seconds": 600})

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "holds the interpreter lock", "stopped"])
def test_nothing_outlives_a_parent_killed_with_9(running: Running, state: str) -> None:
    method = "hold" if state == "holds the interpreter lock" else "sleep"
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), method], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    assert all(running(pid) for pid in pids)
    time.sleep(0.2)
    if state == "stopped":
        os.kill(pids[0], signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while any(running(pid) for pid in pids):
        time.sleep(0.01)


def test_a_child_that_is_still_starting_ends_with_its_parent(running: Running) -> None:
    script = """
        import asyncio, os, signal
        from marlaas.workers.child_process import ChildProcess

        async def main():
            print(ChildProcess.start("child_targets:plain").pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """
    parent = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, check=False
    )
    child = int(parent.stdout)
    while running(child):
        time.sleep(0.01)

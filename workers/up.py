"""`up`, in the foreground or the background, and `down`. As a program: the supervisor in the background."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from .data_lock import locked
from .free_disk import FREE_DISK_LIMIT
from .log_files import tail
from .processes import ProcessIdentity
from .settings import Addresses, Settings
from .stack_file import StackError, read_stack, write_stack
from .supervisor import Supervisor, WorkerCommand, end_survivors

_DOWN_SECONDS = 60.0
"""More than the supervisor takes to stop its workers and servers."""
_KILL_SECONDS = 10.0

_log = logging.getLogger(__name__)


class UpPlan(BaseModel):
    """What `up` starts; see `Supervisor`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: Settings
    workers: tuple[WorkerCommand, ...] = ()
    free_disk_limit: int = FREE_DISK_LIMIT
    well_known_ports: bool = False


def up(
    plan: UpPlan, *, report: Callable[[str], None], started: Callable[[Addresses], Awaitable[None]]
) -> None:
    """Runs the stack until SIGINT, SIGTERM or SIGHUP, then stops all of it.

    It does not follow its parent, and no hang-up when those are ignored: `nohup marlaas up &` goes on.

    Args:
        report: is given a line for people when something happened.
        started: is called once all servers work, and awaited.

    Raises:
        StackError: when the stack cannot be started, or a server died and cannot be started again;
            everything is stopped by then.
    """
    asyncio.run(_up(plan, report, started))


async def _up(
    plan: UpPlan, report: Callable[[str], None], started: Callable[[Addresses], Awaitable[None]]
) -> None:
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, interrupted.set)
    serving = asyncio.create_task(_serve(plan, report, started))
    interruption = asyncio.create_task(interrupted.wait())
    await asyncio.wait({serving, interruption}, return_when=asyncio.FIRST_COMPLETED)
    interruption.cancel()
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


async def _serve(
    plan: UpPlan, report: Callable[[str], None], started: Callable[[Addresses], Awaitable[None]]
) -> None:
    supervisor = Supervisor(
        plan.settings,
        plan.workers,
        free_disk_limit=plan.free_disk_limit,
        well_known_ports=plan.well_known_ports,
        report=report,
    )
    async with supervisor.running() as addresses:
        await started(addresses)
        await supervisor.failure()


def up_in_background(plan: UpPlan) -> Addresses:
    """Starts a supervisor that goes on when this process ends; returns once all servers work.

    When this process ends earlier, so does the supervisor.

    Raises:
        StackError: as `up`.
    """
    logs = plan.settings.data / "logs"
    plan.settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs.mkdir(exist_ok=True)
    with (logs / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(plan.model_dump_json().encode())
        line = process.stdout.readline()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        process.stdout.close()
    answer = json.loads(line or "null")
    if answer is None:
        status = process.wait()
        raise StackError(f"The supervisor ended with status {status}:\n{tail(logs / 'supervisor.log')}")
    if "error" in answer:
        process.wait()
        raise StackError(answer["error"])
    return Addresses(**answer["addresses"])


def down(data: Path) -> bool:
    """Stops the stack that runs in a data folder, wherever it was started, and what an earlier one left.

    Returns:
        whether one was running.

    Raises:
        StackError: when it does not end.
    """
    signalled: set[ProcessIdentity] = set()
    deadline = time.monotonic() + _DOWN_SECONDS
    while (stack := read_stack(data)) is not None:
        if stack.is_supervised and stack.supervisor not in signalled:
            stack.supervisor.send(signal.SIGTERM)
            signalled.add(stack.supervisor)
        try:
            with locked(data):
                _clear(data)
            break
        except StackError:
            if time.monotonic() > deadline + _KILL_SECONDS:
                raise
        if time.monotonic() > deadline:
            for supervisor in signalled:
                supervisor.send(signal.SIGKILL)
        time.sleep(0.05)
    for supervisor in signalled:
        supervisor.ends_within(_KILL_SECONDS)
    return bool(signalled)


def _clear(data: Path) -> None:
    """Makes sure that no process is left. For the holder of the data folder's lock."""
    stack = read_stack(data)
    if stack is not None and stack.state != "stopped":
        end_survivors(stack)
        write_stack(data, stack.model_copy(update={"state": "stopped", "processes": ()}))


def main() -> None:
    """The supervisor in the background: reads its plan from stdin, writes one line of JSON to stdout.

    The line has `addresses` once all servers work, or `error`. When nobody reads it, the one who wanted
    the stack is gone, and it is stopped.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    def answer(**content: Any) -> None:
        sys.stdout.write(json.dumps(content) + "\n")
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    has_started = False

    async def started(addresses: Addresses) -> None:
        nonlocal has_started
        answer(addresses=asdict(addresses))
        has_started = True

    plan = UpPlan.model_validate_json(sys.stdin.buffer.read())
    try:
        up(plan, report=_log.info, started=started)
    except StackError as error:
        _log.error("%s", error)
        if not has_started:
            answer(error=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()

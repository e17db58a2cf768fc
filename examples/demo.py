"""`make demo`: servers, workers and one job in this process tree, from nothing to a trained adapter.

Ctrl-C at any moment stops all of it, and so does the end of its terminal or of the `make` that started
it. A later run starts a job of its own.
"""

import os
import signal

_PARENT = os.getppid()  # before the imports, which take a second in which it may end
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ctrl-C in that second has nothing to stop

import argparse
import asyncio
import contextlib
import itertools
import re
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from marlaas.client import Client, connect
from marlaas.job import Job
from marlaas.jobs.errors import JobExists
from marlaas.jobs.job_file import read_job_file
from marlaas.schemas.job_spec import parse_job_spec
from marlaas.terminal.expected_errors import exit_code
from marlaas.terminal.following import show
from marlaas.terminal.foreground import endings_call
from marlaas.terminal.report import gather_report, print_report
from marlaas.terminal.stack import worker_commands, workers_ready
from marlaas.terminal.tables import make_console
from marlaas.workers.settings import load_settings
from marlaas.workers.supervisor import Supervisor

T = TypeVar("T")

_INTERRUPTED = 130


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal was closed
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


async def demo(config: Path, seed: int, data: Path) -> int:
    """Runs the job of a job file, with its name numbered and its seed replaced; returns an exit code.

    Raises:
        StackError, JobError, InvalidJobSpec: when the demo cannot be run.
    """
    begun = datetime.now(UTC)
    content = read_job_file(config)
    parse_job_spec(content)
    settings = load_settings(data=data)
    _say(f"starting Temporal, NATS, SeaweedFS and three workers in {settings.data}")
    supervisor = Supervisor(settings, worker_commands(), report=_say)
    async with supervisor.running() as addresses, await connect(addresses) as client:
        await _end_interrupted(client, content)
        await _unless_failed(supervisor, workers_ready(client, settings.data))
        job = await _submit(client, content, seed)
        _say(f"job {job.key} of {config} is started, with seed {seed}; logs are in {settings.data / 'logs'}")
        last = await _unless_failed(supervisor, show(job))
        if last is None or last.result is None:
            return 1
        out = settings.data / "exports" / job.key.tenant / job.key.job
        exported = await job.export(out)
        report = await gather_report(client, job, begun)
    _say("")
    print_report(report, make_console())
    _say(f"\nversion {exported.version} of the adapter, for PEFT: {out}")
    _say(report.result_line)
    return 0


async def _end_interrupted(client: Client, content: dict[str, Any]) -> None:
    """Ends what an earlier demo left behind when it was interrupted: it would share the machine."""
    numbered = re.compile(rf"{re.escape(content['job'])}-\d+")
    for snapshot in await client.jobs(content["tenant"]):
        if not snapshot.is_over and numbered.fullmatch(snapshot.job.job):
            _say(f"job {snapshot.job} of an interrupted demo is ended")
            handle = client.connection.temporal.get_workflow_handle(snapshot.job.workflow_id)
            await handle.terminate(reason="another demo was started")


async def _submit(client: Client, content: dict[str, Any], seed: int) -> Job:
    """Starts the job under the first number that is free."""
    for number in itertools.count(1):
        try:
            return await client.submit({**content, "job": f"{content['job']}-{number}", "seed": seed})
        except JobExists:
            continue
    raise AssertionError("numbers do not end")


async def _unless_failed(supervisor: Supervisor, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; raises StackError when a server cannot be kept running meanwhile."""
    task, failure = asyncio.ensure_future(work), asyncio.ensure_future(supervisor.failure())
    try:
        await asyncio.wait({task, failure}, return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            failure.result()
        return await task
    finally:
        task.cancel()
        failure.cancel()
        await asyncio.gather(task, failure, return_exceptions=True)


async def _interruptible(work: Coroutine[Any, Any, int], parent: int) -> int:
    task = asyncio.ensure_future(work)
    try:
        with endings_call(task.cancel, parent=parent):
            return await task
    except asyncio.CancelledError:
        _say("interrupted; everything is stopped")
        return _INTERRUPTED


def main() -> NoReturn:
    """Runs the demo and ends the process: see `marlaas.cli.main` for why so abruptly."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Runs one job from nothing.")
    parser.add_argument(
        "--config", type=Path, default=Path(__file__).with_name("sums.yaml"), help="a job file"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=Path(".marlaas"), help="folder of the stack")
    given = parser.parse_args()
    try:
        code = asyncio.run(_interruptible(demo(given.config, given.seed, given.data), _PARENT))
    except Exception as error:
        expected = exit_code(error)
        if expected is None:
            raise
        sys.stderr.write(f"error: {error}\n")
        code = expected
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

"""Keeps one program running: starts it, waits until it is ready, starts it again when it dies."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .child import Child
from .log_files import tail
from .ports import taken_port
from .processes import ProcessIdentity
from .stack_file import ProcessRecord, StackError

_START_SECONDS = 60.0
"""A program that is not ready after so long is ended, and counts as a failed start."""
_MAX_FAILED_STARTS = 4
"""In a row; then a program that the stack needs fails the stack."""
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 10.0
"""Seconds before the next start; doubled with each failed start."""


@dataclass(frozen=True)
class Program:
    """How a program is started and what is expected of it.

    Attributes:
        argv: the program's path and arguments.
        folder: working directory.
        environment: all of its variables.
        log: gets its output.
        ports: that it listens on.
        address: what others connect to; None when nobody does.
        ready: returns once the program does its work; waits as long as that takes.
        essential: the stack fails when it cannot be started.
        stop_seconds: from SIGTERM to SIGKILL.
        prepare: called before every start; None when there is nothing to do.
        leftovers: files outside the data folder that it leaves behind, to be deleted after its end.
    """

    name: str
    argv: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    log: Path
    ports: tuple[int, ...]
    address: str | None
    ready: Callable[[], Awaitable[None]]
    essential: bool
    stop_seconds: float
    prepare: Callable[[], None] | None = None
    leftovers: tuple[Path, ...] = ()


class Keeper:
    """Runs a program until it is stopped.

    Args:
        report: is given a line for people when something happened.
        changed: is called after every change of `record`.
    """

    def __init__(self, program: Program, report: Callable[[str], None], changed: Callable[[], None]) -> None:
        self._program = program
        self._report = report
        self._changed = changed
        self._child: Child | None = None
        self._state: Literal["starting", "running", "waiting", "stopped"] = "stopped"
        self._identity: ProcessIdentity | None = None
        self._restarts = 0
        self._is_ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def record(self) -> ProcessRecord:
        """What `stack.json` says about the process."""
        return ProcessRecord(
            name=self._program.name,
            identity=self._identity,
            state=self._state,
            restarts=self._restarts,
            address=self._program.address,
        )

    def start(self) -> asyncio.Task[None]:
        """Begins to keep the program running.

        Returns:
            a task that ends only by failing, with StackError, when an essential program cannot be
            started.
        """
        self._task = asyncio.create_task(self._keep(), name=self._program.name)
        return self._task

    async def ready(self) -> None:
        """Returns when the program runs and is ready.

        Raises:
            StackError: when it cannot be started.
        """
        assert self._task is not None, "start() comes first"
        waiting = asyncio.create_task(self._is_ready.wait())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._task.done():
            self._task.result()

    def kill(self) -> None:
        """Ends the process with SIGKILL, for tests of what happens then. `ready` waits for the next one."""
        self._is_ready.clear()
        if self._identity is not None:
            self._identity.send(signal.SIGKILL)

    async def stop(self) -> None:
        """Ends the process and everything in its session."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, StackError):
                await self._task
        if self._child is not None:
            if not await self._child.stop(self._program.stop_seconds):
                name, seconds = self._program.name, self._program.stop_seconds
                self._report(f"{name}: it did not end within {seconds:.0f} s of SIGTERM, and was killed")
            self._delete_leftovers()
        self._set("stopped", None)

    async def _keep(self) -> None:
        failed_starts = 0
        while True:
            was_ready, failure = await self._run_once()
            self._is_ready.clear()
            failed_starts = 0 if was_ready else failed_starts + 1
            self._report(f"{self._program.name}: {failure}")
            if self._program.essential and failed_starts == _MAX_FAILED_STARTS:
                raise StackError(f"{self._program.name} cannot be started: {failure}")
            self._set("waiting", None)
            await asyncio.sleep(min(_FIRST_DELAY * 2 ** max(0, failed_starts - 1), _LONGEST_DELAY))
            self._restarts += 1

    async def _run_once(self) -> tuple[bool, str]:
        """Runs a process from its start to its death; says whether it got ready, and why it is no more."""
        if (taken := taken_port(self._program.ports)) is not None:
            return False, f"{taken}; end that process, or use another data folder"
        program = self._program
        try:
            program.folder.mkdir(parents=True, exist_ok=True)
            if program.prepare is not None:
                program.prepare()
            child = self._child = await Child.start(
                program.argv, folder=program.folder, environment=program.environment, log=program.log
            )
        except OSError as error:
            return False, f"it could not be started: {error}"
        self._set("starting", child.identity)
        death = asyncio.ensure_future(child.end())
        try:
            was_ready = await self._gets_ready(death)
            if was_ready:
                self._is_ready.set()
                self._set("running", child.identity)
                self._report(f"{program.name}: ready" + (f" on {program.address}" if program.address else ""))
                await death
            failure = self._failure(death.result() if death.done() else None)
        finally:
            death.cancel()
        child.kill()
        await child.end()
        self._delete_leftovers()
        return was_ready, failure

    async def _gets_ready(self, death: asyncio.Future[int]) -> bool:
        """Whether the program gets ready before it dies, and in time."""
        ready = asyncio.ensure_future(self._program.ready())
        try:
            await asyncio.wait({death, ready}, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            # When it has died, what answered was not it.
            if death.done() or not ready.done():
                return False
            ready.result()
            return True
        finally:
            ready.cancel()

    def _failure(self, status: int | None) -> str:
        if status is not None and status < 0:
            return f"it was ended by {signal.Signals(-status).name}"
        what = (
            f"it was not ready after {_START_SECONDS:.0f} s"
            if status is None
            else f"it ended with status {status}"
        )
        return f"{what}; the end of {self._program.log}:\n{tail(self._program.log)}"

    def _delete_leftovers(self) -> None:
        for path in self._program.leftovers:
            path.unlink(missing_ok=True)

    def _set(
        self, state: Literal["starting", "running", "waiting", "stopped"], identity: ProcessIdentity | None
    ) -> None:
        self._state, self._identity = state, identity
        self._changed()

"""A child process in a session of its own that does not outlive this process."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .processes import ProcessIdentity

_DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")


class Child:
    """A program that was started. A terminal's ctrl-C does not reach its session.

    Attributes:
        identity: None when it had ended before it could be looked at.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.identity = ProcessIdentity.of(process.pid)

    @classmethod
    async def start(
        cls, argv: tuple[str, ...], *, folder: Path, environment: Mapping[str, str], log: Path
    ) -> "Child":
        """Starts a program, its output appended to `log`. For the main thread: see `die_with_parent`.

        Raises:
            OSError: when the folder, the log or a process cannot be had. That the program cannot be run
                shows as its end, with the reason in the log.
        """
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_DIE_WITH_PARENT), str(os.getpid()), *argv),
                cwd=folder,
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(process)

    async def end(self) -> int:
        """Waits for its end; returns the status, negative for a signal."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kills the process and everything in its group.

        Also when the process itself has ended: no stranger can have the group's number, which the kernel
        gives to nobody while a member lives.
        """
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self, seconds: float) -> bool:
        """Asks the process to end, kills it when it has not after `seconds`, and what it left behind.

        Returns:
            whether it ended by itself.
        """
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
        ended = self._process.returncode is not None
        self.kill()
        await self._process.wait()
        return ended

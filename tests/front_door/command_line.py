"""The program `marlaas` as a process, in a pipe or on a terminal."""

import asyncio
import os
import pty
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs `marlaas` in a folder, with these variables besides the test's."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self._environment = {**os.environ, **variables, "COLUMNS": "100", "TERM": "xterm"}

    async def __call__(self, *arguments: str) -> Ended:
        """Runs a command to its end, with its output in pipes."""
        process = await self.start(*arguments)
        out, err = await process.communicate()
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), err.decode())

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """Starts a command with its output in pipes."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "marlaas", *arguments),
            cwd=self.folder,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def on_terminal(
        self, *arguments: str, interrupt_at: str | None = None, answers: Mapping[str, str] | None = None
    ) -> Ended:
        """Runs a command on a terminal of its own; ctrl-C is pressed once the text was seen, and each answer
        is given once its question was."""
        unasked = dict(answers or {})
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "marlaas", *arguments),
            cwd=self.folder,
            env=self._environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown = ""
        loop = asyncio.get_running_loop()
        while data := await loop.run_in_executor(None, _read, ours):
            shown += data.decode(errors="replace")
            if interrupt_at is not None and interrupt_at in shown:
                process.send_signal(signal.SIGINT)
                interrupt_at = None
            for question in [one for one in unasked if one in shown]:
                os.write(ours, unasked.pop(question).encode() + b"\n")
        os.close(ours)
        return Ended(await process.wait(), shown, "")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""

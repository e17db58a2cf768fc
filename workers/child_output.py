"""What a child process prints: passed on to the worker's log, its end kept for the report of a death."""

import asyncio
import logging

_log = logging.getLogger(__name__)
_KEPT = 4096
_LOGGED_PER_SECOND = 1 << 16


class ChildOutput(asyncio.Protocol):
    """Reads a child's standard output and error from one pipe.

    All of it is read, so that the child never waits for us; of what comes faster than 64 KiB a second
    the log gets a part only, so that a child that prints without end fills no disk.

    Attributes:
        closed: done once nobody holds the pipe's other end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._end = b""
        self._line = b""
        self._second = 0
        self._logged = 0
        self.closed = asyncio.get_running_loop().create_future()

    def last_lines(self) -> str:
        """The last printed lines, at most 4 KiB, with control characters replaced."""
        return "\n".join(_printable(line) for line in self._end.splitlines() if line.strip())

    def data_received(self, data: bytes) -> None:
        self._end = (self._end + data)[-_KEPT:]
        lines = (self._line + data[:_LOGGED_PER_SECOND]).split(b"\n")
        self._line = lines.pop()[-_KEPT:]
        for line in lines:
            self._write(line)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._line:
            self._write(self._line)
        self.closed.set_result(None)

    def _write(self, line: bytes) -> None:
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._logged = second, 0
        before, self._logged = self._logged, self._logged + len(line) + 1
        if self._logged <= _LOGGED_PER_SECOND:
            _log.info("%s: %s", self._name, _printable(line))
        elif before <= _LOGGED_PER_SECOND:
            _log.warning(
                "%s prints faster than %d bytes a second; the log lacks some of it", self._name, before
            )


def _printable(line: bytes) -> str:
    text = line.decode(errors="replace").expandtabs()
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )

"""What a child process prints: passed on to the worker's log, its end kept for the report of a death."""

import asyncio
import logging
from typing import cast

_log = logging.getLogger(__name__)
_KEPT = 4096
_LOGGED_PER_SECOND = 1 << 16
_READ_PER_SECOND = 1 << 22


class ChildOutput(asyncio.Protocol):
    """Reads a child's standard output and error from one pipe.

    Of what comes faster than 64 KiB a second the log gets a part only, so that a child that prints without
    end fills no disk. What comes faster than 4 MiB a second waits in the pipe, and the child with it, so
    that reading takes no time from the worker's other tasks.

    Attributes:
        closed: done once nobody holds the pipe's other end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._end = b""
        self._line = b""
        self._loop = asyncio.get_running_loop()
        self._second = 0
        self._read = 0
        self._logged = 0
        self._cut = False
        self._pipe: asyncio.ReadTransport | None = None
        self.closed = self._loop.create_future()

    def last_lines(self) -> str:
        """The last printed lines, at most 4 KiB, with control characters replaced."""
        return "\n".join(_printable(line) for line in self._end.splitlines() if line.strip())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipe = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        if int(now) != self._second:
            self._second, self._read, self._logged = int(now), 0, 0
        self._read += len(data)
        if self._read > _READ_PER_SECOND and self._pipe is not None:
            self._pipe.pause_reading()
            self._loop.call_at(int(now) + 1, self._read_on, self._pipe)
        self._end = (self._end + data)[-_KEPT:]
        self._log(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._log(b"\n")
        self.closed.set_result(None)

    def _read_on(self, pipe: asyncio.ReadTransport) -> None:
        if not pipe.is_closing():
            pipe.resume_reading()

    def _log(self, data: bytes) -> None:
        """Writes whole lines, as long as the second's share lasts."""
        room = _LOGGED_PER_SECOND - self._logged
        if len(data) > room and not self._cut:
            _log.warning(
                "%s prints faster than %d bytes a second; the log lacks some of it",
                self._name,
                _LOGGED_PER_SECOND,
            )
        self._cut = len(data) > room
        self._logged += len(data)
        lines = (self._line + data[: max(0, room)]).split(b"\n")
        self._line = lines.pop()[-_KEPT:]
        for line in lines:
            if line.strip():
                _log.info("%s: %s", self._name, _printable(line))


def _printable(line: bytes) -> str:
    text = line.decode(errors="replace").expandtabs()
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )

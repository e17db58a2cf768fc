"""Child processes that run torch or user code: started, asked, and killed with all that they started.

The child's side and the frames are in `child_runtime`.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self

from pydantic import BaseModel

from .child_output import ChildOutput
from .child_runtime import MAX_FRAME, encode_frame
from .pulse import Pulse

_log = logging.getLogger(__name__)
_GRACE_SECONDS = 1.0


class ChildError(Exception):
    """A request ended with an exception in the child.

    Attributes:
        type: name of the exception's class.
        message: its text.
        traceback: as Python prints it.
    """

    def __init__(self, type_name: str, message: str, traceback: str) -> None:
        super().__init__(f"{type_name}: {message}")
        self.type = type_name
        self.message = message
        self.traceback = traceback


class ChildDied(Exception):
    """The child process has ended, and with it every request that it had.

    Attributes:
        exit_code: None when a signal ended it.
        signal: number of that signal; None when it exited.
        ending: how it ended, in words.
        output: the last lines that it printed.
    """

    def __init__(self, target: str, return_code: int, output: str, cause: str) -> None:
        self.exit_code = return_code if return_code >= 0 else None
        self.signal = -return_code if return_code < 0 else None
        self.ending = f"exited with code {return_code}"
        if return_code < 0:
            named = -return_code in set(signal.Signals)  # real-time signals have no names
            self.ending = (
                f"was ended by {signal.Signals(-return_code).name if named else f'signal {-return_code}'}"
            )
        self.ending += cause
        self.output = output
        printed = f"; it printed last:\n{output}" if output else ""
        super().__init__(f"the child process {target} {self.ending}{printed}")


class ChildProcess:
    """A running child process; its methods are for the event loop that started it.

    The child leads a process group of its own. The whole group is killed when the child ends, when
    `kill` is called and when this process ends, however it does; only what left the group by itself
    (a daemon that called setsid) escapes.
    """

    def __init__(
        self,
        target: str,
        process: subprocess.Popen[bytes],
        ours: socket.socket,
        lifeline: int,
        pulse: Pulse | None,
    ) -> None:
        """For `start`."""
        self._target = target
        self._process = process
        self._connection = ours
        self._lifeline = lifeline
        self._output = ChildOutput(f"{target}[{process.pid}]")
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count()
        self._replies: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}  # None: the process has ended
        self._writer: asyncio.Future[asyncio.StreamWriter] = self._loop.create_future()
        self._return_code: asyncio.Future[int] = self._loop.create_future()
        self._failed = False
        self._cause = ""
        self._pulse = pulse
        if pulse is not None:
            pulse.listen(lambda: self._end_silent(pulse.limit))
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        self._supervisor = asyncio.create_task(self._supervise())

    @classmethod
    def start(
        cls, target: str, *, env: Mapping[str, str] | None = None, silence_seconds: float | None = None
    ) -> Self:
        """Starts a child that runs `target` (`module:function`) with a `child_runtime.Channel`.

        Requests may be sent at once. When the target cannot be imported, they fail with ChildDied.

        Args:
            env: all environment variables of the child; None for those of this process.
            silence_seconds: a child that is stopped, or whose interpreter is held, for so long is killed.
                None for children whose code may close descriptors that it does not know.

        Raises:
            RuntimeError: when called outside of the main thread, whose end would be the child's.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "a child process dies with the thread that starts it: start it in the main thread"
            )
        ours, theirs = socket.socketpair()
        lifeline_end, lifeline = os.pipe()
        handles = [theirs.detach(), lifeline_end]
        pulse = Pulse(silence_seconds) if silence_seconds is not None else None
        if pulse is not None:
            handles.append(pulse.theirs)
        try:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    f"{__package__}.child_runtime",
                    target,
                    str(os.getpid()),
                    *map(str, handles),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=handles,
                env=env,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(lifeline)
            if pulse is not None:
                pulse.close()
            raise
        finally:
            for handle in handles:
                os.close(handle)
        return cls(target, process, ours, lifeline, pulse)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not self._return_code.done()

    async def call(self, method: str, payload: BaseModel | Mapping[str, Any]) -> Any:
        """The only reply to a request; see `stream`."""
        [reply] = [reply async for reply in self.stream(method, payload)]
        return reply

    async def stream(self, method: str, payload: BaseModel | Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """The replies to a request, in order, as plain JSON.

        A generator that is closed early, or whose task is cancelled, cancels the request in the
        child. Leaving a loop over it closes nothing: use `contextlib.aclosing`.

        Raises:
            ChildError: when the request ended with an exception.
            ChildDied: when the process has ended.
            FrameTooLong: when the payload is too long for one message.
        """
        content = payload.model_dump(mode="json") if isinstance(payload, BaseModel) else payload
        request = next(self._ids)
        frame = encode_frame({"id": request, "method": method, "payload": content})
        replies = self._replies[request] = asyncio.Queue()
        if self._failed:
            self._fail()
        try:
            await self._send(frame)
            while True:
                match await replies.get():
                    case {"kind": "reply", "value": value}:
                        yield value
                    case {"kind": "last", "value": value}:
                        yield value
                        return
                    case {"kind": "error", "type": name, "message": message, "traceback": traceback}:
                        raise ChildError(name, message, traceback)
                    case None:
                        raise ChildDied(
                            self._target, self._return_code.result(), self._output.last_lines(), self._cause
                        )
                    case _:
                        return
        finally:
            if self._replies.pop(request, None) is not None and self._writer.done():
                self._writer.result().write(encode_frame({"cancel": request}))

    def kill(self) -> None:
        """Kills the process and its group; requests in flight fail with ChildDied."""
        if self.alive:
            os.killpg(self.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Kills the process and waits until it is gone."""
        self.kill()
        await asyncio.wait([self._supervisor])

    def _end_silent(self, seconds: float) -> None:
        self._cause = f" after {seconds:g} s without a sign of life"
        _log.error("%s[%d] is killed%s", self._target, self.pid, self._cause)
        self.kill()

    async def _send(self, frame: bytes) -> None:
        writer = await asyncio.shield(self._writer)
        writer.write(frame)
        with contextlib.suppress(ConnectionError):  # how the child died is for the supervisor to tell
            await writer.drain()

    async def _supervise(self) -> None:
        """Takes in replies until the process has ended, then fails the requests that are left."""
        reading = asyncio.create_task(self._read())
        printing: asyncio.BaseTransport | None = None
        try:
            printing, _ = await self._loop.connect_read_pipe(lambda: self._output, self._process.stdout)
            await asyncio.wait([reading, self._return_code], return_when=asyncio.FIRST_COMPLETED)
            if self.alive:
                # It closed its connection, or sent what is no frame. A dying process has a moment
                # to be seen dead, so that its own ending is reported.
                await asyncio.wait([self._return_code], timeout=_GRACE_SECONDS)
                self.kill()
            await self._return_code
            # What it sent and printed before it ended may still be on its way. A process that left
            # the group may hold the other ends for ever.
            await asyncio.wait([reading, self._output.closed], timeout=_GRACE_SECONDS)
        finally:
            reading.cancel()
            if self.alive:
                self.kill()
                self._reap()
            if self._writer.done():
                self._writer.result().close()
            else:
                self._connection.close()
            os.close(self._lifeline)
            if self._pulse is not None:
                self._pulse.close()
            if printing is not None:
                printing.close()
            self._fail()

    def _fail(self) -> None:
        self._failed = True
        for replies in self._replies.values():
            replies.put_nowait(None)
        self._replies.clear()

    def _reap(self) -> None:
        """Runs when the process has ended. Until it is waited for, its group's id is nobody else's."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._return_code.set_result(self._process.wait())

    async def _read(self) -> None:
        """Hands each frame to its request; returns at the end of the connection or of sense."""
        try:
            reader, writer = await asyncio.open_connection(sock=self._connection)
            self._writer.set_result(writer)
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > MAX_FRAME:
                    raise ValueError(f"a frame of {size} bytes; at most {MAX_FRAME} are allowed")
                self._take(json.loads(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        except Exception:
            _log.exception("%s[%d] sent what is no frame and is killed", self._target, self.pid)

    def _take(self, frame: dict[str, Any]) -> None:
        more = frame["kind"] == "reply"
        replies = self._replies.get(frame["id"]) if more else self._replies.pop(frame["id"], None)
        if replies is not None:
            replies.put_nowait(frame)

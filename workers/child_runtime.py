"""The child's side of `child_process`: how the process starts, hears requests, answers and ends.

A frame is a length (4 bytes, big-endian) and so many bytes of JSON. The parent sends
`{"id", "method", "payload"}` and `{"cancel": id}`; the child sends `{"id", "kind", …}` with kind
`reply` (`value`), any number of them, and then `last` (`value`), `end` or `error` (`type`, `message`,
`traceback`).
"""

import contextlib
import ctypes
import faulthandler
import fcntl
import importlib
import io
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from .pulse import send_pulse

MAX_FRAME = 1 << 28
"""Longest frame in bytes, either way."""
_PR_SET_PDEATHSIG = 1
_F_SETSIG = 10


class FrameTooLong(ValueError):
    """A message is longer than a frame may be."""


class ParentClosed(Exception):
    """The parent has closed the connection: there is nothing left to do."""


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """The frame of a message.

    Raises:
        TypeError: when the message holds what JSON cannot.
        FrameTooLong: when it is longer than MAX_FRAME.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME:
        raise FrameTooLong(
            f"the message has {len(body)} bytes of JSON; at most {MAX_FRAME} fit: send it in parts"
        )
    return len(body).to_bytes(4, "big") + body


@dataclass(eq=False)
class Request:
    """One request of the parent.

    Attributes:
        cancelled: the parent no longer wants the answer; known once the channel has been polled
            after the cancellation came. Nothing needs to be sent for it any more.
    """

    id: int
    method: str
    payload: Any
    cancelled: bool = field(default=False, init=False)


class Channel:
    """The child's end of the connection; for one thread of the process that opened it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        self._owner = os.getpid()
        self._received = bytearray()
        self._waiting: deque[Request] = deque()
        self._open: dict[int, Request] = {}

    def receive(self, timeout: float | None = None) -> Request | None:
        """The next request; None when none comes within `timeout` seconds.

        A timeout of 0 polls, None waits for ever. Whatever has arrived is read, so cancellations
        of requests in work are noticed too.

        Raises:
            ParentClosed: when the parent has closed the connection.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._read(0)
        while not self._waiting:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._read(left)
        return self._waiting.popleft()

    def reply(self, request: Request, value: Any, *, last: bool = False) -> None:
        """Sends one of the request's replies, or its last one; `value` is plain JSON."""
        if last:
            self._close(request, {"kind": "last", "value": value})
        else:
            self._send(request, {"kind": "reply", "value": value})

    def end(self, request: Request) -> None:
        """Says that the request has had all its replies, if the last of them did not."""
        self._close(request, {"kind": "end"})

    def error(self, request: Request, error: BaseException) -> None:
        """Ends the request with an exception."""
        try:
            message = str(error)
        except Exception as fault:
            message = f"<str() of the exception raised {type(fault).__name__}>"
        lines = "".join(traceback.format_exception(error))
        self._close(
            request, {"kind": "error", "type": type(error).__name__, "message": message, "traceback": lines}
        )

    def _close(self, request: Request, message: dict[str, Any]) -> None:
        self._send(request, message)
        self._open.pop(request.id, None)

    def _send(self, request: Request, message: dict[str, Any]) -> None:
        self._only_in_owner()
        if request.cancelled:
            return
        frame = encode_frame({"id": request.id, **message})
        try:
            self._connection.sendall(frame)
        except ConnectionError as fault:
            raise ParentClosed from fault

    def _read(self, timeout: float | None) -> None:
        """Takes in all that has arrived, after waiting for the first of it."""
        self._only_in_owner()
        while self._readable.poll(None if timeout is None else max(0, int(timeout * 1000 + 0.999))):
            data = self._connection.recv(1 << 20)
            if not data:
                raise ParentClosed
            self._received += data
            timeout = 0
        while (message := self._next_message()) is not None:
            self._take(message)

    def _next_message(self) -> dict[str, Any] | None:
        size = int.from_bytes(self._received[:4], "big")
        if len(self._received) < 4 + size or len(self._received) < 4:
            return None
        body = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        return json.loads(body)

    def _take(self, message: dict[str, Any]) -> None:
        if "cancel" not in message:
            request = Request(message["id"], message["method"], message["payload"])
            self._open[request.id] = request
            self._waiting.append(request)
        elif (request := self._open.pop(message["cancel"], None)) is not None:
            request.cancelled = True
            if request in self._waiting:
                self._waiting.remove(request)

    def _only_in_owner(self) -> None:
        """Ends a fork of this process that came back here: two readers would tear the frames apart."""
        if os.getpid() != self._owner:
            os._exit(70)


def serve(channel: Channel, handlers: Mapping[str, Callable[[Any], Any]]) -> NoReturn:
    """Answers requests one after the other, each with what its method's handler returns for its payload.

    An exception of a handler becomes the request's error.

    Raises:
        ParentClosed: when the parent has closed the connection.
    """
    while True:
        request = channel.receive()
        assert request is not None
        try:
            if request.method not in handlers:
                raise LookupError(f"no method {request.method!r}; there are {', '.join(sorted(handlers))}")
            channel.reply(request, handlers[request.method](request.payload), last=True)
        except ParentClosed:
            raise
        except Exception as fault:
            channel.error(request, fault)


def _die_with_parent(parent: int, lifeline: int) -> None:
    """Makes sure that neither this process nor its process group outlives the parent.

    The parent holds the other end of the pipe `lifeline` and never writes. Three ways, since each
    has a gap: the parent-death signal needs the parent's spawning thread and spares grandchildren;
    the pipe's signal reaches the whole group, stopped or stuck in C, but only from now on; the
    thread sees an end that came before.
    """
    prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL.value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(70)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL.value)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_end_at_eof, args=(lifeline,), name="lifeline", daemon=True).start()


def _end_at_eof(lifeline: int) -> None:
    try:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(70)


def main() -> None:
    """Runs `module:function` with the channel.

    Arguments: that name, the parent's id, the descriptors of connection and lifeline, and that of the
    pulse where the parent listens to one.
    """
    target, parent, connection, lifeline, *pulse = sys.argv[1], *map(int, sys.argv[2:])
    _die_with_parent(parent, lifeline)
    for descriptor in (connection, lifeline, *pulse):
        os.set_inheritable(descriptor, False)
    for descriptor in pulse:
        send_pulse(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)
    cast(io.TextIOWrapper, sys.stdout).reconfigure(line_buffering=True)
    module, _, function = target.partition(":")
    run: Callable[[Channel], None] = getattr(importlib.import_module(module), function)
    run(Channel(socket.socket(fileno=connection)))


if __name__ == "__main__":
    # The module that targets import, not this second copy of it.
    from . import child_runtime

    with contextlib.suppress(child_runtime.ParentClosed):
        child_runtime.main()

"""What the children of `test_child_process` run."""

import ctypes
import os
import subprocess
import sys
import time
from typing import Any

from marlaas.workers.child_runtime import Channel, serve


def plain(channel: Channel) -> None:
    serve(
        channel,
        {
            "echo": lambda payload: payload["value"],
            "add": lambda payload: payload["a"] + payload["b"],
            "raise": _raise,
            "raise_unprintable": _raise_unprintable,
            "print": _print,
            "exit": lambda payload: os._exit(payload["code"]),
            "signal": lambda payload: os.kill(os.getpid(), payload["signal"]),
            "hold": lambda payload: _hold(),
            "sleep": lambda payload: time.sleep(payload["seconds"]),
            "unsendable": lambda payload: object(),
            "environment": lambda payload: dict(os.environ),
            "grandchild": lambda payload: subprocess.Popen(["sleep", "600"]).pid,
            "stubborn_grandchild": lambda payload: _forked_grandchild(),
            "close": lambda payload: os.closerange(3, 256),
            "fork_returns": lambda payload: os.fork() and "parent",
            "garbage": _garbage,
        },
    )


def _raise(payload: dict[str, Any]) -> None:
    raise ValueError(payload["message"])


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _raise_unprintable(payload: dict[str, Any]) -> None:
    raise _UnprintableError


def _print(payload: dict[str, Any]) -> str:
    print(payload["text"])  # noqa: T201
    print(payload["text"], file=sys.stderr)  # noqa: T201
    os.write(1, b"\x00\x00\x00\x05hello raw bytes\n")
    return "printed"


def _hold() -> None:
    """Stays in C with the interpreter lock held."""
    ctypes.PyDLL(None).sleep(600)


def _forked_grandchild() -> int:
    """A grandchild that shares every descriptor of ours, the connection too."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return pid


def _garbage(payload: dict[str, Any]) -> None:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\xff\xff\xff\xff garbage")
        except OSError:
            continue
    time.sleep(600)


def interleaving(channel: Channel) -> None:
    """Counts for every open request in turn, taking in new ones between two rounds."""
    open_requests: dict[int, list[Any]] = {}
    cancelled: list[int] = []
    while True:
        request = channel.receive(0 if open_requests else None)
        if request is not None and request.method == "cancelled":
            channel.reply(request, cancelled, last=True)
        elif request is not None:
            open_requests[request.id] = [request, 0]
        for entry in list(open_requests.values()):
            request, count = entry
            if request.cancelled:
                cancelled.append(request.payload["name"])
                del open_requests[request.id]
            elif count == request.payload["count"]:
                channel.end(request)
                del open_requests[request.id]
            else:
                channel.reply(request, [request.payload["name"], count])
                entry[1] += 1


def timing_out(channel: Channel) -> None:
    """Tells how often it waited in vain before each request."""
    vain = 0
    while True:
        request = channel.receive(0.01)
        if request is None:
            vain += 1
        else:
            channel.reply(request, vain > 0, last=True)
            vain = 0

"""When a program in the foreground has to end: by a signal, with its terminal, or with its parent."""

import asyncio
import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Generator


@contextlib.contextmanager
def endings_call(act: Callable[[], object], *, parent: int) -> Generator[None]:
    """Calls `act` once for each thing that should end this program while the context lasts.

    These are SIGINT and SIGTERM; and, unless hang-ups are ignored as under `nohup`, also SIGHUP, the end
    of the terminal, and the end of the parent, say a `make` that was killed. Who leads a session of its
    own, as under `setsid`, was detached from its parent on purpose and does not follow it.

    Args:
        parent: pid of the parent, read as early as possible.
    """
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    with contextlib.ExitStack() as stack:
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
            if sys.stdin.isatty():
                stack.enter_context(_hangup_calls(act))
            if parent > 1 and os.getsid(0) != os.getpid():
                stack.enter_context(_end_calls(parent, act))
        for number in numbers:
            loop.add_signal_handler(number, act)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


@contextlib.contextmanager
def _hangup_calls(act: Callable[[], object]) -> Generator[None]:
    """Calls `act` once the terminal is closed. The kernel tells that to the leader of the session only,
    and `make`, when it is that leader, waits for us."""
    with select.epoll() as hangup:
        hangup.register(sys.stdin, 0)  # no event but hangup and error, which are always told
        with _readable_calls(hangup.fileno(), act):
            yield


@contextlib.contextmanager
def _end_calls(parent: int, act: Callable[[], object]) -> Generator[None]:
    """Calls `act` once the parent has ended. Not by PR_SET_PDEATHSIG, which follows the parent's thread."""
    handle = None
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(parent)
    if handle is None or os.getppid() != parent:
        asyncio.get_running_loop().call_soon(act)
    try:
        with contextlib.nullcontext() if handle is None else _readable_calls(handle, act):
            yield
    finally:
        if handle is not None:
            os.close(handle)


@contextlib.contextmanager
def _readable_calls(handle: int, act: Callable[[], object]) -> Generator[None]:
    """Calls `act` once a file descriptor can be read."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        loop.remove_reader(handle)
        act()

    loop.add_reader(handle, readable)
    try:
        yield
    finally:
        loop.remove_reader(handle)

"""Signs of life of a child process: a byte a second on a pipe.

A process that was stopped, or that is stuck in native code which holds the interpreter, is alive for the
kernel and will never answer.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable

_INTERVAL_SECONDS = 1.0


class Pulse:
    """The parent's end; for the running event loop.

    Attributes:
        limit: seconds without a byte after which a listener is told.
        theirs: descriptor of the child's end. The parent closes its copy once the child has its own.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._ours, self.theirs = os.pipe()

    def listen(self, on_silence: Callable[[], None]) -> None:
        """Calls `on_silence`, once, when the limit has passed without a byte."""
        self._restart(on_silence)
        self._loop.add_reader(self._ours, self._heard, on_silence)

    def close(self) -> None:
        """Stops listening."""
        self._stop()
        os.close(self._ours)

    def _heard(self, on_silence: Callable[[], None]) -> None:
        if os.read(self._ours, 1 << 12):
            self._restart(on_silence)
        else:  # the process has ended: that is for others to tell
            self._stop()

    def _restart(self, on_silence: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self.limit, on_silence)

    def _stop(self) -> None:
        self._loop.remove_reader(self._ours)
        if self._timer is not None:
            self._timer.cancel()


def send_pulse(descriptor: int) -> None:
    """The child's end: sends from a thread, as long as this process can."""
    threading.Thread(target=_send, args=(descriptor,), name="pulse", daemon=True).start()


def _send(descriptor: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        while True:
            os.write(descriptor, b".")
            time.sleep(_INTERVAL_SECONDS)

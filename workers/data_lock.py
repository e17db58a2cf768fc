"""The lock on a data folder: one process at a time runs or stops the stack in it."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from .stack_file import StackError


@contextmanager
def locked(data: Path) -> Generator[None]:
    """Holds the data folder's lock; makes the folder, readable by its owner only, when there is none.

    The kernel releases the lock when the process ends, however it ends; children do not inherit it.

    Raises:
        StackError: when another process holds the lock; the message has its pid.
    """
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = data / "lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).decode().strip()
            raise StackError(
                f"The stack in {data} is run by the process with pid {holder} already. "
                "Stop that with `marlaas down`, or use another data folder."
            ) from None
        # One write of fixed length, so that a reader never sees half a number.
        os.pwrite(handle, f"{os.getpid():<20}".encode(), 0)
        yield
    finally:
        os.close(handle)

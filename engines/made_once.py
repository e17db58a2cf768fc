"""Folders that take long to make: made once, by one process, and there as a whole or not at all."""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder; when there is none, `make` fills another one, which then takes its place.

    Processes that come meanwhile wait. One that is killed loses its lock to the next, which clears what
    was left half made.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.part")
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            shutil.rmtree(part, ignore_errors=True)
            try:
                make(part)
                part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return folder

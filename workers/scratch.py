"""Scratch folders of workers, several of which may share one data folder."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(parent: Path) -> Generator[Path]:
    """A folder below `parent` for this process alone, deleted at the end with all that is in it.

    It is locked while it is used. The kernel frees the lock when the process ends, however it does, so a
    folder that is not locked was left by one that was killed: those are deleted first.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.iterdir():
        _delete_unlocked(left)
    folder, handle = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    """A new folder and the lock on it. Between the two another worker may take it for one that was left."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent))
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(handle, fcntl.LOCK_EX)
        if folder.exists():
            return folder, handle
        os.close(handle)


def _delete_unlocked(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(handle)

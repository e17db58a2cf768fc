"""Log files of the embedded stack's processes, bounded in size."""

import shutil
from pathlib import Path

MAX_BYTES = 16 * 2**20
"""A log file that is longer is moved aside; the one moved aside before it is dropped."""

_TAIL_BYTES = 8192


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file, at most 8 KiB; empty when there is no file."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def bound_logs(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Moves the content of every long log file of a folder to a file named `….log.1`.

    The processes go on writing to the same file, which is why they must have it open for appending.
    Lines that are written while the content is copied may be lost.
    """
    for log in folder.glob("*.log"):
        if log.stat().st_size > max_bytes:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            with log.open("r+") as file:
                file.truncate(0)

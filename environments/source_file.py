"""The bytes of a file that a job spec names."""

import errno
from pathlib import Path

from .invalid import InvalidEnvironment
from .row_check import PATH

_MOST_BYTES = 1 << 30
_NO_SUCH_FILE = {errno.ENOENT, errno.EISDIR, errno.EACCES, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}


def read_source(path: str) -> bytes:
    """The whole of a file of at most 1 GiB.

    Raises:
        InvalidEnvironment: when there is no such file, or it is too big or has no end.
        OSError: when reading failed for a reason that may pass.
    """
    file = Path(path)
    try:
        if file.is_fifo() or file.is_char_device() or file.is_socket():
            raise InvalidEnvironment(PATH, f"{path!r} is no file that can be read to its end")
        if (size := file.stat().st_size) > _MOST_BYTES:
            raise InvalidEnvironment(PATH, f"{path!r} has {size:,} bytes; at most {_MOST_BYTES:,} are read")
        return file.read_bytes()
    except (OSError, ValueError) as fault:
        if isinstance(fault, OSError) and fault.errno not in _NO_SUCH_FILE:
            raise
        raise InvalidEnvironment(PATH, f"{path!r} cannot be read: {fault}") from fault

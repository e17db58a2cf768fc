"""Exceptions of user code, told in one line."""

import sysconfig
import traceback
from pathlib import Path

_HERE = f"{Path(__file__).parent}/"
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_LONGEST = 1000


def fault_text(fault: BaseException) -> str:
    """`ValueError: text (file.py, line 3: the line)`, at most about 1,000 characters.

    The line is the deepest one outside of the standard library and of installed packages, so in the
    user's own code where there is any.
    """
    try:
        message = str(fault)
    except Exception as second:
        message = f"<its str() raised {type(second).__name__}>"
    named = f"{type(fault).__name__}: {message}" if message else type(fault).__name__
    return _plain(named[:_LONGEST]) + _place(fault)


def _plain(text: str) -> str:
    """Without half a surrogate pair, which no JSON document can hold, and what would steer a terminal."""
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text
    )


def _place(fault: BaseException) -> str:
    frames = traceback.extract_tb(fault.__traceback__)
    ours = max((index for index, frame in enumerate(frames) if frame.filename.startswith(_HERE)), default=-1)
    below = [frame for frame in frames[ours + 1 :] if not frame.filename.startswith("<frozen ")]
    users = [frame for frame in below if not frame.filename.startswith(_LIBRARIES)] or below
    if not users:
        return ""
    source = f": {_plain(users[-1].line[:200])}" if users[-1].line else ""
    return f" ({Path(users[-1].filename).name}, line {users[-1].lineno}{source})"

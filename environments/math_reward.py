"""A part of a reward that compares mathematics, by the package `math-verify`."""

import logging
import reprlib
from typing import Any, cast

from ..schemas.dataset import Row
from ..schemas.rewards import MathVerifyPart
from .invalid import InvalidEnvironment
from .reward import InvalidReward
from .text_rewards import expected

_DELIMITERS = ("$", "\\(", "\\[", "\\boxed", "\\begin")


class MathVerify:
    """Whether a completion's answer equals the row's: `1/2` is `0.5` and `\\frac{2}{4}`.

    The package's own time limits are off: they count wall time, so that a busy machine would call a right
    answer wrong. The limits of the process hold instead, so a completion with a tower of powers has failed.
    """

    def __init__(self, part: MathVerifyPart, path: str) -> None:
        """Raises InvalidEnvironment when the package is missing; `path` is the part's."""
        try:
            import math_verify  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as fault:
            raise InvalidEnvironment(
                f"{path}.kind",
                "is 'math-verify'; this worker lacks the package: pip install 'marlaas[math]'",
            ) from fault
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its limits are off
        self._package = cast(Any, math_verify)
        self._field = part.field

    def __call__(self, row: Row, completion: str) -> float | None:
        """1.0 when the answers are equal, else 0.0; None where the row has none.

        Raises:
            InvalidReward: when the row's answer cannot be read.
        """
        text = expected(row, self._field)
        if text is None:
            return None
        # Without delimiters only plain numbers are found: of \frac{1}{2} it would be the 2.
        marked = text if any(one in text for one in _DELIMITERS) else f"${text}$"
        right = self._package.parse(marked, parsing_timeout=0)
        if not right:
            raise InvalidReward(
                f"{row.source}: the field {self._field!r} holds {reprlib.repr(text)}, in which math-verify "
                "finds no expression"
            )
        answer = self._package.parse(completion, parsing_timeout=0)
        return float(self._package.verify(right, answer, timeout_seconds=0))

"""Rewards: a number, and the named parts that it is the weighted sum of."""

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsFloat, cast

from ..schemas.dataset import Row
from ..schemas.rewards import PART_NAME

_LARGEST = 1e100
"""Rewards beyond it have sums of squares that overflow."""
_MOST_PARTS = 32
"""That one part may return: names are metrics, and not a place for data."""
_NAME = re.compile(PART_NAME)


class InvalidReward(ValueError):
    """A reward function returned what is no reward, or a row lacks what the reward needs."""


class NoReward(Exception):
    """No part of the reward applies to the sample, so that it has none."""


@dataclass(frozen=True)
class Reward:
    """The reward of one sample.

    Attributes:
        value: finite.
        parts: by name, before weighting; None where one does not apply. Empty for a reward that is just a
            number.
    """

    value: float
    parts: dict[str, float | None] = field(default_factory=dict[str, float | None])


@dataclass(frozen=True)
class Part:
    """What contributes to a reward.

    Attributes:
        score: of a row and a completion: a number, None where it does not apply, or a dictionary of such by
            name. It may raise anything.
        name: of the part; the prefix of the names in its dictionary. None for one that is the whole reward.
        weights: of the names in its dictionary, 1 where there is none.
    """

    score: Callable[[Row, str], object]
    name: str | None = None
    weight: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict[str, float])


class WeightedReward:
    """Sums the parts that apply, each times its weight, in their order.

    One part that fails fails the sample: what is missing of a sum is not 0.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __call__(self, row: Row, completion: str) -> Reward:
        """The reward of a completion.

        Raises:
            InvalidReward: when a part or the sum is no finite number of at most 1e100.
            NoReward: when no part applies.
        """
        total, applied, values = 0.0, False, dict[str, float | None]()
        for part in self._parts:
            for name, weight, value in _named(part, part.score(row, completion)):
                if name is not None:
                    values[name] = value
                if value is not None:
                    total, applied = total + weight * value, True
        if not applied:
            what = f"{', '.join(values)} are None" if values else "the reward function returned None"
            raise NoReward(f"no reward applies to the sample: {what}")
        return Reward(checked_number(total, "the sum of the parts is"), values)


def checked_number(value: object, said: str = "the reward function returned") -> float:
    """The value as a float; True is 1.0, False is 0.0, and whatever has a `__float__` is taken.

    Raises:
        InvalidReward: when it is no finite number, or beyond 1e100; `said` begins what it says.
    """
    if not isinstance(value, SupportsFloat):
        raise InvalidReward(f"{said} {reprlib.repr(value)}; it has to be a number or None")
    try:
        number = float(value)
    except Exception as fault:
        raise InvalidReward(f"{said} {reprlib.repr(value)}, which is no number: {fault}") from fault
    if not abs(number) <= _LARGEST:
        raise InvalidReward(f"{said} {number}; it has to be a finite number of at most {_LARGEST:g}")
    return number


def _named(part: Part, value: object) -> list[tuple[str | None, float, float | None]]:
    """Name, weight and value of what a part has returned."""
    said = "the reward function returned" if part.name is None else f"the part {part.name!r} returned"
    if not isinstance(value, Mapping):
        return [(part.name, part.weight, _number(value, said))]
    found = cast(Mapping[Any, Any], value)
    if not 1 <= len(found) <= _MOST_PARTS:
        raise InvalidReward(f"{said} a dictionary of {len(found)}; it has to have 1 to {_MOST_PARTS} names")
    wrong = [name for name in found if not (isinstance(name, str) and _NAME.fullmatch(name))]
    if wrong:
        raise InvalidReward(
            f"{said} a part named {reprlib.repr(wrong[0])}; a name is 1 to 64 of letters, digits, _ . and -"
        )
    prefix = "" if part.name is None else f"{part.name}."
    return [
        (f"{prefix}{name}", part.weight * part.weights.get(name, 1.0), _number(one, f"{said} {name!r}:"))
        for name, one in found.items()
    ]


def _number(value: object, said: str) -> float | None:
    return None if value is None else checked_number(value, said)

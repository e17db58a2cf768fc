"""Which environment of a mixture has its turn: a pure function of the weights and the position."""

import math
from functools import lru_cache


def mixed(weights: tuple[int, ...], position: int) -> tuple[int, int]:
    """The environment at `position` of an endless sequence, and how often it has had its turn before.

    Every stretch as long as the sum of the weights, divided by their common divisor, has each environment
    exactly by its weight; at every position the turns so far are less than one from the exact share.
    """
    divisor = math.gcd(*weights)
    reduced = tuple(weight // divisor for weight in weights)
    cycle = _cycle(reduced)
    rounds, place = divmod(position, len(cycle))
    which, before = cycle[place]
    return which, rounds * reduced[which] + before


@lru_cache(maxsize=64)
def _cycle(weights: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """One period of `mixed`.

    The turn j of weight w among W is due from j·W/w rounded down to (j+1)·W/w rounded up. Of those that are
    due the one with the earliest end goes first, with which all are in time: the chairman assignment
    problem (Tijdeman, Discrete Mathematics 32, 1980).
    """
    total = sum(weights)
    given = [0] * len(weights)
    cycle: list[tuple[int, int]] = []
    for position in range(total):
        due = [one for one, weight in enumerate(weights) if given[one] * total < (position + 1) * weight]
        which = min(due, key=lambda one: -(-(given[one] + 1) * total // weights[one]))
        cycle.append((which, given[which]))
        given[which] += 1
    return tuple(cycle)

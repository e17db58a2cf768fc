"""Rewards that the workers of these tests find in their folder: one with a signal for a random model."""

import time


def lower_case(completion: str, **_: object) -> float:
    """Share of lower-case letters."""
    return sum(c.islower() for c in completion) / max(1, len(completion))


def upper_case(completion: str, *, id: int, **_: object) -> float:
    """Share of upper-case letters; of rows with an id."""
    return sum(c.isupper() for c in completion) / max(1, len(completion))


def hangs(completion: str, **_: object) -> float:
    """Uses no CPU and never answers."""
    while True:
        time.sleep(3600)

"""Rewards that the workers of these tests find in their folder: one with a signal for a random model."""

import os
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


def constant(completion: str, **_: object) -> float:
    """The same for all."""
    return 0.5


def no_fields(prompt: str, reference: str) -> float:
    """Takes other arguments than a reward is given."""
    return 0.0


def misbehaves(completion: str, *, fault: str, **_: object) -> object:
    """Does what the row says."""
    if fault == "raise":
        raise RuntimeError("as the row says")
    if fault == "exit":
        os._exit(3)
    if fault == "allocate":
        return len(bytearray(50 << 30))
    return {"nan": float("nan"), "infinity": float("inf"), "text": "much"}.get(fault, lower_case(completion))

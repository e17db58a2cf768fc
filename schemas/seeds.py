"""Randomness as pure functions of what is recorded, so that any part can be drawn again alone."""

import hashlib


def _draw(*parts: object) -> int:
    """64 bits that depend on every part and on nothing else."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def sample_seed(job_seed: int, group: str, sample: int, turn: int = 0) -> int:
    """Seed of one sample of one group: 64 bits, unsigned."""
    return _draw("sample", job_seed, group, sample, turn)


def uniform(seed: int, position: int) -> float:
    """The uniform number in [0, 1) that draws the token at `position` of a sample's completion.

    It has 53 random bits, so every value is exact in float64.
    """
    return (_draw("token", seed, position) >> 11) * 2.0**-53


def refill_seed(job_seed: int) -> int:
    """Seed of the order in which a job's refill groups take their prompts."""
    return _draw("refill", job_seed)


def environment_seed(job_seed: int, name: str) -> int:
    """Seed of the order in which a job takes the prompts of one environment of a mixture."""
    return _draw("environment", job_seed, name)


def prompt_at(data_seed: int, position: int, count: int) -> int:
    """The prompt at `position` of an endless sequence of epochs, each in an order of its own.

    Every epoch visits each of the `count` prompts once. The order is a permutation computed per
    position (a Feistel network, Luby & Rackoff 1988, walked until it falls below `count`), so that
    neither time nor memory grows with the dataset.
    """
    epoch, place = divmod(position, count)
    half = max(1, (count - 1).bit_length() + 1 >> 1)
    low = (1 << half) - 1
    while True:
        left, right = place >> half, place & low
        for turn in range(4):
            left, right = right, left ^ (_draw("prompt", data_seed, epoch, turn, right) & low)
        place = left << half | right
        if place < count:
            return place

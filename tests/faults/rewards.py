"""A reward with a signal for a random model; the workers of these tests find it in their folder."""


def lower_case(completion: str, **_: object) -> float:
    """Share of lower-case letters."""
    return sum(c.islower() for c in completion) / max(1, len(completion))

"""Rewards for the examples. A job file names one as `module:function`."""

from typing import Any


def brevity(completion: str, *, words: int, **_: Any) -> float:
    """1 for an answer of at most `words` words, less for a longer one, 0 for none.

    Args:
        completion: what the policy wrote, without special tokens.
        words: a field of the prompt's line in the JSONL file; every field is given by its name.
    """
    written = len(completion.split())
    return min(1.0, words / written) if written else 0.0

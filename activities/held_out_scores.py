"""What the scored groups of an evaluation come to."""

import math
from collections.abc import Iterator, Sequence

from ..schemas.manifest import HeldOutScores
from ..schemas.trajectory import ScoredGroup, ScoredSample

RIGHT = 1.0
"""The least reward of a right answer."""


def held_out_scores(sampled: Sequence[ScoredGroup], greedy: Sequence[ScoredGroup]) -> HeldOutScores:
    """The figures of some prompts.

    Args:
        sampled: a group for each prompt, all with as many samples.
        greedy: likewise, with one sample.
    """
    by_sampling = [sample for group in sampled for sample in group.samples]
    by_argmax = [sample for group in greedy for sample in group.samples]
    rewards = [sample.reward for sample in by_sampling if sample.reward is not None]
    return HeldOutScores(
        prompts=len(sampled),
        accuracy=_share_right(by_sampling),
        greedy_accuracy=_share_right(by_argmax),
        reward_mean=sum(rewards) / len(rewards) if rewards else None,
        pass_at={k: _mean_pass_at(sampled, k) for k in _powers_of_two(len(sampled[0].samples))},
    )


def pass_at(samples: int, right: int, k: int) -> float:
    """The chance that of `k` samples at least one is right: an estimate without bias.

    Of all choices of `k` among the `samples` it is the share with one of the `right` ones (Chen et al., arXiv
    2107.03374, equation 1).
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def _mean_pass_at(groups: Sequence[ScoredGroup], k: int) -> float:
    counts = [(len(group.samples), sum(map(_is_right, group.samples))) for group in groups]
    return sum(pass_at(samples, right, k) for samples, right in counts) / len(counts)


def _powers_of_two(most: int) -> Iterator[int]:
    return (1 << power for power in range(most.bit_length()))


def _share_right(samples: Sequence[ScoredSample]) -> float:
    return sum(map(_is_right, samples)) / len(samples)


def _is_right(sample: ScoredSample) -> bool:
    return sample.reward is not None and sample.reward >= RIGHT

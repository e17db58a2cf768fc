"""How much better a sample is than what it is compared with, from rewards alone."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..schemas.objective import AdvantageName
from ..schemas.variance import differ

_EPSILON = 1e-6
_VARIANCE_EPSILON = 1e-8

Floats = npt.NDArray[np.float64]


def token_advantages(
    name: AdvantageName,
    rewards: Floats,
    valid: npt.NDArray[np.uint8],
    group: npt.NDArray[np.int32],
    sequence: npt.NDArray[np.int64],
    penalties: Floats,
) -> Floats:
    """The advantage of every policy token.

    - `group-normalised`: (r - mean) / (std + 1e-6) over the group, std with Bessel's correction
      (DeepSeekMath, arXiv 2402.03300, section 4.1.2).
    - `group-centred`: r - mean of the group (Dr. GRPO, Liu et al., arXiv 2503.20783, section 3.2).
    - `leave-one-out`: r - mean of the group's other samples (RLOO, Ahmadian et al., arXiv 2402.14740,
      section 2.3).
    - `batch-normalised`: the reward less the penalties of this and all later tokens, normalised over the
      batch's policy tokens (REINFORCE++, Hu et al., arXiv 2501.03262, section 3): (a - mean) /
      √(variance + 1e-8), variance with Bessel's correction.
    - `group-batch-normalised`: `group-centred`, then normalised in the same way (REINFORCE++-baseline).
    - `raw`: the reward.

    Except with `batch-normalised`, r is the reward less the sum of the sequence's penalties.

    A sample that is not valid has advantage 0 and is part of no statistic. So has every sample of a group
    with fewer than two valid samples where the group is compared, and of a group or a batch whose values
    are equal: whose standard deviation is at most 1e-6 of its largest absolute value. Below that it is
    rounding, which a division by it would turn into advantages of full size.

    Args:
        rewards: float64 [N].
        valid: [N], 0 or 1; rewards of samples with 0 are not read.
        group: [N], equal for samples of the same group.
        sequence: int64 [P], of each policy token, ascending.
        penalties: float64 [P], taken off the reward.

    Returns:
        float64 [P], always finite.

    Raises:
        ValueError: when the reward of a valid sample is not finite.
    """
    counted = valid.astype(bool)
    wrong = np.flatnonzero(counted & ~np.isfinite(rewards))
    if wrong.size:
        raise ValueError(f"sample {wrong[0]} of the batch is valid and its reward is {rewards[wrong[0]]}")
    if name == "batch-normalised":
        later = _sums_to_the_end(penalties, sequence)
        return _normalised(np.where(counted, rewards, 0.0)[sequence] - later, counted[sequence])
    lost = np.bincount(sequence, penalties, minlength=len(rewards)).astype(np.float64)
    totals: Floats = np.where(counted, rewards, 0.0) - lost
    if name == "raw":
        return np.where(counted, totals, 0.0)[sequence]
    advantages = np.zeros(len(rewards), np.float64)
    for members in _groups(counted, group):
        advantages[members] = _compared(name, totals[members])
    if name == "group-batch-normalised":
        return _normalised(advantages[sequence], counted[sequence])
    return advantages[sequence]


def varied_groups(
    rewards: Floats, valid: npt.NDArray[np.uint8], group: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """The groups whose valid samples have rewards that differ."""
    found = [group[members[0]] for members in _groups(valid.astype(bool), group) if differ(rewards[members])]
    return np.array(found, np.int32)


def _groups(counted: npt.NDArray[np.bool_], group: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.int64]]:
    """The valid members of each group that has two."""
    for number in np.unique(group):
        members = np.flatnonzero(counted & (group == number))
        if len(members) >= 2:
            yield members


def _compared(name: AdvantageName, values: Floats) -> Floats:
    if not differ(values):
        return np.zeros_like(values)
    centred = values - values.mean()
    if name == "group-normalised":
        return centred / (values.std(ddof=1) + _EPSILON)
    if name == "leave-one-out":
        return values - (values.sum() - values) / (len(values) - 1)
    return centred


def _normalised(values: Floats, counted: npt.NDArray[np.bool_]) -> Floats:
    kept = values[counted]
    if not differ(kept):
        return np.zeros_like(values)
    return np.where(counted, (values - kept.mean()) / np.sqrt(kept.var(ddof=1) + _VARIANCE_EPSILON), 0.0)


def _sums_to_the_end(values: Floats, sequence: npt.NDArray[np.int64]) -> Floats:
    """Of each token: its own value and those of the later tokens of its sequence."""
    sums = np.empty_like(values)
    for number in np.unique(sequence):
        own = sequence == number
        sums[own] = np.cumsum(values[own][::-1])[::-1]
    return sums

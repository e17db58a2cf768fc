"""Group-relative advantages: how much better a sample is than the others of its prompt."""

from typing import Literal

import numpy as np
import numpy.typing as npt

_EPSILON = 1e-6
_FLOOR = 1e-6


def group_advantages(
    name: Literal["grpo", "dr_grpo"],
    rewards: npt.NDArray[np.float64],
    valid: npt.NDArray[np.uint8],
    group: npt.NDArray[np.int32],
) -> npt.NDArray[np.float64]:
    """The advantage of every sample, against the valid samples of its group.

    `grpo`: (r - mean) / (std + 1e-6), std with Bessel's correction (DeepSeekMath, arXiv 2402.03300,
    section 4.1.2). `dr_grpo`: r - mean (Liu et al., arXiv 2503.20783, section 3.2).

    A sample that is not valid has advantage 0 and is no part of the mean and the deviation. So has every
    sample of a group with fewer than two valid samples, and of a group whose rewards are equal: whose
    standard deviation is at most 1e-6 of its largest absolute reward. Below that it is rounding, which a
    division by it would turn into advantages of full size.

    Args:
        rewards: float64 [N].
        valid: [N], 0 or 1; rewards of samples with 0 are not read.
        group: [N], equal for samples of the same group.

    Returns:
        float64 [N], always finite.

    Raises:
        ValueError: when the reward of a valid sample is not finite.
    """
    counted = valid.astype(bool)
    wrong = np.flatnonzero(counted & ~np.isfinite(rewards))
    if wrong.size:
        raise ValueError(f"sample {wrong[0]} of the batch is valid and its reward is {rewards[wrong[0]]}")
    advantages = np.zeros(len(rewards), np.float64)
    for members in (np.flatnonzero(counted & (group == number)) for number in np.unique(group)):
        if len(members) < 2:
            continue
        values = rewards[members]
        deviation = values.std(ddof=1)
        if deviation > _FLOOR * np.abs(values).max():
            centred = values - values.mean()
            advantages[members] = centred / (deviation + _EPSILON) if name == "grpo" else centred
    return advantages

"""Policy objectives as sums over tokens with fixed weights.

The loss of a step is Σ_t w_t · l_t over the batch's policy tokens, with the weights known before the
first forward pass. So the gradient is a sum too, and does not depend on how the tokens are split into
micro-batches.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from ..schemas.job_spec import ObjectiveSpec


def sequence_weights(
    name: Literal["grpo", "dr_grpo"],
    lengths: npt.NDArray[np.int64],
    valid: npt.NDArray[np.uint8],
    constant_length: int,
) -> npt.NDArray[np.float64]:
    """The weight w of each policy token of each sequence.

    `grpo`: mean over the tokens of a sequence, then over the sequences (DeepSeekMath, arXiv 2402.03300,
    equation 3): w = 1 / (N · length). `dr_grpo`: sum over tokens, over N times a constant length that is
    the same for short and long completions (Liu et al., arXiv 2503.20783, section 3.2 and listing 1):
    w = 1 / (N · constant_length).

    N counts the sequences that are valid and have a policy token. Those of a group without variance
    count, with advantage 0: a group that is solved dilutes the step, as in both papers. Failed samples
    and empty completions do not count.

    Args:
        lengths: int64 [B], policy tokens of each sequence.
        valid: [B], 0 for samples that failed.
        constant_length: in tokens, at least 1; not used by `grpo`.

    Returns:
        float64 [B]; 0 for sequences that do not count.
    """
    counted = valid.astype(bool) & (lengths > 0)
    weights = np.zeros(len(lengths), np.float64)
    if counted.any():
        per_sequence = lengths[counted] if name == "grpo" else constant_length
        weights[counted] = 1.0 / (counted.sum() * per_sequence)
    return weights


def clipped_surrogate(
    new: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor, spec: ObjectiveSpec
) -> torch.Tensor:
    """The loss of each token: -min(ρ A, clip(ρ, 1 - low, 1 + high) A), ρ = exp(new - behaviour).

    PPO (Schulman et al., arXiv 1707.06347, equation 7), per token as in GRPO (arXiv 2402.03300, equation
    3); two different bounds as in DAPO (arXiv 2503.14476, equation 10). `behaviour` is of the policy that
    produced the token, so staleness is corrected for.

    Args:
        new: [T] log-probabilities under the policy that is trained.
        behaviour: [T] log-probabilities that the sampler reported.
        advantages: [T].

    Returns:
        [T], in the dtype of `new`.
    """
    ratio = torch.exp(new - behaviour)
    clipped = ratio.clamp(1 - spec.clip_low, 1 + spec.clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def is_clipped(
    ratio: npt.NDArray[np.float64], advantages: npt.NDArray[np.float64], spec: ObjectiveSpec
) -> npt.NDArray[np.bool_]:
    """Where the clip of `clipped_surrogate` removes a token's gradient: bool [T]."""
    above = (advantages > 0) & (ratio > 1 + spec.clip_high)
    below = (advantages < 0) & (ratio < 1 - spec.clip_low)
    return above | below

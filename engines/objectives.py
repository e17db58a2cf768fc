"""Policy objectives: the loss of each token, from log-probabilities and advantages.

The loss of an update is Σ_t w_t · l_t with weights w that are known before the first forward pass (see
`aggregation`). So the gradient is a sum too, and does not depend on how the sequences are split into
micro-batches.
"""

from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from ..schemas.objective import ObjectiveSpec


def importance_ratio(
    new: torch.Tensor, old: torch.Tensor, sequence: torch.Tensor, spec: ObjectiveSpec
) -> torch.Tensor:
    """ρ of each token.

    `token`: exp(new - old) (PPO, Schulman et al., arXiv 1707.06347, section 2.1). `sequence`: the geometric
    mean of those over the sequence (GSPO, Zheng et al., arXiv 2507.18071, equation 7). `product`: their
    product, the ratio of the whole completion (RLOO, arXiv 2402.14740, section 2.1).

    Args:
        new: float64 [P], of the policy that is trained.
        old: float64 [P].
        sequence: int64 [P], of each token; a sequence's tokens are all here and stand together.

    Returns:
        float64 [P].
    """
    difference = new - old
    if spec.ratio != "token":
        _, place, counts = cast(
            tuple[torch.Tensor, torch.Tensor, torch.Tensor],
            torch.unique_consecutive(sequence, return_inverse=True, return_counts=True),  # pyright: ignore[reportUnknownMemberType]
        )
        sums = torch.segment_reduce(difference, "sum", lengths=counts)
        difference = (sums / counts if spec.ratio == "sequence" else sums)[place]
    return torch.exp(difference)


def surrogate(
    ratio: torch.Tensor, new: torch.Tensor, advantages: torch.Tensor, spec: ObjectiveSpec
) -> torch.Tensor:
    """The loss of each token, with c(ρ) = clip(ρ, 1 - clip_low, 1 + clip_high).

    - `ppo`: -min(ρ A, c(ρ) A) (PPO, arXiv 1707.06347, equation 7; two different bounds as in DAPO,
      arXiv 2503.14476, equation 10). With dual clip d and A < 0: min(that, -d A) (Ye et al.,
      arXiv 1912.09729, equation 5).
    - `cispo`: -sg(c(ρ)) A · new, where sg has no gradient (MiniMax-M1, arXiv 2506.13585, equations 4, 5).
    - `none`: -ρ A, plain importance sampling.

    Args:
        ratio: float64 [P], of `importance_ratio`.
        new: float64 [P], log-probabilities under the policy that is trained.
        advantages: float64 [P].

    Returns:
        float64 [P].
    """
    if spec.clip == "none":
        return -ratio * advantages
    clipped = ratio.clamp(1 - spec.clip_low, 1 + spec.clip_high)
    if spec.clip == "cispo":
        return -clipped.detach() * advantages * new
    losses = -torch.minimum(ratio * advantages, clipped * advantages)
    if spec.dual_clip is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -spec.dual_clip * advantages), losses)
    return losses


def is_clipped(
    ratio: npt.NDArray[np.float64], advantages: npt.NDArray[np.float64], spec: ObjectiveSpec
) -> npt.NDArray[np.bool_]:
    """Where clipping changes a token's gradient: bool [P].

    With `ppo` the gradient is removed, with `cispo` the token's weight is bounded.
    """
    if spec.clip == "none":
        return np.zeros(len(ratio), np.bool_)
    high, low = ratio > 1 + spec.clip_high, ratio < 1 - spec.clip_low
    if spec.clip == "cispo":
        return high | low
    bounded = spec.dual_clip is not None and (advantages < 0) & (ratio > spec.dual_clip)
    return ((advantages > 0) & high) | ((advantages < 0) & low) | bounded

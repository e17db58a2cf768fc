"""Estimates of the KL divergence of the policy from a reference, per token, from the sampled token."""

from typing import Literal

import torch


def kl_estimate(
    new: torch.Tensor, reference: torch.Tensor, estimator: Literal["k1", "k2", "k3"]
) -> torch.Tensor:
    """An estimate of KL(policy ‖ reference), with d = new - reference.

    `k1`: d. `k2`: d² / 2. `k3`: exp(-d) - 1 + d (Schulman, `Approximating KL divergence`, 2020; `k3` is the
    penalty of GRPO, arXiv 2402.03300, equation 4). As a loss, the expected gradient of `k1` is 0, that of
    `k2` is the divergence's own (Tang & Munos, arXiv 2506.09477).

    Args:
        new: [P], log-probabilities under the policy.
        reference: [P].

    Returns:
        [P], in the dtype of `new`.
    """
    difference = new - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return torch.expm1(-difference) + difference

"""Weights for tokens that the sampler drew from another distribution than the trainer computes."""

import numpy as np
import numpy.typing as npt

from ..schemas.objective import CorrectionSpec
from .advantages import Floats


def correction_weights(
    proximal: Floats, behaviour: Floats, sequence: npt.NDArray[np.int64], spec: CorrectionSpec
) -> Floats:
    """The factor of each token's loss, from ρ = exp(proximal - behaviour), or its product over the sequence.

    - `token-truncate`: min(ρ, high) (truncated importance sampling; Yao et al., `Your efficient RL framework
      secretly brings you off-policy RL training`, 2025; the behaviour weight of decoupled PPO, AReaL,
      arXiv 2505.24298).
    - `token-mask`: ρ where low ≤ ρ ≤ high, else 0 (IcePop; Ring-1T, arXiv 2510.18855).
    - `sequence-truncate`, `sequence-mask`: likewise with the sequence's product.

    A token with weight 0 is masked: it counts in no denominator.

    Args:
        proximal: float64 [P], the trainer's log-probabilities before the step.
        behaviour: float64 [P], the sampler's.
        sequence: int64 [P], of each token.
    """
    difference = proximal - behaviour
    level, _, form = spec.kind.partition("-")
    if level == "sequence":
        difference = np.bincount(sequence, difference)[sequence]
    with np.errstate(over="ignore"):
        ratio = np.exp(difference)
    if form == "truncate":
        return np.minimum(ratio, spec.high)
    return np.where((ratio >= spec.low) & (ratio <= spec.high), ratio, 0.0)

"""From the losses of tokens to one loss: the weight of each token."""

from typing import Literal

import numpy as np
import numpy.typing as npt


def token_weights(
    name: Literal["sequence-mean", "token-mean", "constant", "sum"],
    sequence: npt.NDArray[np.int64],
    counted: npt.NDArray[np.bool_],
    constant_length: int,
) -> npt.NDArray[np.float64]:
    """The weight of each policy token in the loss of an update.

    - `sequence-mean`: mean over a sequence's tokens, then over sequences (GRPO, DeepSeekMath,
      arXiv 2402.03300, equation 3): 1 / (S · tokens of the sequence).
    - `token-mean`: mean over all tokens (DAPO, arXiv 2503.14476, equation 8).
    - `constant`: 1 / (S · constant_length), the same for short and long completions (Dr. GRPO, Liu et al.,
      arXiv 2503.20783, section 3.2 and listing 1).
    - `sum`: 1.

    S counts the sequences with a counted token. Those of a group without variance count, with advantage 0:
    a group that is solved dilutes the step, as in the papers. What is masked counts nowhere.

    Args:
        sequence: int64 [P], of each policy token.
        counted: bool [P], False for tokens that are masked.
        constant_length: in tokens, at least 1.

    Returns:
        float64 [P]; 0 for tokens that are not counted.
    """
    weights = np.zeros(len(sequence), np.float64)
    if not counted.any():
        return weights
    lengths = np.bincount(sequence[counted])
    sequences = np.count_nonzero(lengths)
    match name:
        case "sequence-mean":
            weights[counted] = 1.0 / (sequences * lengths[sequence[counted]])
        case "token-mean":
            weights[counted] = 1.0 / counted.sum()
        case "constant":
            weights[counted] = 1.0 / (sequences * constant_length)
        case "sum":
            weights[counted] = 1.0
    return weights

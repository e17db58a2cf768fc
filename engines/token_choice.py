"""Draws tokens from logits. Every row is drawn from its own logits, temperature and number alone."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

_BLOCK = 128


@dataclass(frozen=True)
class Choice:
    """A drawn token.

    Attributes:
        logprob: natural logarithm of its probability in the distribution that it was drawn from.
    """

    token: int
    logprob: float


@torch.inference_mode()
def choose(
    logits: torch.Tensor, temperatures: Sequence[float], uniforms: Sequence[float]
) -> list[Choice | None]:
    """Draws one token a row by inverting the cumulative distribution.

    The distribution is softmax(logits / temperature) in float32 (float64 for float64 logits). The token
    is the first whose cumulative probability, summed over ids in ascending order in float64 from blocks
    of 128 ids, exceeds the row's uniform number. Temperature 0 takes the most likely token, the lowest
    id among equals, and its log-probability is that of temperature 1.

    Args:
        logits: [rows, vocabulary]; overwritten.
        temperatures: one a row, ≥ 0.
        uniforms: one a row, in [0, 1).

    Returns:
        A choice a row; None where the logits hold NaN, +inf, or nothing that is finite.
    """
    scores = logits if logits.dtype == torch.float64 else logits.float()
    scores -= scores.amax(-1, keepdim=True)  # a row with NaN or +inf is NaN from here on
    if any(temperature not in (0.0, 1.0) for temperature in temperatures):
        scores /= torch.tensor([[t or 1.0] for t in temperatures], dtype=scores.dtype, device=scores.device)
    greedy = [row for row, temperature in enumerate(temperatures) if temperature == 0]
    best = _lowest_best(scores[greedy]) if greedy else []
    extra = -scores.shape[-1] % _BLOCK
    if extra:
        scores = pad(scores, (0, extra), value=-torch.inf)
    weights = scores.exp().view(len(scores), -1, _BLOCK)
    sums = weights.sum(-1).double().cpu().cumsum(-1)
    totals = sums[:, -1]
    tokens = _invert(weights, sums, torch.tensor(uniforms, dtype=torch.float64))
    for row, token in zip(greedy, best, strict=True):
        tokens[row] = token
    chosen = scores.gather(1, tokens.to(scores.device)[:, None])[:, 0].cpu().double()
    logprobs = (chosen - totals.log()).to(scores.dtype).tolist()
    rows = zip(tokens.tolist(), logprobs, totals.isfinite().tolist(), strict=True)
    return [Choice(token, logprob) if finite else None for token, logprob, finite in rows]


def _lowest_best(scores: torch.Tensor) -> list[int]:
    """The lowest id with score 0, the best; 0 in a row without any."""
    ids = torch.arange(scores.shape[-1], device=scores.device)
    found = torch.where(scores == 0, ids, len(ids)).amin(-1)
    return torch.where(found == len(ids), 0, found).tolist()


def _invert(weights: torch.Tensor, sums: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Token ids [rows] from weights [rows, blocks, block] and cumulative block sums [rows, blocks]."""
    # With u ≤ 1 - 2⁻⁵³ the target rounds to less than the total, so some sum exceeds it, but for NaN.
    targets = (uniforms * sums[:, -1])[:, None]
    blocks = torch.searchsorted(sums, targets, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(blocks > 0, sums.gather(1, (blocks - 1).clamp_(min=0)), 0.0)
    rows = torch.arange(len(sums), device=weights.device)
    inside = weights[rows, blocks[:, 0].to(weights.device)].double().cpu()
    offsets = torch.searchsorted(before + inside.cumsum(-1), targets, right=True)
    # The block's float32 sum may exceed its float64 sum by a rounding: then its last possible token.
    last = torch.where(inside > 0, torch.arange(_BLOCK), 0).amax(-1, keepdim=True)
    return (blocks * _BLOCK + torch.minimum(offsets, last))[:, 0]

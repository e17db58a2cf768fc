"""Attention of one new token a row over cached keys, which are not copied for the heads that share them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .shape_probe import ladder, noise

_NAME = "marlaas_grouped"
_LENGTH_STEP = 32


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Makes a model of transformers attend with this module's function."""
    AttentionInterface.register(_NAME, _attend)
    model.set_attn_implementation(_NAME)


def visible_places(positions: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """The mask [rows, 1, 1, length] with which a row at position p sees the places 0 … p: 0, else -inf."""
    hidden = torch.arange(length, device=positions.device) > positions[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(hidden, -torch.inf)[:, None, None]


def exact_lengths(heads: int, rows: int, context: int, like: torch.Tensor) -> list[int]:
    """Lengths, in ascending order, to which keys may be cut without changing a bit of the outcome.

    Args:
        like: keys [tokens, key heads, head size] of the model.

    Returns:
        The last is `context`.
    """
    query = noise((rows, heads, 1, like.shape[2]), like)
    keys, values = (noise((rows, context, *like.shape[1:]), like).transpose(1, 2) for _ in range(2))

    def attend(length: int, end: int) -> torch.Tensor:
        mask = visible_places(torch.full((rows,), end - 1, device=like.device), length, like.dtype)
        return _grouped(query, keys[:, :, :length], values[:, :, :length], mask, None)

    candidates = ladder(_LENGTH_STEP, context)
    full = {end: attend(context, end) for end in candidates}

    def exact(length: int) -> bool:
        return all(torch.equal(attend(length, end), full[end]) for end in candidates if end <= length)

    return [length for length in candidates if length == context or exact(length)]


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: query [rows, heads, tokens, size], result [rows, tokens, heads, size]."""
    if query.shape[2] > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    return _grouped(query, key, value, attention_mask, scaling).transpose(1, 2), None


def _grouped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """[rows, heads, 1, size]; the heads that share a key head stand as queries of that head."""
    rows, heads, _, size = query.shape
    shared = query.reshape(rows, key.shape[1], heads // key.shape[1], size)
    return scaled_dot_product_attention(shared, key, value, attn_mask=mask, scale=scaling).view(query.shape)

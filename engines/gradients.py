"""Gradients of a loss on token log-probabilities, micro-batch by micro-batch, in bounded memory."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel

from .base_model import UnusableModel
from .packing import MicroBatch, attention_mask

_LOGITS = 2**23
"""Most logits that exist at once; larger chunks are no faster."""

TokenLosses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From float64 log-probabilities [C] and where their tokens stand in the batch [C], to losses [C]."""


def check_head(model: PreTrainedModel) -> None:
    """Makes sure that the logits are the output layer applied to the decoder's outputs, and no more.

    Raises:
        UnusableModel: when the model does something else, for example caps or scales its logits.
    """
    probe = torch.arange(4, device=model.device)[None]
    with torch.no_grad():
        logits = model(input_ids=probe, use_cache=False).logits
        plain = _head(model)(_decoder(model)(input_ids=probe, use_cache=False).last_hidden_state)
    if not torch.allclose(logits, plain, rtol=1e-3, atol=1e-3):
        raise UnusableModel(
            f"{type(model).__name__} changes its logits after the output layer; such a model can't be trained"
        )


def accumulate_gradients(
    model: PreTrainedModel,
    micro_batches: Sequence[MicroBatch],
    token_ids: npt.NDArray[np.int32],
    temperature: float,
    losses: TokenLosses,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the gradient of the summed losses to the `grad` of the model's parameters that require one.

    Only predicted positions get logits, at most 2^23 of them at a time; log-softmax is float32, or float64
    in a float64 model, of logits / temperature.

    Args:
        token_ids: int32 [T], of the batch that the micro-batches were packed from.
        losses: called on parts of each micro-batch; the total is the sum of what it returns.

    Returns:
        Log-probabilities, float64 [P], of all trained tokens before any update, and where in the batch
        each token stands, int64 [P].
    """
    logprobs: list[torch.Tensor] = []
    targets: list[torch.Tensor] = []
    ids = torch.from_numpy(token_ids).to(model.device, torch.int64)
    for micro in micro_batches:
        hidden = _outputs(model, micro)
        leaf = hidden.detach().requires_grad_()
        places = torch.from_numpy(micro.targets).to(model.device)
        chunk = max(1, _LOGITS // _head(model).out_features)
        for some, where in zip(leaf.split(chunk), places.split(chunk), strict=True):
            new = _logprobs(_head(model)(some), ids[where], temperature).double()
            losses(new, where).sum().backward()
            logprobs.append(new.detach())
        hidden.backward(leaf.grad)
        targets.append(places)
    return torch.cat(logprobs), torch.cat(targets)


def _outputs(model: PreTrainedModel, micro: MicroBatch) -> torch.Tensor:
    """The decoder's outputs [P, H] at the predicting positions."""
    segments = torch.from_numpy(micro.segments).to(model.device)
    outputs = _decoder(model)(
        input_ids=torch.from_numpy(micro.token_ids).to(model.device),
        position_ids=torch.from_numpy(micro.positions).to(model.device),
        attention_mask=attention_mask(segments),
        use_cache=False,
    ).last_hidden_state
    # Several samples take their first token from one position; index_select adds their gradients in order.
    return outputs.flatten(0, 1).index_select(0, torch.from_numpy(micro.predictors).to(model.device))


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:  # two passes over all logits
        precise = precise / temperature
    return torch.log_softmax(precise, dim=-1).gather(1, tokens[:, None])[:, 0]


def _decoder(model: PreTrainedModel) -> Callable[..., Any]:
    return cast(Callable[..., Any], model.base_model)


def _head(model: PreTrainedModel) -> nn.Linear:
    return cast(nn.Linear, model.get_output_embeddings())

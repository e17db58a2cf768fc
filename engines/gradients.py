"""Log-probabilities of tokens and gradients of losses on them, in bounded memory."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
"""From float64 log-probabilities [C] and where their tokens stand in the batch [C], to losses [C]. All of a
sequence's tokens are in one call, one after the other."""


@dataclass(frozen=True)
class ComputedTokens:
    """What a forward pass found, P tokens.

    Attributes:
        places: int64 [P], where in the batch each token stands.
        logprobs: float64 [P].
        entropies: float64 [P], in nats, of the distribution that the token comes from.
    """

    places: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]
    entropies: npt.NDArray[np.float64]


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
) -> ComputedTokens:
    """Adds the gradient of the summed losses to the `grad` of the model's parameters that require one.

    Only predicted positions get logits, at most 2^23 of them at a time; log-softmax is float32, or float64
    in a float64 model, of logits / temperature. A loss may depend on all tokens of a micro-batch: each
    token's log-probability is first derived with respect to its own hidden state, and what the losses
    make of them scales that.

    Args:
        token_ids: int32 [T], of the batch that the micro-batches were packed from.
        losses: called once for each micro-batch; the total is the sum of what it returns.

    Returns:
        All trained tokens before any update.
    """
    found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    ids = torch.from_numpy(token_ids).to(model.device, torch.int64)
    for micro in micro_batches:
        hidden = _outputs(model, micro)
        places = torch.from_numpy(micro.targets).to(model.device)
        leaf = hidden.detach().requires_grad_()
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        for chunk, where in _chunks(model, leaf, places):
            distribution = _distributions(_head(model)(chunk), temperature)
            new = _at(distribution, ids[where])
            new.sum().backward()
            parts.append((new.detach(), _entropies(distribution.detach())))
        new = torch.cat([part[0] for part in parts]).double().requires_grad_()
        losses(new, places).sum().backward()
        assert leaf.grad is not None
        assert new.grad is not None
        hidden.backward(leaf.grad * new.grad[:, None].to(leaf.dtype))
        found.append((places, new.detach(), torch.cat([part[1] for part in parts])))
    places, logprobs, entropies = (torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))
    return ComputedTokens(places, logprobs, entropies)


@torch.no_grad()
def compute_logprobs(
    model: PreTrainedModel,
    micro_batches: Sequence[MicroBatch],
    token_ids: npt.NDArray[np.int32],
    temperature: float,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The same places [P] and log-probabilities [P], without gradients."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    ids = torch.from_numpy(token_ids).to(model.device, torch.int64)
    for micro in micro_batches:
        places = torch.from_numpy(micro.targets).to(model.device)
        for chunk, where in _chunks(model, _outputs(model, micro), places):
            distribution = _distributions(_head(model)(chunk), temperature)
            found.append((where, _at(distribution, ids[where]).double()))
    places, logprobs = (torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))
    return places, logprobs


def _chunks(
    model: PreTrainedModel, hidden: torch.Tensor, places: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    size = max(1, _LOGITS // _head(model).out_features)
    yield from zip(hidden.split(size), places.split(size), strict=True)


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


def _distributions(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities [C, V] of all tokens."""
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:  # two passes over all logits
        precise = precise / temperature
    return torch.log_softmax(precise, dim=-1)


def _at(distributions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return distributions.gather(1, tokens[:, None])[:, 0]


def _entropies(distributions: torch.Tensor) -> torch.Tensor:
    return -(distributions.exp() * distributions).sum(-1).double()


def _decoder(model: PreTrainedModel) -> Callable[..., Any]:
    return cast(Callable[..., Any], model.base_model)


def _head(model: PreTrainedModel) -> nn.Linear:
    return cast(nn.Linear, model.get_output_embeddings())

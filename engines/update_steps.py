"""The optimizer updates of one training step: mini-batches, epochs, and what is fixed before the first."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import PreTrainedModel

from ..schemas.batch import Batch
from ..schemas.job_spec import JobSpec
from ..schemas.seeds import sample_seed
from .learning_signal import Signal, StartLogprobs
from .policy_gradient import TrainedTokens, accumulate_policy_gradient
from .schedule import learning_rate


@dataclass(frozen=True)
class Update:
    """One optimizer update.

    Attributes:
        grad_norm: before clipping.
        learning_rate: of the update.
    """

    tokens: TrainedTokens
    grad_norm: float
    learning_rate: float


def make_updates(
    model: PreTrainedModel,
    parameters: Mapping[str, nn.Parameter],
    adamw: torch.optim.AdamW,
    spec: JobSpec,
    batch: Batch,
    version: int,
    signal: Signal,
    start: StartLogprobs,
) -> list[Update] | str:
    """Trains the parameters on a batch; or says what was not finite, and leaves them half trained.

    A mini-batch in which nothing is trained is left out.
    """
    made = int(next(iter(adamw.state.values()))["step"])
    updates: list[Update] = []
    for sequences in mini_batches(spec, batch, version):
        if not np.isin(signal.trained, sequences).any():
            continue
        for parameter in parameters.values():
            parameter.grad = None
        tokens = accumulate_policy_gradient(model, spec, batch, signal, start, sequences)
        if not np.isfinite(tokens.loss):
            return f"the loss is {tokens.loss}"
        gradients = [parameter.grad for parameter in parameters.values() if parameter.grad is not None]
        norm = get_total_norm(gradients)
        if not torch.isfinite(norm):
            return f"the norm of the gradient is {float(norm)}"
        clip_grads_with_norm_(parameters.values(), spec.optimizer.max_grad_norm, norm)
        rate = learning_rate(spec.optimizer, made + len(updates), spec.steps)
        for settings in adamw.param_groups:
            settings["lr"] = rate
        adamw.step()
        if not all(bool(parameter.isfinite().all()) for parameter in parameters.values()):
            return f"a learning rate of {rate:g} makes a weight of the adapter infinite"
        updates.append(Update(tokens, float(norm), rate))
    return updates


def mini_batches(spec: JobSpec, batch: Batch, version: int) -> Iterator[npt.NDArray[np.int64]]:
    """The sequences of each update: whole groups, in an order of its own in each epoch.

    One update takes the batch as it is. With several, the order is a function of the job's seed, the
    version and the epoch.
    """
    groups = np.unique(batch.group).tolist()
    for epoch in range(spec.optimizer.epochs):
        if spec.optimizer.mini_batches > 1:
            name = f"mini-batches/{version}/{epoch}"
            groups = sorted(groups, key=lambda group: sample_seed(spec.seed, name, group))
        for some in np.array_split(groups, spec.optimizer.mini_batches):
            yield np.flatnonzero(np.isin(batch.group, some))

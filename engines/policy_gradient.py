"""The gradient of a job's objective on sequences of a batch."""
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from ..schemas.batch import Batch
from ..schemas.job_spec import JobSpec
from .aggregation import token_weights
from .gradients import accumulate_gradients, compute_logprobs
from .kl import kl_estimate
from .learning_signal import Floats, PolicyTokens, Signal, StartLogprobs
from .objectives import importance_ratio, is_clipped, surrogate
from .packing import pack


@dataclass(frozen=True)
class TrainedTokens:
    """The policy tokens that an update computed, P of them.

    Attributes:
        tokens: int64 [P], positions in the signal's arrays.
        logprobs: float64 [P], before the update.
        entropies: float64 [P], in nats.
        ratio: float64 [P], importance ratio.
        clipped: bool [P].
        losses: float64 [P], weighted; they sum to the loss.
    """

    tokens: npt.NDArray[np.int64]
    logprobs: Floats
    entropies: Floats
    ratio: Floats
    clipped: npt.NDArray[np.bool_]
    losses: Floats

    @property
    def loss(self) -> float:
        return float(self.losses.sum())


class PolicyLoss:
    """The weighted loss of each token, as a function of its log-probability.

    With `old: trainer` and no proximal log-probabilities, the policy that is trained is the one that the
    step begins with: they are its own.
    """

    def __init__(
        self,
        spec: JobSpec,
        batch: Batch,
        signal: Signal,
        start: StartLogprobs,
        sequences: npt.NDArray[np.int64],
        device: torch.device,
    ) -> None:
        """
        Args:
            sequences: int64, all those of the update, trained or not: the denominators count them.
        """
        tokens = signal.tokens
        counted = signal.counted & np.isin(tokens.sequence, sequences)
        weights = token_weights(
            spec.objective.aggregation, tokens.sequence, counted, spec.sampling.max_tokens
        )
        behaviour = batch.logprobs[tokens.places].astype(np.float64)

        def there(values: npt.NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(values).to(device)

        self._objective = spec.objective
        self._advantages = there(signal.advantages)
        self._surrogate_weights = there(weights * signal.correction)
        self._weights = there(weights)
        self._sequence = there(tokens.sequence)
        self._old = (
            there(behaviour)
            if spec.objective.old == "sampler"
            else there(start.proximal)
            if start.proximal is not None
            else None
        )
        self._reference = there(start.reference) if start.reference is not None else None

    def ratio(self, new: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Importance ratio [P] of tokens [P], their positions in the signal's arrays."""
        old = new.detach() if self._old is None else self._old[tokens]
        return importance_ratio(new, old, self._sequence[tokens], self._objective)

    def __call__(self, new: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Weighted losses [P]."""
        ratio = self.ratio(new, tokens)
        losses = surrogate(ratio, new, self._advantages[tokens], self._objective)
        losses = losses * self._surrogate_weights[tokens]
        kl = self._objective.kl
        if kl is not None and kl.place == "loss" and self._reference is not None:
            distance = kl_estimate(new, self._reference[tokens], kl.estimator)
            losses = losses + kl.coefficient * distance * self._weights[tokens]
        return losses


def accumulate_policy_gradient(
    model: PreTrainedModel,
    spec: JobSpec,
    batch: Batch,
    signal: Signal,
    start: StartLogprobs,
    sequences: npt.NDArray[np.int64],
) -> TrainedTokens:
    """Adds the gradient of the loss of an update to the `grad` of the parameters that require one.

    Args:
        model: in eval mode, with the adapter that is trained.
        sequences: int64, of the update; at least one of them is trained.

    Raises:
        ValueError: when a trained sequence has no prompt.
    """
    position = _positions(batch, signal.tokens)
    loss = PolicyLoss(spec, batch, signal, start, sequences, model.device)
    there = torch.from_numpy(position).to(model.device)
    trained = np.intersect1d(signal.trained, sequences).tolist()
    computed = accumulate_gradients(
        model,
        pack(batch, trained, spec.optimizer.micro_batch_tokens),
        batch.token_ids,
        spec.sampling.temperature,
        lambda new, where: loss(new, there[where]),
    )
    tokens = position[computed.places]
    new, where = (
        torch.from_numpy(computed.logprobs).to(model.device),
        torch.from_numpy(tokens).to(model.device),
    )
    ratio = loss.ratio(new, where).cpu().numpy()
    return TrainedTokens(
        tokens=tokens,
        logprobs=computed.logprobs,
        entropies=computed.entropies,
        ratio=ratio,
        clipped=is_clipped(ratio, signal.advantages[tokens], spec.objective),
        losses=loss(new, where).cpu().numpy(),
    )


def compute_policy_logprobs(
    model: PreTrainedModel, spec: JobSpec, batch: Batch, tokens: PolicyTokens
) -> Floats:
    """Log-probabilities of the eligible tokens under a model: float64 [P], 0 for the others."""
    found = np.zeros(len(tokens.places))
    sequences: Sequence[int] = tokens.sequences
    if sequences:
        micro_batches = pack(batch, sequences, spec.optimizer.micro_batch_tokens)
        places, logprobs = compute_logprobs(model, micro_batches, batch.token_ids, spec.sampling.temperature)
        found[_positions(batch, tokens)[places]] = logprobs
    return found


def _positions(batch: Batch, tokens: PolicyTokens) -> npt.NDArray[np.int64]:
    """Where in the policy tokens' arrays each place of the batch is."""
    position = np.zeros(len(batch.token_ids), np.int64)
    position[tokens.places] = np.arange(len(tokens.places))
    return position

"""The gradient of a job's objective on a batch."""
# pyright: reportUnknownMemberType=false

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from ..schemas.batch import Batch
from ..schemas.job_spec import JobSpec
from .advantages import group_advantages
from .gradients import accumulate_gradients
from .objectives import clipped_surrogate, sequence_weights
from .packing import pack


@dataclass(frozen=True)
class Signal:
    """What there is to learn from a batch of N sequences.

    Attributes:
        advantages: float64 [N].
        weights: float64 [N], in the loss, of each policy token of the sequence.
        trained: sequences with a policy token and an advantage other than 0. The others have no
            gradient and are not computed.
    """

    advantages: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64]
    trained: tuple[int, ...]


@dataclass(frozen=True)
class TrainedTokens:
    """The policy tokens of the trained sequences, P of them.

    Attributes:
        places: int64 [P], in the batch's arrays.
        new: float64 [P], log-probabilities before the update.
        behaviour: float64 [P], log-probabilities of the sampler.
        advantages: float64 [P], of the token's sequence.
        losses: float64 [P], weighted; they sum to the loss.
    """

    places: npt.NDArray[np.int64]
    new: npt.NDArray[np.float64]
    behaviour: npt.NDArray[np.float64]
    advantages: npt.NDArray[np.float64]
    losses: npt.NDArray[np.float64]

    @property
    def loss(self) -> float:
        return float(self.losses.sum())


def find_signal(spec: JobSpec, batch: Batch) -> Signal:
    """Advantages and weights of a batch under the job's objective.

    Raises:
        ValueError: when the reward of a valid sample is not finite.
    """
    policy_tokens = np.concatenate([[0], np.cumsum(batch.mask, dtype=np.int64)])
    lengths = np.diff(policy_tokens[batch.offsets])
    advantages = group_advantages(spec.objective.name, batch.rewards, batch.valid, batch.group)
    weights = sequence_weights(spec.objective.name, lengths, batch.valid, spec.sampling.max_tokens)
    trained = np.flatnonzero((advantages != 0) & (weights != 0))
    return Signal(advantages, weights, tuple(trained.tolist()))


def why_not(batch: Batch, signal: Signal) -> str | None:
    """Why the batch can't be trained on; None when it can."""
    if not batch.valid.any():
        return "no sample has a reward"
    if not signal.advantages.any():
        return "every advantage is 0"
    if not signal.trained:
        return "no sample with an advantage has a token of the policy"
    for sequence in signal.trained:
        tokens = slice(batch.offsets[sequence], batch.offsets[sequence + 1])
        wrong = batch.logprobs[tokens][(batch.mask[tokens] == 1) & ~np.isfinite(batch.logprobs[tokens])]
        if wrong.size:
            return f"the sampler's log-probability of a token of sequence {sequence} is {wrong[0]}"
    return None


def accumulate_policy_gradient(
    model: PreTrainedModel, spec: JobSpec, batch: Batch, signal: Signal
) -> TrainedTokens:
    """Adds the gradient of the job's loss to the `grad` of the parameters that require one.

    Args:
        model: in eval mode, with the adapter of the version that is trained.
        signal: of the batch, with at least one trained sequence.

    Raises:
        ValueError: when a trained sequence has no prompt.
    """
    lengths = np.diff(batch.offsets)
    behaviour = torch.from_numpy(batch.logprobs).to(model.device, torch.float64)
    advantages = torch.from_numpy(np.repeat(signal.advantages, lengths)).to(model.device)
    weights = torch.from_numpy(np.repeat(signal.weights, lengths)).to(model.device)

    def losses(new: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        return clipped_surrogate(new, behaviour[where], advantages[where], spec.objective) * weights[where]

    micro_batches = pack(batch, signal.trained, spec.optimizer.micro_batch_tokens)
    new, where = accumulate_gradients(
        model, micro_batches, batch.token_ids, spec.sampling.temperature, losses
    )
    return TrainedTokens(
        places=where.cpu().numpy(),
        new=new.cpu().numpy(),
        behaviour=behaviour[where].cpu().numpy(),
        advantages=advantages[where].cpu().numpy(),
        losses=losses(new, where).cpu().numpy(),
    )

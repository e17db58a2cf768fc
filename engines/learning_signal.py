"""What there is to learn from a batch: which tokens count, and their advantages."""
# pyright: reportUnknownMemberType=false

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..schemas.batch import Batch
from ..schemas.job_spec import JobSpec
from ..schemas.objective import OverlongSpec
from .advantages import Floats, token_advantages
from .correction import correction_weights
from .kl import kl_estimate


@dataclass(frozen=True)
class PolicyTokens:
    """The tokens that the policy produced, P of them, in the batch's order.

    Attributes:
        places: int64 [P], in the batch's arrays.
        sequence: int64 [P], that each token belongs to.
        eligible: bool [P], False in samples that failed or that truncation masks.
    """

    places: npt.NDArray[np.int64]
    sequence: npt.NDArray[np.int64]
    eligible: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, batch: Batch, *, mask_truncated: bool) -> "PolicyTokens":
        places = np.flatnonzero(batch.mask)
        sequence = np.searchsorted(batch.offsets, places, side="right") - 1
        kept = batch.valid.astype(bool) & ~(mask_truncated & batch.truncated.astype(bool))
        return cls(places, sequence, kept[sequence])

    @property
    def sequences(self) -> tuple[int, ...]:
        """Those with an eligible token."""
        return tuple(np.unique(self.sequence[self.eligible]).tolist())


@dataclass(frozen=True)
class StartLogprobs:
    """Log-probabilities of the policy tokens before a step's first update; 0 where a token is not eligible.

    Attributes:
        proximal: float64 [P], of the policy that the step begins with; None when `needs_proximal` says no.
        reference: float64 [P], of the policy that a KL penalty keeps near; None without one.
    """

    proximal: Floats | None = None
    reference: Floats | None = None


def needs_proximal(spec: JobSpec) -> bool:
    """Whether a step needs the log-probabilities of the policy that it begins with.

    A single update has them from its own forward pass.
    """
    return start_decides_signal(spec) or spec.optimizer.updates > 1


def start_decides_signal(spec: JobSpec) -> bool:
    """Whether advantages and masks depend on log-probabilities that the trainer computes."""
    kl = spec.objective.kl
    return spec.objective.correction is not None or (kl is not None and kl.place == "reward")


@dataclass(frozen=True)
class Signal:
    """What the policy tokens teach.

    Attributes:
        tokens: P of them.
        advantages: float64 [P].
        correction: float64 [P], factor of each token's loss.
        counted: bool [P], whether a token has a part in the loss and its denominators.
        trained: sequences with a counted token that has a gradient. The others are not computed.
    """

    tokens: PolicyTokens
    advantages: Floats
    correction: Floats
    counted: npt.NDArray[np.bool_]
    trained: tuple[int, ...]


def find_signal(spec: JobSpec, batch: Batch, tokens: PolicyTokens, start: StartLogprobs) -> Signal:
    """Advantages and masks of a batch under the job's objective.

    Raises:
        ValueError: when the reward of a valid sample is not finite.
    """
    objective = spec.objective
    rewards = batch.rewards
    if objective.overlong is not None:
        lengths = np.bincount(tokens.sequence, minlength=len(rewards))
        rewards = rewards - overlong_penalties(lengths, spec.sampling.max_tokens, objective.overlong)
    advantages = token_advantages(
        objective.advantage,
        rewards,
        batch.valid,
        batch.group,
        tokens.sequence,
        _penalties(spec, start, len(tokens.places)),
    )
    correction = np.ones(len(tokens.places))
    if objective.correction is not None and start.proximal is not None:
        behaviour = batch.logprobs[tokens.places].astype(np.float64)
        correction = correction_weights(start.proximal, behaviour, tokens.sequence, objective.correction)
    counted = tokens.eligible & (correction != 0)
    learning = counted & (advantages != 0)
    if objective.kl is not None and objective.kl.place == "loss":
        learning = counted & learning.any()
    trained = tuple(np.unique(tokens.sequence[learning]).tolist())
    return Signal(tokens, advantages, correction, counted, trained)


def _penalties(spec: JobSpec, start: StartLogprobs, count: int) -> Floats:
    """What the KL penalty takes off the reward at each token."""
    kl = spec.objective.kl
    if kl is None or kl.place == "loss":
        return np.zeros(count)
    assert start.proximal is not None
    assert start.reference is not None
    proximal, reference = torch.from_numpy(start.proximal), torch.from_numpy(start.reference)
    return kl.coefficient * kl_estimate(proximal, reference, kl.estimator).numpy()


def overlong_penalties(lengths: npt.NDArray[np.int64], max_tokens: int, spec: OverlongSpec) -> Floats:
    """What is taken off the reward of long completions: float64 [N] (DAPO, arXiv 2503.14476, equation 13).

    0 up to max_tokens - buffer_tokens, then linear up to `penalty` at max_tokens.

    Args:
        lengths: int64 [N], of completions, in tokens.
    """
    over = lengths - (max_tokens - spec.buffer_tokens)
    return spec.penalty * np.clip(over / spec.buffer_tokens, 0.0, 1.0)


def why_not(batch: Batch, signal: Signal) -> str | None:
    """Why the batch can't be trained on; None when it can."""
    if not batch.valid.any():
        return "no sample has a reward"
    if not len(signal.tokens.places):
        return "the policy produced no token"
    if not signal.advantages.any():
        return "every advantage is 0"
    if not signal.counted.any():
        return "every token of the policy is masked"
    if not signal.trained:
        return "every token with an advantage is masked"
    inside = np.isin(signal.tokens.sequence, signal.trained)
    logprobs = batch.logprobs[signal.tokens.places]
    wrong = np.flatnonzero(inside & ~np.isfinite(logprobs))
    if wrong.size:
        sequence = signal.tokens.sequence[wrong[0]]
        return f"the sampler's log-probability of a token of sequence {sequence} is {logprobs[wrong[0]]}"
    return None

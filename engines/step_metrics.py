"""What a training step reports, from its batch and the log-probabilities that it computed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..schemas.batch import Batch
from ..schemas.job_spec import ObjectiveSpec
from ..schemas.manifest import StepMetrics
from .objectives import is_clipped
from .policy_gradient import TrainedTokens


@dataclass(frozen=True)
class Update:
    """What one optimizer step did."""

    tokens: TrainedTokens
    grad_norm: float


def step_metrics(
    batch: Batch,
    advantages: npt.NDArray[np.float64],
    version: int,
    objective: ObjectiveSpec,
    outcome: Update | str,
    seconds: float,
) -> StepMetrics:
    """Reports a step on a batch.

    Args:
        advantages: float64 [N], of every sample.
        version: that the step trained.
        outcome: the update, or why there was none.
        seconds: that the step took.
    """
    rewards = batch.rewards[batch.valid == 1]
    samples = len(batch.valid)
    scored = np.unique(batch.group[batch.valid == 1])
    groups = len(np.unique(batch.group))
    with_signal = len(np.unique(batch.group[advantages != 0]))
    completion_tokens = int(batch.mask.sum())
    return StepMetrics(
        reward_mean=float(rewards.mean()) if len(rewards) else None,
        reward_std=float(rewards.std()) if len(rewards) else None,
        zero_variance_share=1 - with_signal / len(scored) if len(scored) else 0.0,
        groups=groups,
        failed_groups=groups - len(scored),
        failed_samples=samples - len(rewards),
        samples=samples,
        prompt_tokens=len(batch.token_ids) - completion_tokens,
        completion_tokens=completion_tokens,
        truncated_share=float(batch.truncated.mean()) if samples else 0.0,
        staleness_max=version - int(batch.version.min()) if samples else 0,
        skipped=isinstance(outcome, str),
        skip_reason=outcome if isinstance(outcome, str) else None,
        train_seconds=seconds,
        **_of_update(outcome, objective),
    )


def _of_update(outcome: Update | str, objective: ObjectiveSpec) -> dict[str, float]:
    if isinstance(outcome, str):
        return dict.fromkeys(
            ("loss", "grad_norm", "ratio_mean", "clipped_share", "logprob_gap_mean", "logprob_gap_max"), 0.0
        )
    tokens = outcome.tokens
    ratio = np.exp(tokens.new - tokens.behaviour)
    gap = np.abs(tokens.new - tokens.behaviour)
    return {
        "loss": tokens.loss,
        "grad_norm": outcome.grad_norm,
        "ratio_mean": float(ratio.mean()),
        "clipped_share": float(is_clipped(ratio, tokens.advantages, objective).mean()),
        "logprob_gap_mean": float(gap.mean()),
        "logprob_gap_max": float(gap.max()),
    }

"""What a training step reports, from its batch and the log-probabilities that it computed."""
# pyright: reportUnknownMemberType=false

from typing import Any

import numpy as np
import torch

from ..schemas.batch import Batch
from ..schemas.job_spec import JobSpec
from ..schemas.manifest import StepMetrics
from .advantages import varied_groups
from .kl import kl_estimate
from .learning_signal import Floats, Signal, StartLogprobs
from .update_steps import Update


def step_metrics(
    spec: JobSpec,
    batch: Batch,
    version: int,
    signal: Signal,
    start: StartLogprobs,
    outcome: list[Update] | str,
    seconds: float,
) -> StepMetrics:
    """Reports a step on a batch.

    Args:
        version: that the step trained.
        outcome: the updates, or why there were none.
        seconds: that the step took.
    """
    rewards = batch.rewards[batch.valid == 1]
    samples = len(batch.valid)
    scored = np.unique(batch.group[batch.valid == 1])
    groups = len(np.unique(batch.group))
    varied = varied_groups(batch.rewards, batch.valid, batch.group)
    lengths = np.bincount(signal.tokens.sequence, minlength=samples)
    completion_tokens = int(lengths.sum())
    return StepMetrics(
        reward_mean=float(rewards.mean()) if len(rewards) else None,
        reward_std=float(rewards.std()) if len(rewards) else None,
        zero_variance_share=1 - len(varied) / len(scored) if len(scored) else 0.0,
        groups=groups,
        failed_groups=groups - len(scored),
        failed_samples=samples - len(rewards),
        samples=samples,
        prompt_tokens=len(batch.token_ids) - completion_tokens,
        completion_tokens=completion_tokens,
        completion_length_max=int(lengths.max(initial=0)),
        truncated_share=float(batch.truncated.mean()) if samples else 0.0,
        staleness_max=version - int(batch.version.min()) if samples else 0,
        skipped=isinstance(outcome, str),
        skip_reason=outcome if isinstance(outcome, str) else None,
        train_seconds=seconds,
        **(_NOTHING if isinstance(outcome, str) else _of_updates(spec, batch, signal, start, outcome)),
    )


_NOTHING: dict[str, Any] = {
    "updates": 0,
    **dict.fromkeys(
        ("loss", "grad_norm", "ratio_mean", "clipped_share", "logprob_gap_mean", "logprob_gap_max"), 0.0
    ),
}


def _of_updates(
    spec: JobSpec, batch: Batch, signal: Signal, start: StartLogprobs, updates: list[Update]
) -> dict[str, Any]:
    seen = np.concatenate([update.tokens.tokens for update in updates])
    _, first = np.unique(seen, return_index=True)  # of each token, in the epoch that computed it first
    tokens = seen[first]
    logprobs, entropies = (
        np.concatenate([getattr(update.tokens, name) for update in updates])[first]
        for name in ("logprobs", "entropies")
    )
    if start.proximal is not None:
        logprobs = start.proximal[tokens]
    gap = np.abs(logprobs - batch.logprobs[signal.tokens.places[tokens]])
    found: dict[str, Any] = {
        "updates": len(updates),
        "loss": float(np.mean([update.tokens.loss for update in updates])),
        "grad_norm": float(np.mean([update.grad_norm for update in updates])),
        "learning_rate": updates[-1].learning_rate,
        "ratio_mean": float(np.concatenate([update.tokens.ratio for update in updates]).mean()),
        "clipped_share": float(np.concatenate([update.tokens.clipped for update in updates]).mean()),
        "entropy": float(entropies.mean()),
        "logprob_gap_mean": float(gap.mean()),
        "logprob_gap_max": float(gap.max()),
    }
    if spec.objective.kl is not None and start.reference is not None:
        found["kl"] = _mean_kl(logprobs, start.reference[tokens], spec.objective.kl.estimator)
    return found


def _mean_kl(logprobs: Floats, reference: Floats, estimator: Any) -> float:
    distance = kl_estimate(torch.from_numpy(logprobs), torch.from_numpy(reference), estimator)
    return float(distance.mean())

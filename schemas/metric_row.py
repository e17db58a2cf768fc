"""Rows of metrics: what a job reports under which names, as a function of what it has committed.

A row is keyed by (job, version, kind), and the documents that it is made of never change: whoever makes
it, however often, makes the same one.
"""

import json
import re
from collections.abc import Mapping
from typing import Literal

from .contract import Contract
from .manifest import EvaluationDocument, Manifest, PhaseSeconds, StepMetrics
from .names import JobKey

RowKind = Literal["step", "evaluation"]

STEP_FIGURES = {
    "reward/mean": "mean reward of the samples that have one",
    "reward/std": "their population standard deviation",
    "reward/failed_samples": "samples whose reward failed; they have weight 0",
    "group/count": "groups in the batch, failed ones included",
    "group/failed": "groups with weight 0, for want of rewards to compare",
    "group/zero_variance_share": "of the groups that have a reward, the share whose rewards are all equal",
    "policy/loss": "mean over the step's updates; near 0 by construction on fresh samples",
    "policy/entropy": "nats per trained token, of the policy before the update",
    "policy/kl": "nats per trained token, from the reference of the KL penalty",
    "policy/ratio_mean": "mean importance ratio of the trained tokens",
    "policy/clipped_share": "share of trained tokens whose gradient the clip changed",
    "sampler_gap/mean": "nats, mean absolute difference of the sampler's and the trainer's log-probabilities",
    "sampler_gap/max": "nats, the largest such difference",
    "optimizer/grad_norm": "before clipping, mean over the updates",
    "optimizer/learning_rate": "of the last update",
    "optimizer/updates": "in the step",
    "optimizer/skipped": "1 when the step changed no weight, else 0",
    "length/prompt_mean": "tokens",
    "length/completion_mean": "tokens",
    "length/completion_max": "tokens",
    "length/truncated_share": "share of samples that were cut at `sampling.max_tokens`",
    "staleness/max": "training version less generating version, the largest in the batch",
    "tokens/prompt": "in the batch, summed over samples",
    "tokens/completion": "in the batch, that the policy produced",
    "seconds/rollout": "from the dispatch of the rollouts to the end of the last one",
    "seconds/reward": "from there to the last score",
    "seconds/turn": "waiting for the version that the step trains",
    "seconds/select": "reading the scored groups and writing the batch",
    "seconds/train": "from dispatch to the end",
    "seconds/sampling": "in which a sampler worked for the step",
    "seconds/scoring": "in which rewards were computed and nothing was sampled",
    "seconds/training": "of the training computation",
    "throughput/sampling_tokens_per_s": "completion tokens by `seconds/sampling`",
    "throughput/scoring_tokens_per_s": "completion tokens by `seconds/scoring`",
    "throughput/training_tokens_per_s": "prompt and completion tokens by `seconds/training`",
}
"""What the row of a step may hold. What a step does not have is left out, as the loss of a skipped one is."""

REWARD_PART = "reward/parts/"
"""Begins the names of the means of a reward's named parts, over the samples that each applies to."""

EVALUATION_FIGURES = {
    "eval/accuracy": "avg@k: share of samples that are right, failed ones counting as wrong",
    "eval/greedy_accuracy": "share of prompts whose greedy completion is right",
    "eval/reward_mean": "mean reward of the samples that have one",
    "eval/failed_samples": "samples whose reward failed, greedy ones included",
    "eval/prompts": "held-out prompts",
    "eval/pass@k": "estimated share of prompts with a right one among k samples, for each power of two k",
    "eval/<environment>/accuracy": "`eval/accuracy` of one environment of a mixture",
    "eval/<environment>/reward_mean": "`eval/reward_mean` of one environment of a mixture",
}
"""What the row of an evaluation may hold, by `documented_name`."""
_PASS_AT = re.compile(r"pass@\d+$")
_OF_ENVIRONMENT = re.compile(r"^eval/[^/]+/")


class MetricRow(Contract):
    """What one step, or one held-out evaluation, reports.

    Attributes:
        version: that the step led to, or that was evaluated.
        kind: `step` or `evaluation`; with the job and the version the row's key.
        time: of the commit, in seconds since 1970; None in jobs of before it was kept.
        figures: by name; `documented_name` makes it one of `STEP_FIGURES`, `REWARD_PART` or
            `EVALUATION_FIGURES`.
    """

    key: JobKey
    version: int
    kind: RowKind
    time: float | None
    figures: dict[str, float]

    def to_line(self) -> str:
        """The row as a flat JSON object, without a line break."""
        head = {"job": str(self.key), "version": self.version, "kind": self.kind, "time": self.time}
        return json.dumps({**head, **self.figures}, allow_nan=False)


def documented_name(figure: str) -> str:
    """The name with placeholders for the k of pass@k and for the environment."""
    return _OF_ENVIRONMENT.sub("eval/<environment>/", _PASS_AT.sub("pass@k", figure))


def step_row(manifest: Manifest) -> MetricRow | None:
    """The row of the step that led to a version; None for version 0."""
    if manifest.metrics is None:
        return None
    metrics = manifest.metrics
    figures = {**_of_batch(metrics), **_of_phases(metrics, manifest.phases)}
    if not metrics.skipped:
        figures |= _of_updates(metrics)
    return MetricRow(
        key=manifest.key,
        version=manifest.version,
        kind="step",
        time=manifest.time,
        figures=_there({name: figures.get(name) for name in STEP_FIGURES})
        | {f"{REWARD_PART}{name}": mean for name, mean in metrics.reward_parts.items()},
    )


def evaluation_row(document: EvaluationDocument) -> MetricRow:
    """The row of a held-out evaluation."""
    figures: dict[str, float | None] = {
        "eval/accuracy": document.accuracy,
        "eval/greedy_accuracy": document.greedy_accuracy,
        "eval/reward_mean": document.reward_mean,
        "eval/failed_samples": document.failed_samples,
        "eval/prompts": document.prompts,
        **{f"eval/pass@{k}": share for k, share in document.pass_at.items()},
    }
    for name, scores in document.by_environment.items():
        figures[f"eval/{name}/accuracy"] = scores.accuracy
        figures[f"eval/{name}/reward_mean"] = scores.reward_mean
    return MetricRow(
        key=document.key,
        version=document.version,
        kind="evaluation",
        time=document.time,
        figures=_there(figures),
    )


def _of_batch(metrics: StepMetrics) -> dict[str, float | None]:
    return {
        "reward/mean": metrics.reward_mean,
        "reward/std": metrics.reward_std,
        "reward/failed_samples": metrics.failed_samples,
        "group/count": metrics.groups,
        "group/failed": metrics.failed_groups,
        "group/zero_variance_share": metrics.zero_variance_share,
        "optimizer/updates": metrics.updates,
        "optimizer/skipped": metrics.skipped,
        "length/prompt_mean": _ratio(metrics.prompt_tokens, metrics.samples),
        "length/completion_mean": _ratio(metrics.completion_tokens, metrics.samples),
        "length/completion_max": metrics.completion_length_max,
        "length/truncated_share": metrics.truncated_share,
        "staleness/max": metrics.staleness_max,
        "tokens/prompt": metrics.prompt_tokens,
        "tokens/completion": metrics.completion_tokens,
        "seconds/training": metrics.train_seconds,
        "throughput/training_tokens_per_s": _ratio(
            metrics.prompt_tokens + metrics.completion_tokens, metrics.train_seconds
        ),
    }


def _of_updates(metrics: StepMetrics) -> dict[str, float | None]:
    return {
        "policy/loss": metrics.loss,
        "policy/entropy": metrics.entropy,
        "policy/kl": metrics.kl,
        "policy/ratio_mean": metrics.ratio_mean,
        "policy/clipped_share": metrics.clipped_share,
        "sampler_gap/mean": metrics.logprob_gap_mean,
        "sampler_gap/max": metrics.logprob_gap_max,
        "optimizer/grad_norm": metrics.grad_norm,
        "optimizer/learning_rate": metrics.learning_rate,
    }


def _of_phases(metrics: StepMetrics, phases: PhaseSeconds | None) -> dict[str, float | None]:
    if phases is None:
        return {}
    return {
        **{f"seconds/{name}": seconds for name, seconds in phases},
        "throughput/sampling_tokens_per_s": _ratio(metrics.completion_tokens, phases.sampling),
        "throughput/scoring_tokens_per_s": _ratio(metrics.completion_tokens, phases.scoring),
    }


def _there(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in figures.items() if value is not None}


def _ratio(count: int, of: float) -> float | None:
    return count / of if of > 0 else None

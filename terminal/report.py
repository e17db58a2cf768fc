"""What a job came to: accuracy, rewards, tokens, and where the time went."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from ..client import Client, Job
from ..schemas.events import StepResult
from ..schemas.manifest import EvaluationDocument, StepMetrics
from .plot import reward_plot
from .words import count, number

_PHASES = (
    ("rollout", "sampling"),
    ("reward", "scoring"),
    ("turn", None),
    ("select", None),
    ("train", "training"),
    ("snapshot", None),
)
"""Fields of `StepSeconds`: a phase, and the computation in it."""


@dataclass(frozen=True)
class JobReport:
    """The figures of a job that has ended.

    Attributes:
        before: evaluation of version 0; None when evaluation is off.
        after: of the last version.
        metrics: of the step that led to each version, from the manifests.
        steps: what steps returned, as far as Temporal still knows it.
        train_seconds: from the start of the first step to the end of the last.
    """

    before: EvaluationDocument | None
    after: EvaluationDocument | None
    metrics: Mapping[int, StepMetrics]
    steps: Mapping[int, StepResult]
    train_seconds: float

    @property
    def result_line(self) -> str:
        """All that a script wants to know, in one line."""
        scores = {
            "held_out_before": self.before and self.before.accuracy,
            "held_out_after": self.after and self.after.accuracy,
            "greedy_before": self.before and self.before.greedy_accuracy,
            "greedy_after": self.after and self.after.greedy_accuracy,
        }
        words = [f"{name}={'none' if score is None else f'{score:.4f}'}" for name, score in scores.items()]
        return " ".join(
            ["RESULT", *words, f"steps={len(self.metrics)}", f"train_minutes={self.train_seconds / 60:.2f}"]
        )


async def gather_report(client: Client, job: Job) -> JobReport:
    """Reads what a job left in the object store and in Temporal.

    Raises:
        StoreUnavailable, ServiceUnreachable: when a server does not answer.
    """
    metrics = await job.metrics()
    newest = max(metrics, default=0)
    before, after, steps = await asyncio.gather(
        job.evaluation(0), job.evaluation(newest), job.step_results(range(newest))
    )
    with client.reaching_temporal():
        ends = await asyncio.gather(
            *(
                client.temporal.get_workflow_handle(job.key.step_id(step)).describe()
                for step in ({0, newest - 1} if newest else ())
            )
        )
    begun = min((one.start_time for one in ends), default=None)
    ended = max((one.close_time or one.start_time for one in ends), default=None)
    seconds = (ended - begun).total_seconds() if begun and ended else 0.0
    return JobReport(before=before, after=after, metrics=metrics, steps=steps, train_seconds=seconds)


def print_report(report: JobReport, console: Console) -> None:
    """Prints the report for people; `result_line` is left to the caller."""
    rewards = {
        version: one.reward_mean for version, one in report.metrics.items() if one.reward_mean is not None
    }
    if rewards:
        console.print(reward_plot(rewards, width=min(60, max(20, console.width - 24))), markup=False)
    for table in (_accuracy(report), _totals(report), _seconds(report)):
        console.print()
        console.print(table)


def _accuracy(report: JobReport) -> Table:
    table = Table("HELD-OUT ACCURACY", "before", "after", "change", box=None, pad_edge=False)
    before, after = report.before, report.after
    if before is None or after is None:
        table.add_row("not evaluated", "–", "–", "–")
        return table
    rows = {
        f"avg@{after.samples}, {after.prompts} prompts": (before.accuracy, after.accuracy),
        "greedy": (before.greedy_accuracy, after.greedy_accuracy),
    }
    for name, (first, last) in rows.items():
        table.add_row(name, number(first), number(last), f"{last - first:+.3f}")
    return table


def _totals(report: JobReport) -> Table:
    metrics = list(report.metrics.values())
    table = Table("TRAINING", "", box=None, pad_edge=False)
    staleness = max((one.staleness_max for one in metrics), default=0)
    rows = {
        "steps": len(metrics),
        "samples": count(sum(one.samples for one in metrics)),
        "tokens sampled": count(sum(one.completion_tokens for one in metrics)),
        "largest staleness": staleness,
        "failed samples": sum(one.failed_samples for one in metrics),
        "steps without an update": sum(one.skipped for one in metrics),
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def _seconds(report: JobReport) -> Table:
    steps = [result.seconds for result in report.steps.values()]
    total = sum(one.total for one in steps)
    table = Table("SECONDS BY PHASE", "all steps", "a step", "share", "computing", box=None, pad_edge=False)
    for phase, computation in (*_PHASES, ("total", None)):
        spent = sum(getattr(one, phase) for one in steps)
        computed = sum(getattr(one, computation) for one in steps) if computation else None
        table.add_row(
            phase,
            f"{spent:.1f}",
            f"{spent / max(1, len(steps)):.2f}",
            f"{100 * spent / total:.0f} %" if total else "–",
            number(computed, 1) if computation else "",
        )
    return table

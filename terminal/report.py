"""What a job came to: accuracy, rewards, tokens, and where the time went."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.table import Table
from temporalio.service import RPCError, RPCStatusCode

from ..client import Client
from ..job import Job
from ..schemas.events import StepResult
from ..schemas.manifest import EvaluationDocument, StepMetrics
from ..schemas.names import JobKey
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
_TRAINING = "training"


@dataclass(frozen=True)
class JobReport:
    """The figures of a job that has ended.

    Attributes:
        before: evaluation of version 0; None when evaluation is off.
        after: of the last version.
        metrics: of the step that led to each version, from the manifests.
        steps: what steps returned, as far as Temporal still knows it.
        wall: what the time since the report's beginning was spent on, in order, in seconds; nothing is in
            two of them.
    """

    before: EvaluationDocument | None
    after: EvaluationDocument | None
    metrics: Mapping[int, StepMetrics]
    steps: Mapping[int, StepResult]
    wall: Mapping[str, float]

    @property
    def train_seconds(self) -> float:
        """From the start of the first step to the end of the last."""
        return self.wall.get(_TRAINING, 0.0)

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


async def gather_report(client: Client, job: Job, since: datetime) -> JobReport:
    """Reads what a job left in the object store and in Temporal.

    Args:
        since: when the time that the report accounts for began, not after the job's start.

    Raises:
        StoreUnavailable, ServiceUnreachable: when a server does not answer.
    """
    metrics = await job.metrics()
    newest = max(metrics, default=0)
    before, after, steps, wall = await asyncio.gather(
        job.evaluation(0),
        job.evaluation(newest),
        job.step_results(range(newest)),
        _wall(client, job.key, newest, since),
    )
    return JobReport(before=before, after=after, metrics=metrics, steps=steps, wall=wall)


async def _wall(client: Client, key: JobKey, newest: int, since: datetime) -> dict[str, float]:
    """Seconds from `since` to the end of a job, by what happened in them."""

    async def span(*workflows: str) -> tuple[datetime, datetime] | None:
        found = [one for each in workflows if (one := await _lifetime(client, each)) is not None]
        return (min(one[0] for one in found), max(one[1] for one in found)) if found else None

    whole = await span(key.workflow_id)
    parts = {
        "evaluation of version 0": await span(key.evaluation_id(0)),
        _TRAINING: await span(key.step_id(0), key.step_id(newest - 1)) if newest else None,
        f"evaluation of version {newest}": await span(key.evaluation_id(newest)),
    }
    known = [(name, one) for name, one in parts.items() if one is not None]
    if whole is None or not known:
        return {}
    begun = min(whole[0], known[0][1][0])  # a job that was continued as new began earlier than its last run
    wall = {"servers and workers": (begun - since).total_seconds()}
    wall["start of the job"] = (known[0][1][0] - begun).total_seconds()
    wall |= {name: (ended - started).total_seconds() for name, (started, ended) in known}
    whole_seconds = (max(whole[1], known[-1][1][1]) - since).total_seconds()
    wall["between these"] = whole_seconds - sum(wall.values())
    return wall


async def _lifetime(client: Client, workflow: str) -> tuple[datetime, datetime] | None:
    """Start and end of a workflow that has ended; None when Temporal knows none."""
    with client.connection.reaching_temporal():
        try:
            found = await client.connection.temporal.get_workflow_handle(workflow).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise
    return found.start_time, found.close_time or found.start_time


def print_report(report: JobReport, console: Console) -> None:
    """Prints the report for people; `result_line` is left to the caller."""
    rewards = {
        version: one.reward_mean for version, one in report.metrics.items() if one.reward_mean is not None
    }
    if rewards:
        console.print(reward_plot(rewards, width=min(60, max(20, console.width - 24))), markup=False)
    for table in (_held_out(report), _totals(report), _seconds(report), _wall_time(report)):
        console.print()
        console.print(table)


def _held_out(report: JobReport) -> Table:
    table = Table("HELD-OUT", "before", "after", "change", box=None, pad_edge=False)
    before, after = report.before, report.after
    if before is None or after is None:
        table.add_row("not evaluated", "–", "–", "–")
        return table
    rows: dict[str, tuple[float | None, float | None]] = {
        f"accuracy avg@{after.samples}, {after.prompts} prompts": (before.accuracy, after.accuracy),
        "accuracy, greedy": (before.greedy_accuracy, after.greedy_accuracy),
    }
    if any(one.reward_mean not in (None, one.accuracy) for one in (before, after)):
        # Rewards between 0 and 1, which accuracy takes for wrong.
        rows[f"mean reward, avg@{after.samples}"] = (before.reward_mean, after.reward_mean)
    for name, (first, last) in rows.items():
        change = "–" if first is None or last is None else f"{last - first:+.3f}"
        table.add_row(name, number(first), number(last), change)
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


def _wall_time(report: JobReport) -> Table:
    table = Table("WALL TIME", "seconds", "share", box=None, pad_edge=False)
    total = sum(report.wall.values())
    for name, seconds in (*report.wall.items(), ("total", total)):
        table.add_row(name, f"{seconds:.1f}", f"{100 * seconds / total:.0f} %" if total else "–")
    return table

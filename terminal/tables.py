"""Lists of jobs and the state of the stack as tables: framed on a terminal, plain columns in a pipe."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..jobs.snapshot import JobSnapshot
from ..schemas.events import EvaluationResult
from ..schemas.metric_row import MetricRow
from ..workers.stack_status import StackStatus
from .words import duration, is_graded, number, outcome, position

_PIPE_WIDTH = 10_000
"""Columns of a pipe: nothing is cut or wrapped there."""
_SHOWN = {
    "reward/mean": "REWARD",
    "group/zero_variance_share": "NO SIGNAL",
    "policy/entropy": "ENTROPY",
    "policy/kl": "KL",
    "policy/clipped_share": "CLIPPED",
    "sampler_gap/mean": "GAP",
    "optimizer/grad_norm": "GRADIENT",
    "length/completion_mean": "LENGTH",
    "length/truncated_share": "CUT",
    "eval/accuracy": "HELD-OUT",
}
"""Metrics that a terminal has room for, and their headings."""


def make_console(*, stderr: bool = False) -> Console:
    """The console for stdout or stderr, whether that is a terminal or not."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)


def jobs_table(snapshots: Sequence[JobSnapshot]) -> Table:
    """One row for each job."""
    return _table(
        ("JOB", "STATE", "STEP", "REWARD", "STARTED", "NOTE"),
        (
            (
                str(one.job),
                one.state,
                position(one),
                number(_reward(one)),
                f"{one.started.astimezone():%Y-%m-%d %H:%M}",
                _note(one),
            )
            for one in snapshots
        ),
    )


def processes_table(status: StackStatus) -> Table:
    """One row for each process of the embedded stack."""
    return _table(
        ("PROCESS", "PID", "STATE", "UP", "RESTARTS", "ADDRESS"),
        (
            (
                one.role,
                str(one.pid or "–"),
                one.state,
                "–" if one.uptime is None else duration(one.uptime),
                str(one.restarts),
                one.address or "",
            )
            for one in status.processes
        ),
    )


def servers_table(status: StackStatus) -> Table:
    """One row for each server, embedded or not."""
    return _table(
        ("SERVER", "ADDRESS", "REACHABLE"),
        (
            (one.server, one.address or "–", "yes" if one.is_reachable else f"no: {one.problem}")
            for one in status.servers
        ),
    )


def metrics_table(rows: Sequence[MetricRow]) -> Table:
    """One row for each version, with the figures that are looked at first."""
    figures: dict[int, dict[str, float]] = {}
    for row in rows:
        figures.setdefault(row.version, {}).update(row.figures)
    return _table(
        ("VERSION", *_SHOWN.values()),
        (
            (str(version), *(number(figures[version].get(name)) for name in _SHOWN))
            for version in sorted(figures)
        ),
    )


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _reward(snapshot: JobSnapshot) -> float | None:
    last = snapshot.progress.last if snapshot.progress else None
    return last.metrics.reward_mean if last else None


def _held_out(evaluations: Sequence[EvaluationResult]) -> str:
    if any(map(is_graded, evaluations)):
        return "held-out reward " + " → ".join(number(one.reward_mean) for one in evaluations)
    return "held-out " + " → ".join(number(one.accuracy) for one in evaluations)


def _note(snapshot: JobSnapshot) -> str:
    if snapshot.problems:
        note = str(snapshot.problems[0])
    elif snapshot.result is not None and snapshot.result.evaluations:
        note = _held_out(snapshot.result.evaluations)
    else:
        note = "" if snapshot.result or not snapshot.is_over else outcome(snapshot)
    return " ".join(note.split())

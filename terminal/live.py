"""A watched job on a terminal: one display, drawn anew with every snapshot."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..jobs.snapshot import JobSnapshot
from .plot import sparkline
from .words import (
    count,
    duration,
    groups_done,
    held_out,
    number,
    outcome,
    position,
    set_to,
    step_phase,
    step_report,
)

_BAR_WIDTH = 40
_STYLES = {
    "stuck": "bold red",
    "failed": "bold red",
    "stalled": "red",
    "paused": "yellow",
    "completed": "green",
}


async def show_live(snapshots: AsyncIterator[JobSnapshot], console: Console) -> JobSnapshot | None:
    """Draws every snapshot until the last, which stays on the screen and is returned."""
    last: JobSnapshot | None = None
    with Live(console=console, auto_refresh=False) as live:
        async for snapshot in snapshots:
            last = snapshot
            live.update(display(snapshot, console.width), refresh=True)
    return last


def display(snapshot: JobSnapshot, width: int) -> RenderableType:
    """One snapshot, for a terminal of `width` columns."""
    parts: list[RenderableType] = [_title(snapshot), _bar(snapshot), _figures(snapshot, width)]
    if snapshot.pending or snapshot.open_steps:
        parts.append(_open_work(snapshot))
    parts += [Text(f"! {problem}", style="red") for problem in snapshot.problems]
    if snapshot.is_over:
        parts.append(Text(outcome(snapshot), style=_STYLES.get(snapshot.state, "")))
    return Group(*parts)


def _title(snapshot: JobSnapshot) -> Text:
    elapsed = (snapshot.ended or datetime.now(UTC)) - snapshot.started
    state = Text(snapshot.state, style=_STYLES.get(snapshot.state, "cyan"))
    return Text.assemble((f"{snapshot.job}", "bold"), "  ", state, f"  {duration(elapsed)}")


def _bar(snapshot: JobSnapshot) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=snapshot.steps or 1, completed=snapshot.version or 0, width=_BAR_WIDTH)
    row.add_row(bar, f"{position(snapshot)} steps")
    return row


def _figures(snapshot: JobSnapshot, width: int) -> RenderableType:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    if snapshot.rewards:
        shown = snapshot.rewards[-max(10, width - 40) :]
        rows.add_row("reward", f"{sparkline(shown)}  {number(snapshot.rewards[-1])}")
    if snapshot.progress is not None and snapshot.progress.last is not None:
        rows.add_row("last step", Text(step_report(snapshot.progress.last)))
    if snapshot.versions_in_flight:
        versions = ", ".join(map(str, snapshot.versions_in_flight))
        speed = snapshot.tokens_per_second
        rows.add_row(
            "in flight", f"version {versions}" + ("" if speed is None else f", {count(speed)} tokens/s")
        )
    for one in snapshot.evaluations:
        rows.add_row("held-out", held_out(one))
    for setting in snapshot.progress.settings if snapshot.progress else ():
        rows.add_row("set", set_to(setting))
    return rows


def _open_work(snapshot: JobSnapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("open", "version", "at"):
        table.add_column(column)
    for step in snapshot.open_steps:
        version = step.progress.generating_version if step.progress else "–"
        table.add_row(f"step {step.step}", str(version), step_phase(step))
    for one in snapshot.open_evaluations:
        table.add_row("evaluation", str(one.version), groups_done(one))
    for one in snapshot.pending:
        if one.workflow == str(snapshot.job):
            table.add_row(one.name, "–", "runs" if one.running else "waits for a worker")
    return table

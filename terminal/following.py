"""Watching a job: live on a terminal, lines in a pipe, or JSON."""

import asyncio
from collections.abc import AsyncIterator

import typer

from ..job import Job
from ..jobs.snapshot import JobSnapshot
from .lines import NewsLines
from .live import show_live
from .tables import make_console

_INTERRUPTED = 130


async def follow(job: Job, *, as_json: bool) -> int:
    """Shows a job until it has ended.

    Returns:
        the exit code: 0 when it completed or was stopped, 1 when it failed or was cancelled, 130 when
        the watching was interrupted.
    """
    try:
        last = await (_print_json(job.watch()) if as_json else show(job))
    except asyncio.CancelledError:
        typer.echo(
            f"job {job.key} goes on; `marlaas watch {job.key}` shows it again, "
            f"`marlaas stop {job.key}` ends it",
            err=True,
        )
        return _INTERRUPTED
    return 0 if last is not None and last.result is not None else 1


async def show(job: Job) -> JobSnapshot | None:
    """Shows a job until it has ended, live or in lines; returns the last snapshot."""
    console = make_console()
    if console.is_terminal:
        return await show_live(job.watch(), console)
    news, last = NewsLines(), None
    async for last in job.watch():
        for line in news.news(last):
            typer.echo(line)
    return last


async def _print_json(snapshots: AsyncIterator[JobSnapshot]) -> JobSnapshot | None:
    last: JobSnapshot | None = None
    async for snapshot in snapshots:
        if snapshot != last:
            typer.echo(snapshot.model_dump_json())
        last = snapshot
    return last

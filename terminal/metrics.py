"""A job's metrics: a table for a person, JSONL for everything else."""

import typer

from ..job import Job
from .tables import make_console, metrics_table


async def show_metrics(job: Job, *, follow: bool, as_json: bool) -> None:
    """Prints the rows of a job; see `marlaas metrics --help`."""
    console = make_console()
    rows = job.metric_rows(follow=follow)
    if console.is_terminal and not follow and not as_json:
        console.print(metrics_table([row async for row in rows]))
        return
    async for row in rows:
        typer.echo(row.to_line())

"""The embedded stack as people run and see it."""

import asyncio
import json
import sys

import typer

from ..client import connect
from ..jobs.errors import ServiceUnreachable
from ..jobs.snapshot import JobSnapshot
from ..workers.settings import Addresses, AddressUnknown, Settings
from ..workers.stack_file import read_stack
from ..workers.stack_status import stack_status
from ..workers.supervisor import WorkerCommand
from ..workers.up import UpPlan, up, up_in_background
from .tables import jobs_table, make_console, processes_table, servers_table


def worker_commands() -> tuple[WorkerCommand, ...]:
    """One worker of each role."""
    return tuple(
        WorkerCommand(name=role, argv=(sys.executable, "-m", "marlaas.cli", "worker", "--role", role))
        for role in ("control", "cpu", "gpu")
    )


def run_stack(settings: Settings, *, workers: bool, detach: bool) -> None:
    """Runs the stack until it is interrupted, or leaves it in the background.

    Raises:
        StackError: when it cannot be started or kept running.
    """
    # The stock Temporal CLI then finds the server without being told where it is.
    plan = UpPlan(settings=settings, workers=worker_commands() if workers else (), well_known_ports=True)
    if detach:
        _say_where(settings, up_in_background(plan))
        typer.echo("`marlaas status` shows how it does, `marlaas down` stops it")
        return

    def started(addresses: Addresses) -> None:
        _say_where(settings, addresses)
        typer.echo("ctrl-C stops it")

    up(plan, report=lambda line: typer.echo(line, err=True), started=started)


async def show_status(settings: Settings, *, as_json: bool) -> bool:
    """Prints the stack and the running jobs; returns whether every server can be reached."""
    status, jobs = await asyncio.gather(stack_status(settings), _running_jobs(settings))
    if as_json:
        document = status.model_dump(mode="json") | {"jobs": [one.model_dump(mode="json") for one in jobs]}
        typer.echo(json.dumps(document))
    else:
        console = make_console()
        if status.processes:
            console.print(processes_table(status))
        else:
            typer.echo(f"no stack runs in {status.data}")
        console.print()
        console.print(servers_table(status))
        if status.disk_problem is not None:
            typer.echo(f"\nwarning: {status.disk_problem}")
        if jobs:
            console.print()
            console.print(jobs_table(jobs))
    return all(server.is_reachable for server in status.servers)


async def _running_jobs(settings: Settings) -> list[JobSnapshot]:
    """None when Temporal can't be reached; the table of servers says so."""
    try:
        async with await connect(settings) as client:
            return [snapshot for snapshot in await client.jobs() if not snapshot.is_over]
    except (AddressUnknown, ServiceUnreachable):
        return []


def _say_where(settings: Settings, addresses: Addresses) -> None:
    stack = read_stack(settings.data)
    typer.echo(f"the stack is ready; its data is in {settings.data}")
    typer.echo(f"  Temporal  {addresses.temporal_address}, namespace {addresses.temporal_namespace}")
    if stack is not None and "temporal" in stack.embedded:
        typer.echo(f"  its UI    http://127.0.0.1:{stack.ports.temporal_ui}")
    typer.echo(f"  NATS      {addresses.nats_url}")
    typer.echo(f"  S3        {addresses.s3_endpoint}")

"""The embedded stack as people run and see it."""

import asyncio
import json
import sys
from pathlib import Path

import typer
from temporalio.api.enums.v1 import TaskQueueType

from ..client import Client
from ..jobs.errors import ServiceUnreachable
from ..jobs.snapshot import JobSnapshot
from ..jobs.workflow_state import is_polled
from ..schemas.names import CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TASK_QUEUE, TRAIN_QUEUE
from ..workers.log_files import tail
from ..workers.settings import Addresses, AddressUnknown, Settings
from ..workers.stack_file import StackError, read_stack
from ..workers.stack_status import stack_status
from ..workers.supervisor import WorkerCommand
from ..workers.up import UpPlan, up, up_in_background
from .connection import with_client
from .tables import jobs_table, make_console, processes_table, servers_table

_MAX_RESTARTS = 3
"""Of a worker that was never ready; then there is something wrong that waiting does not mend."""


def worker_commands() -> tuple[WorkerCommand, ...]:
    """One worker of each role."""
    return tuple(
        WorkerCommand(name=role, argv=(sys.executable, "-m", "marlaas", "worker", "--role", role))
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
        addresses = up_in_background(plan)
        _say_where(settings, addresses)
        if workers:
            asyncio.run(_workers_begin(settings, addresses))
        typer.echo("`marlaas status` shows how it does, `marlaas down` stops it")
        return

    async def started(addresses: Addresses) -> None:
        _say_where(settings, addresses)
        typer.echo("ctrl-C stops it")
        if workers:
            try:
                await with_client(addresses, _say_open_jobs)
            except ServiceUnreachable as error:  # the supervisor mends that
                typer.echo(f"open jobs cannot be listed: {error}", err=True)

    up(plan, report=lambda line: typer.echo(line, err=True), started=started)


async def _workers_begin(settings: Settings, addresses: Addresses) -> None:
    async def wait(client: Client) -> None:
        await _say_open_jobs(client)
        typer.echo("workers are starting")
        await workers_ready(client, settings.data)

    await with_client(addresses, wait)


async def workers_ready(client: Client, data: Path) -> None:
    """Returns when a worker of every role asks for work: they load their libraries first.

    Args:
        data: folder of the stack that runs the workers.

    Raises:
        StackError: when a worker does not stay up, or the stack has ended.
    """
    for queue in (TASK_QUEUE, CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TRAIN_QUEUE):
        kind = "TASK_QUEUE_TYPE_WORKFLOW" if queue == TASK_QUEUE else "TASK_QUEUE_TYPE_ACTIVITY"
        while not await is_polled(client.connection.temporal, queue, TaskQueueType.Value(kind)):
            _require_workers(data)
            await asyncio.sleep(0.2)  # nobody is told when a poller comes


def _require_workers(data: Path) -> None:
    stack = read_stack(data)
    if stack is None or not stack.is_supervised:
        raise StackError(f"The stack ended while its workers started; see {data / 'logs'}.")
    for record in stack.processes:
        if record.name not in stack.embedded and record.restarts >= _MAX_RESTARTS:
            log = data / "logs" / f"{record.name}.log"
            raise StackError(f"The worker {record.name} does not stay up; the end of {log}:\n{tail(log)}")


async def _say_open_jobs(client: Client) -> None:
    for job in await open_jobs(client):
        typer.echo(f"job {job.job} is open and goes on; `marlaas cancel {job.job}` ends it")


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
        return await with_client(settings, open_jobs)
    except (AddressUnknown, ServiceUnreachable):
        return []


async def open_jobs(client: Client) -> list[JobSnapshot]:
    """The jobs that have not ended."""
    return [snapshot for snapshot in await client.jobs() if not snapshot.is_over]


def _say_where(settings: Settings, addresses: Addresses) -> None:
    stack = read_stack(settings.data)
    typer.echo(f"the stack is ready; its data is in {settings.data}")
    typer.echo(f"  Temporal  {addresses.temporal_address}, namespace {addresses.temporal_namespace}")
    if stack is not None and "temporal" in stack.embedded:
        typer.echo(f"  its UI    http://127.0.0.1:{stack.ports.temporal_ui}")
    typer.echo(f"  NATS      {addresses.nats_url}")
    typer.echo(f"  S3        {addresses.s3_endpoint}")

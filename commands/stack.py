"""Commands for the servers and the workers."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..terminal.flags import with_settings
from .running import AsJson, interruptible

if TYPE_CHECKING:
    from ..workers.settings import Settings

_STACK = "The stack"

commands = typer.Typer()


@commands.command(rich_help_panel=_STACK)
@with_settings
def up(
    settings: "Settings",
    workers: Annotated[
        bool, typer.Option("--workers", help="Also run one worker of each role: control, cpu, gpu.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the servers work, and leave them running.")
    ] = False,
) -> None:
    """Run the embedded servers: Temporal, NATS and an S3 store.

    They listen on 127.0.0.1, keep their data in one folder, and are started
    again when they die. Ctrl-C stops workers first and servers last. A server
    whose address is given is not started. At least 2 GiB of the disk must be
    free.

    Examples:
      marlaas up --workers            in the foreground, ctrl-C stops it
      marlaas up --workers --detach   in the background, `marlaas down` stops it
      marlaas up --data /srv/marlaas  in another data folder
    """
    from ..terminal.stack import run_stack

    with interruptible():
        run_stack(settings, workers=workers, detach=detach)


@commands.command(rich_help_panel=_STACK)
@with_settings
def status(settings: "Settings", as_json: AsJson = False) -> None:
    """Show the stack's processes, whether servers can be reached, and running jobs.

    A job whose workflow task fails again and again is `stuck`, with the reason.
    The exit code is 1 when a server can't be reached.
    """
    from ..terminal.stack import show_status

    if not asyncio.run(show_status(settings, as_json=as_json)):
        raise typer.Exit(1)


@commands.command(rich_help_panel=_STACK)
@with_settings
def down(settings: "Settings") -> None:
    """Stop the embedded stack and its workers.

    Nothing is lost: jobs go on when the stack is up again.
    """
    from ..workers.up import down as stop_stack

    was_running = stop_stack(settings.data)
    typer.echo(f"the stack in {settings.data} {'is stopped' if was_running else 'was not running'}")


@commands.command(rich_help_panel=_STACK)
@with_settings
def worker(
    settings: "Settings",
    role: Annotated[
        Literal["control", "cpu", "gpu"],
        typer.Option(help="control: workflows. cpu: rewards and bookkeeping. gpu: sampling and training."),
    ],
    device: Annotated[str, typer.Option(help="torch device of a gpu worker, for example cuda.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of each engine process; all cores by default.")
    ] = None,
    reward_processes: Annotated[
        int | None, typer.Option(min=1, help="Of a cpu worker; one for each core by default.")
    ] = None,
) -> None:
    """Run one worker until SIGTERM or ctrl-C, which hand its work back at once.

    Start as many of each role as there is work for.

    Examples:
      marlaas worker --role gpu --device cuda
      marlaas worker --role cpu --reward-processes 8
    """
    import logging

    from ..workers.roles import WorkerOptions, run_worker

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    limits = {"threads": threads, "reward_processes": reward_processes}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    options = WorkerOptions(data=settings.data, device=device, **given)
    asyncio.run(run_worker(role, settings.addresses(), options))

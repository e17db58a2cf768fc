"""The command line: the stack, the workers, and the jobs.

Nothing slow is imported before a command needs it, so that `--help` answers at once.
"""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from .terminal.flags import with_settings

if TYPE_CHECKING:
    from .client import Client
    from .workers.settings import Settings

_INTERRUPTED = 130

_STACK, _JOBS = "The stack", "Jobs"

_HELP = """Train LoRA policies of many tenants by reinforcement learning, durably.

The first time:
  marlaas up --workers --detach
  marlaas submit examples/sums.yaml --watch
  marlaas export demo/sums adapters/sums
  marlaas down
"""

app = typer.Typer(
    name="marlaas",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JobName = Annotated[str, typer.Argument(metavar="JOB", help="tenant/job, for example acme/sums.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(installed_version("marlaas"))
        raise typer.Exit


@app.callback()
def marlaas(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Nothing to do: the flags act by themselves, and the commands do the rest."""


@app.command(rich_help_panel=_STACK)
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
    from .terminal.stack import run_stack

    with _interruptible():
        run_stack(settings, workers=workers, detach=detach)


@app.command(rich_help_panel=_STACK)
@with_settings
def status(settings: "Settings", as_json: AsJson = False) -> None:
    """Show the stack's processes, whether servers can be reached, and running jobs.

    A job whose workflow task fails again and again is `stuck`, with the reason.
    The exit code is 1 when a server can't be reached.
    """
    from .terminal.stack import show_status

    if not asyncio.run(show_status(settings, as_json=as_json)):
        raise typer.Exit(1)


@app.command(rich_help_panel=_STACK)
@with_settings
def down(settings: "Settings") -> None:
    """Stop the embedded stack and its workers.

    Nothing is lost: jobs go on when the stack is up again.
    """
    from .workers.up import down as stop_stack

    was_running = stop_stack(settings.data)
    typer.echo(f"the stack in {settings.data} {'is stopped' if was_running else 'was not running'}")


@app.command(rich_help_panel=_STACK)
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

    from .workers.roles import WorkerOptions, run_worker

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    limits = {"threads": threads, "reward_processes": reward_processes}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    options = WorkerOptions(data=settings.data, device=device, **given)
    asyncio.run(run_worker(role, settings.addresses(), options))


@app.command(rich_help_panel=_JOBS)
@with_settings
def submit(
    settings: "Settings",
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job file, *.yaml or *.json.")],
    watch: Annotated[bool, typer.Option("--watch", help="Watch the job to its end.")] = False,
) -> None:
    """Check a job file and start its job.

    A file that is not valid is refused with the path of every wrong field, and
    nothing is started. Relative paths in it are relative to the file. A job's
    name is used once, for good, from its version 0 on.

    Examples:
      marlaas submit examples/sums.yaml --watch

    The Temporal CLI does the same:
      temporal workflow start --type TrainJob --task-queue marlaas
          --workflow-id demo/sums-cli --input-file examples/sums.json
    """

    async def run(client: "Client") -> int:
        from .terminal.following import follow

        job = await client.submit(file)
        typer.echo(f"job {job.key} is started; `marlaas watch {job.key}` shows how it does")
        return await follow(job, as_json=False) if watch else 0

    _with_client(settings, run)


@app.command("list", rich_help_panel=_JOBS)
@with_settings
def list_jobs(
    settings: "Settings",
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's jobs.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the jobs that Temporal still knows, the newest first.

    With --json, one object a line.
    """

    async def run(client: "Client") -> int:
        from .terminal.tables import jobs_table, make_console

        snapshots = await client.jobs(tenant)
        if as_json:
            for snapshot in snapshots:
                typer.echo(snapshot.model_dump_json())
        elif snapshots:
            make_console().print(jobs_table(snapshots))
        else:
            typer.echo("no jobs; start one with `marlaas submit FILE`", err=True)
        return 0

    _with_client(settings, run)


@app.command(rich_help_panel=_JOBS)
@with_settings
def watch(settings: "Settings", job: JobName, as_json: AsJson = False) -> None:
    """Watch a job to its end, live.

    Shows steps, phases, groups, rewards, evaluations, and whatever keeps the job
    from going on. Accuracy counts rewards of 1.0 and above. Waits for servers
    that are down. Ctrl-C ends the watching only. In a pipe there is one line for
    each thing that happens; with --json, one object for each change. The exit
    code is 1 when the job failed or was cancelled.
    """

    async def run(client: "Client") -> int:
        from .terminal.following import follow

        return await follow(client.job(job), as_json=as_json)

    _with_client(settings, run, patient=True)


@app.command(rich_help_panel=_JOBS)
@with_settings
def metrics(
    settings: "Settings",
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the job has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what each step and evaluation of a job reports.

    On a terminal a table; in a pipe, with --json or --follow JSONL, one object
    for each step or evaluation. Needs no worker, and works long after the job.
    docs/metrics.md says what the names mean.

    Examples:
      marlaas metrics acme/sums
      marlaas metrics acme/sums --follow | jq '."reward/mean"'
    """

    async def run(client: "Client") -> int:
        from .terminal.metrics import show_metrics

        await show_metrics(client.job(job), follow=follow, as_json=as_json)
        return 0

    _with_client(settings, run)


@app.command(rich_help_panel=_JOBS)
@with_settings
def stop(settings: "Settings", job: JobName) -> None:
    """End a job after its open steps, which are trained and committed."""

    async def run(client: "Client") -> int:
        await client.job(job).stop()
        typer.echo(f"job {job} ends when its open steps are committed; `marlaas watch {job}` shows it")
        return 0

    _with_client(settings, run)


@app.command(rich_help_panel=_JOBS)
@with_settings
def pause(settings: "Settings", job: JobName) -> None:
    """Let a job open no further step until `resume`; open steps go on."""

    async def run(client: "Client") -> int:
        await client.job(job).pause()
        typer.echo(f"job {job} opens no further step until `marlaas resume {job}`")
        return 0

    _with_client(settings, run)


@app.command(rich_help_panel=_JOBS)
@with_settings
def resume(
    settings: "Settings",
    job: JobName,
    steps: Annotated[int | None, typer.Option(min=1, help="Train to this step, not to the spec's.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="As for `marlaas set`.")
    ] = None,
) -> None:
    """Let a paused job go on, or one that has ended.

    A job that was stopped or cancelled, failed, was terminated or has finished goes on from its
    newest committed version.

    Examples:
      marlaas resume acme/sums
      marlaas resume acme/sums --steps 200 --set optimizer.learning_rate=1e-5
    """
    from .terminal.changes import parse_changes

    values = parse_changes(changes or [])
    if steps is not None:
        values["steps"] = steps

    async def run(client: "Client") -> int:
        ended = await client.job(job).resume(values)
        typer.echo(f"job {job} goes on" + (" from its newest version" if ended else ""))
        return 0

    _with_client(settings, run)


@app.command("set", rich_help_panel=_JOBS)
@with_settings
def set_values(
    settings: "Settings",
    job: JobName,
    changes: Annotated[list[str], typer.Argument(metavar="PATH=VALUE...", help="Fields of the job spec.")],
) -> None:
    """Change a job while it runs.

    What training reads acts from the next step that is not trained yet, what sampling reads
    from the next set of prompts that is not dispatched yet. `marlaas watch` shows both.

    Examples:
      marlaas set acme/sums optimizer.learning_rate=1e-5
      marlaas set acme/sums sampling.temperature=0.8 steps=200
    """
    from .terminal.changes import parse_changes
    from .terminal.words import set_to

    values = parse_changes(changes)

    async def run(client: "Client") -> int:
        for setting in await client.job(job).set(values):
            typer.echo(set_to(setting))
        return 0

    _with_client(settings, run)


@app.command(rich_help_panel=_JOBS)
@with_settings
def cancel(settings: "Settings", job: JobName) -> None:
    """End a job now. What its open steps sampled is not trained on; committed versions stay."""

    async def run(client: "Client") -> int:
        await client.job(job).cancel()
        typer.echo(f"job {job} is asked to end now")
        return 0

    _with_client(settings, run)


@app.command(rich_help_panel=_JOBS)
@with_settings
def export(
    settings: "Settings",
    job: JobName,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is new or empty.")],
    version: Annotated[
        int | None, typer.Option(min=0, help="Number of steps; the newest by default.")
    ] = None,
) -> None:
    """Write a committed adapter as a folder that PEFT loads.

    Works while the job runs, and long after. OUT appears whole or not at all.

    Examples:
      marlaas export acme/sums adapters/sums
      marlaas export acme/sums adapters/sums-20 --version 20
    """

    async def run(client: "Client") -> int:
        exported = await client.job(job).export(out, version)
        typer.echo(f"version {exported.version} of job {job} is in {out} (sha256 {exported.adapter})")
        return 0

    _with_client(settings, run)


def _with_client(
    settings: "Settings", run: "Callable[[Client], Coroutine[Any, Any, int]]", *, patient: bool = False
) -> None:
    """Runs a command that needs a connection, and ends with its exit code."""
    from .terminal.connection import with_client, with_patience

    with _interruptible():
        code = asyncio.run((with_patience if patient else with_client)(settings, run))
    if code:
        raise typer.Exit(code)


@contextmanager
def _interruptible() -> Generator[None]:
    """Lets work that ctrl-C must not simply break off see it, as KeyboardInterrupt or a cancellation."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; returns its exit code."""
    try:
        app(list(arguments), prog_name="marlaas")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        from .terminal.expected_errors import exit_code

        code = exit_code(error)
        if code is None:
            traceback.print_exc()
            return 1
        typer.echo(f"{typer.style('error:', fg='red', bold=True)} {error}", err=True)
        return code
    return 0


def main() -> NoReturn:
    """Runs the arguments of this process, which it ends.

    Temporal's client may abort while the interpreter ends, so that is left out.
    """
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = code or 1
    os._exit(code)

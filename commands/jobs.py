"""Commands for jobs: all that is done to them, and what they show."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..terminal.flags import with_settings
from .running import AsJson, JobName, connected

if TYPE_CHECKING:
    from ..client import Client
    from ..workers.settings import Settings

_JOBS = "Jobs"

commands = typer.Typer()


@commands.command(rich_help_panel=_JOBS)
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
        from ..terminal.following import follow

        job = await client.submit(file)
        typer.echo(f"job {job.key} is started; `marlaas watch {job.key}` shows how it does")
        return await follow(job, as_json=False) if watch else 0

    connected(settings, run)


@commands.command("list", rich_help_panel=_JOBS)
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
        from ..terminal.tables import jobs_table, make_console

        snapshots = await client.jobs(tenant)
        if as_json:
            for snapshot in snapshots:
                typer.echo(snapshot.model_dump_json())
        elif snapshots:
            make_console().print(jobs_table(snapshots))
        else:
            typer.echo("no jobs; start one with `marlaas submit FILE`", err=True)
        return 0

    connected(settings, run)


@commands.command(rich_help_panel=_JOBS)
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
        from ..terminal.following import follow

        return await follow(client.job(job), as_json=as_json)

    connected(settings, run, patient=True)


@commands.command(rich_help_panel=_JOBS)
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
        from ..terminal.metrics import show_metrics

        await show_metrics(client.job(job), follow=follow, as_json=as_json)
        return 0

    connected(settings, run)


@commands.command(rich_help_panel=_JOBS)
@with_settings
def stop(settings: "Settings", job: JobName) -> None:
    """End a job after its open steps, which are trained and committed."""

    async def run(client: "Client") -> int:
        await client.job(job).stop()
        typer.echo(f"job {job} ends when its open steps are committed; `marlaas watch {job}` shows it")
        return 0

    connected(settings, run)


@commands.command(rich_help_panel=_JOBS)
@with_settings
def pause(settings: "Settings", job: JobName) -> None:
    """Let a job open no further step until `resume`; open steps go on."""

    async def run(client: "Client") -> int:
        await client.job(job).pause()
        typer.echo(f"job {job} opens no further step until `marlaas resume {job}`")
        return 0

    connected(settings, run)


@commands.command(rich_help_panel=_JOBS)
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
    from ..terminal.changes import parse_changes

    values = parse_changes(changes or [])
    if steps is not None:
        values["steps"] = steps

    async def run(client: "Client") -> int:
        ended = await client.job(job).resume(values)
        typer.echo(f"job {job} goes on" + (" from its newest version" if ended else ""))
        return 0

    connected(settings, run)


@commands.command("set", rich_help_panel=_JOBS)
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
    from ..terminal.changes import parse_changes
    from ..terminal.words import set_to

    values = parse_changes(changes)

    async def run(client: "Client") -> int:
        for setting in await client.job(job).set(values):
            typer.echo(set_to(setting))
        return 0

    connected(settings, run)


@commands.command(rich_help_panel=_JOBS)
@with_settings
def cancel(settings: "Settings", job: JobName) -> None:
    """End a job now. What its open steps sampled is not trained on; committed versions stay."""

    async def run(client: "Client") -> int:
        await client.job(job).cancel()
        typer.echo(f"job {job} is asked to end now")
        return 0

    connected(settings, run)


@commands.command(rich_help_panel=_JOBS)
@with_settings
def export(
    settings: "Settings",
    job: JobName,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is new or empty.")],
    version: Annotated[
        str | None,
        typer.Option(metavar="NUMBER|best", help="Number of steps; the newest by default."),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write the whole model, the adapter merged into a copy.")
    ] = False,
    base: Annotated[
        Path | None, typer.Option(help="With --merge: the base model's folder, where it is not the spec's.")
    ] = None,
) -> None:
    """Write a committed adapter as a folder that PEFT loads, or with --merge as a full model.

    A README.md in the folder says where it comes from. Works while the job runs,
    and long after. OUT appears whole or not at all. `best` is the version with the
    highest held-out accuracy of those that were evaluated, or what the spec's
    evaluation.best names; of equal ones the first.

    Examples:
      marlaas export acme/sums adapters/sums
      marlaas export acme/sums adapters/sums-20 --version 20
      marlaas export acme/sums adapters/sums-best --version best
      marlaas export acme/sums models/sums --merge
    """
    if base is not None and not merge:
        raise typer.BadParameter("belongs to --merge", param_hint="--base")
    wanted = _version(version)

    async def run(client: "Client") -> int:
        models = settings.data / "models"
        found = client.job(job)
        exported = await (
            found.export_merged(out, wanted, models=models, base=base) if merge else found.export(out, wanted)
        )
        what = ", merged into its base model," if merge else ""
        typer.echo(f"version {exported.version} of job {job}{what} is in {out} (sha256 {exported.adapter})")
        return 0

    connected(settings, run)


def _version(text: str | None) -> int | Literal["best"] | None:
    if text is None or text == "best":
        return text
    if not text.isascii() or not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a number of steps nor 'best'", param_hint="--version")
    return int(text)

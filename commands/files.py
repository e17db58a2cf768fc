"""Commands for job files, which need no server."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ..terminal.flags import with_settings
from .running import AsJson, connected

if TYPE_CHECKING:
    from ..client import Client
    from ..workers.settings import Settings

_FILES = "Job files"

commands = typer.Typer()

T = TypeVar("T")


@commands.command(rich_help_panel=_FILES)
def schema() -> None:
    """Print the JSON Schema of a job file, for editors.

    Examples:
      marlaas schema > job.schema.json

    An editor with a YAML language server then checks a file that begins with
      # yaml-language-server: $schema=job.schema.json
    """
    from ..jobs.spec_schema import schema_text

    typer.echo(schema_text())


@commands.command(rich_help_panel=_FILES)
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new file, *.yaml.")] = Path("job.yaml"),
    tenant: Annotated[str | None, typer.Option(help="Whose job it is.")] = None,
    job: Annotated[str | None, typer.Option(help="Its name among the tenant's.")] = None,
    model: Annotated[
        str | None, typer.Option(help="A built-in name, a folder in Hugging Face format, or a hub id.")
    ] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="KIND:NAME", help="reasoning-gym:TASK or jsonl:PATH.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Of a JSONL environment.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="How many steps are trained.")] = None,
) -> None:
    """Write a job file that has every field, with its default and its meaning.

    On a terminal asks for what no flag says. Paths are given from this folder,
    and written from the file's. A file that exists is left as it is.

    Examples:
      marlaas init
      marlaas init sums.yaml --tenant acme --job sums --model smollm2-135m-instruct
          --environment reasoning-gym:chain_sum --steps 100
    """
    from ..jobs.new_job_file import local_path, parse_environment, write_job_file

    tenant = _answer(tenant, "--tenant", "Tenant")
    job = _answer(job, "--job", "Job", file.stem)
    model = _answer(model, "--model", "Model", "smollm2-135m-instruct")
    environment = _answer(
        environment,
        "--environment",
        "Environment (reasoning-gym:TASK or jsonl:PATH)",
        "reasoning-gym:chain_sum",
    )
    if environment.startswith("jsonl:"):
        reward = _answer(reward, "--reward", "Reward (module:function)")
    values = {
        "tenant": tenant,
        "job": job,
        "model": local_path(model, file) if model.startswith(("./", "../")) else model,
        "steps": _answer(steps, "--steps", "Steps", 100),
        "environment": parse_environment(environment, reward, file),
        "sampling": {"groups_per_step": 8, "samples_per_group": 8},
    }
    spec = write_job_file(file, values)
    typer.echo(f"{file} is written: the job {spec.key}, with every field that it may have. Next:")
    typer.echo(f"  marlaas validate {file} --explain   what it comes to")
    typer.echo(f"  marlaas submit {file} --watch       start it; servers: marlaas up --workers --detach")


@commands.command(rich_help_panel=_FILES)
@with_settings
def validate(
    settings: "Settings",
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job file, *.yaml or *.json.")],
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every value that the job will have, and estimates.")
    ] = False,
    like: Annotated[
        str | None, typer.Option(metavar="JOB", help="A job whose steps' time is an estimate of this one's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a job file as `submit` does, without a server.

    With --explain shows the spec with its defaults and what the objective's
    name sets, and estimates of memory, storage and tokens. Those of memory need
    the base model's folder on this machine. --json prints the same. An estimate of time needs a job of
    the kind that was measured, and servers: name it with --like.

    Examples:
      marlaas validate job.yaml
      marlaas validate job.yaml --explain --like acme/sums
    """
    from ..jobs.job_file import checked_job_file

    spec = checked_job_file(file)
    if not (explain or as_json or like):
        typer.echo(f"{file} is valid: job {spec.key}, {spec.steps} steps")
        return
    from ..terminal.explanation import show_explanation

    models = settings.data / "models"
    if like is None:
        asyncio.run(show_explanation(spec, models, None, as_json=as_json))
        return

    async def run(client: "Client") -> int:
        await show_explanation(spec, models, client.job(like), as_json=as_json)
        return 0

    connected(settings, run)


def _answer(given: T | None, flag: str, question: str, usual: T | None = None) -> T:
    """What a flag says, or the person on the terminal."""
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise typer.BadParameter("is missing, and there is no terminal to ask on", param_hint=flag)
    return typer.prompt(question, default=usual)

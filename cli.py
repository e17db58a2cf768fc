"""The command line: the stack, the workers, and the jobs.

Nothing slow is imported before a command needs it, so that `--help` answers at once.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from typing import Annotated, NoReturn

import typer

from .commands import files, jobs, stack

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


for panel in (stack, files, jobs):
    app.add_typer(panel.commands)


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

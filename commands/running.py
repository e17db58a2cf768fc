"""What commands share: arguments of the same name, ctrl-C, and a connection."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..client import Client
    from ..workers.settings import Settings

_INTERRUPTED = 130

JobName = Annotated[str, typer.Argument(metavar="JOB", help="tenant/job, for example acme/sums.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def connected(
    settings: "Settings", run: "Callable[[Client], Coroutine[Any, Any, int]]", *, patient: bool = False
) -> None:
    """Runs a command that needs a connection, and ends with its exit code."""
    from ..terminal.connection import with_client, with_patience

    with interruptible():
        code = asyncio.run((with_patience if patient else with_client)(settings, run))
    if code:
        raise typer.Exit(code)


@contextmanager
def interruptible() -> Generator[None]:
    """Lets work that ctrl-C must not simply break off see it, as KeyboardInterrupt or a cancellation."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None

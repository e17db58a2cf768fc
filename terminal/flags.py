"""The flags that say where the servers are, for every command that needs them."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

_PANEL = "Servers; or MARLAAS_DATA, MARLAAS_NATS_URL and so on; or marlaas.toml"


def _flag(name: str, kind: Any, text: str) -> inspect.Parameter:
    option = typer.Option(help=text, rich_help_panel=_PANEL)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


# The secret key has a variable only: flags are seen by every user of the machine.
_FLAGS = (
    _flag("data", Path, "Folder of the embedded stack; .marlaas here by default."),
    _flag("temporal_address", str, "host:port of a Temporal cluster."),
    _flag("temporal_namespace", str, "Its namespace."),
    _flag("nats_url", str, "nats://host:port of a NATS cluster with JetStream."),
    _flag("s3_endpoint", str, "host:port of an S3 store; its secret is MARLAAS_S3_SECRET_KEY."),
    _flag("s3_access_key", str, "Its access key."),
    _flag("s3_secure", bool, "Whether it speaks https."),
)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Makes a command of a function whose first parameter is a `Settings`: that is built from flags.

    Raises:
        StackError: from the command, when the settings are wrong.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [one.replace(kind=keyword) for one in list(inspect.signature(command).parameters.values())[1:]]

    @wraps(command)
    def run(**arguments: Any) -> None:
        from ..workers.settings import load_settings  # slow to import, and `--help` needs none of it

        given = {flag.name: arguments.pop(flag.name) for flag in _FLAGS}
        command(load_settings(**given), **arguments)

    parameters = [*own, *_FLAGS]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return run

"""A command's connection to the servers: quick to say that there is none, or patient."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TypeVar

import typer
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from ..client import Client, connect
from ..jobs.errors import ServiceUnreachable
from ..workers.settings import Addresses, Settings

T = TypeVar("T")

_CONNECT_SECONDS = 8.0
"""Temporal's client itself waits for 30 seconds for a server that accepts connections and says nothing."""
_RETRY_SECONDS = 1.0


async def with_client(where: Settings | Addresses, run: Callable[[Client], Awaitable[T]]) -> T:
    """The result of `run`, given a connection.

    For a program that ends soon after: what is left of an attempt to connect lives on for a while.

    Raises:
        ServiceUnreachable: within some seconds, when Temporal does not answer.
    """
    _silence_retries()
    try:
        client = await asyncio.wait_for(connect(where), _CONNECT_SECONDS)
    except TimeoutError:
        addresses = where if isinstance(where, Addresses) else where.addresses()
        raise ServiceUnreachable(
            f"Temporal at {addresses.temporal_address} accepts connections but does not answer. `marlaas "
            "status` shows what can be reached"
        ) from None
    async with client:
        return await run(client)


async def with_patience(where: Settings | Addresses, run: Callable[[Client], Awaitable[T]]) -> T:
    """As `with_client`, but waits for a Temporal that does not answer, and says so once.

    Raises:
        ServiceUnreachable: when Temporal answers that it won't.
    """
    said = False
    while True:
        try:
            return await with_client(where, run)
        except ServiceUnreachable as error:
            if not error.may_recover:
                raise
            if not said:
                typer.echo(f"{error}. Waiting for it; ctrl-C ends that", err=True)
                said = True
        await asyncio.sleep(_RETRY_SECONDS)


@cache
def _silence_retries() -> None:
    """Keeps what Temporal's client logs of its retries out of the output, where it would go.

    That something does not answer is shown by those who watch.
    """
    quiet = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=quiet)), error_if_already_set=False)

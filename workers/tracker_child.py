"""Trackers' libraries in child processes: they are slow, keep threads, and may hang with their servers."""

import contextlib
import os
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from ..activities.report import TrackerFailure
from ..schemas.metric_row import MetricRow
from ..schemas.names import JobKey
from ..schemas.tracker_calls import AppendCall, OpenCall, Position
from ..schemas.trackers import Tracker
from ..tracking.sink import Sink, open_sink
from .child_process import ChildDied, ChildError, ChildProcess
from .child_runtime import Channel, serve
from .child_variables import tenant_variables

_PREFIXES = ("WANDB_", "MLFLOW_", "MARLAAS_PUSH_GATEWAY")
_NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_DEFAULTS = {
    # A library that tries for minutes would use up the time that a report has.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
}
_LONGEST_PROBLEM = 500
"""Characters of a library's message that a job keeps."""


class TrackerProcess:
    """A tracker that is open in a child process."""

    def __init__(self, child: ChildProcess, position: Position) -> None:
        """For `TrackerProcesses.open`."""
        self._child = child
        self.position = position

    async def append(self, rows: Sequence[MetricRow], *, final: bool) -> None:
        """See `Sink.append`. Raises TrackerFailure."""
        with _as_failures():
            await self._child.call("append", AppendCall(rows=rows, final=final))


class TrackerProcesses:
    """Opens trackers, each in a process of its own that is killed when it is left.

    Args:
        folder: for trackers that write files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def open(self, tracker: Tracker, key: JobKey) -> AsyncGenerator[TrackerProcess]:
        """A job's place in a tracker. Raises TrackerFailure."""
        child = ChildProcess.start(f"{__name__}:run", env=_variables())
        try:
            call = OpenCall(tracker=tracker, key=key, folder=str(self._folder))
            with _as_failures():
                position = Position.model_validate_json(await child.call("open", call))
            yield TrackerProcess(child, position)
        finally:
            await child.close()


@contextlib.contextmanager
def _as_failures() -> Generator[None]:
    try:
        yield
    except ChildError as error:
        text = " ".join(error.message.split()) or error.type
        raise TrackerFailure(text[:_LONGEST_PROBLEM]) from error
    except ChildDied as error:
        raise TrackerFailure(f"its process {error.ending}") from error


def _variables() -> dict[str, str]:
    named = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    network = {name: value for name, value in os.environ.items() if name.upper() in _NETWORK}
    return {**tenant_variables(), **_DEFAULTS, **network, **named}


def run(channel: Channel) -> NoReturn:
    """Serves `open`, once, and then `append`."""
    with ExitStack() as stack:
        sinks: list[Sink] = []

        def open_(payload: Any) -> str:
            call = OpenCall.model_validate(payload, strict=False)
            sinks.append(stack.enter_context(open_sink(call.tracker, call.key, Path(call.folder))))
            return sinks[0].position().model_dump_json()

        def append(payload: Any) -> None:
            call = AppendCall.model_validate(payload, strict=False)
            sinks[0].append(call.rows, final=call.final)

        serve(channel, {"open": open_, "append": append})

"""`stack.json`: what an embedded stack keeps in its data folder about itself."""

import os
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from ..schemas.contract import Contract, Document
from .processes import ProcessIdentity

ServerName = Literal["temporal", "nats", "s3"]


class StackError(Exception):
    """The embedded stack cannot do what was asked; the message says why and what to do."""


class Ports(Contract):
    """Every port that the three servers listen on, all on 127.0.0.1.

    For every port of SeaweedFS (`s3` to `s3_admin`) the one 10000 above it is taken as well.
    """

    temporal: int
    temporal_ui: int
    temporal_http: int
    temporal_metrics: int
    nats: int
    nats_monitor: int
    s3: int
    s3_master: int
    s3_volume: int
    s3_filer: int
    s3_admin: int


class ProcessRecord(Contract):
    """A process that the supervisor keeps running.

    Attributes:
        name: of a server, or of a worker as `up` was given it.
        identity: None while there is no process.
        state: `starting` until a server answers (a worker: has lived for some seconds), `waiting`
            between a death and the next start.
        restarts: since `up`.
        address: that it listens on; None for workers.
    """

    name: str
    identity: ProcessIdentity | None
    state: Literal["starting", "running", "waiting", "stopped"]
    restarts: int
    address: str | None


class StackFile(Document):
    """The document in `stack.json`.

    Attributes:
        supervisor: that wrote it last; it may be gone.
        ports: chosen once for the data folder.
        embedded: servers that `up` starts; the others are at addresses from the settings.
    """

    supervisor: ProcessIdentity
    state: Literal["starting", "running", "stopping", "stopped"]
    ports: Ports
    embedded: tuple[ServerName, ...]
    processes: tuple[ProcessRecord, ...]

    @property
    def is_supervised(self) -> bool:
        """Whether its supervisor is there and has not ended its work."""
        return self.state != "stopped" and self.supervisor.is_alive()


def read_stack(data: Path) -> StackFile | None:
    """Reads the data folder's `stack.json`; None when there is none.

    Raises:
        StackError: when it is not such a document, or of a format that this code does not know.
    """
    path = _path(data)
    try:
        return StackFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise StackError(
            f"{path} cannot be read: {error}\n"
            "Use the version of marlaas that wrote it, or another data folder."
        ) from error


def write_stack(data: Path, stack: StackFile) -> None:
    """Replaces the data folder's `stack.json`: a reader sees the old one or the new one."""
    write_atomically(_path(data), stack.model_dump_json(indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file that only its owner may read. One writer at a time."""
    partial = path.with_name(f"{path.name}.part")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _path(data: Path) -> Path:
    return data / "stack.json"

"""What the SDK is connected to."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError

from ..storage.object_store import ObjectStore
from ..storage.revisions import Revisions
from .outages import unreachable


@dataclass(frozen=True)
class Connection:
    """Temporal and the object store."""

    temporal: TemporalClient
    store: ObjectStore
    revisions: Revisions
    """Those in `store`."""
    address: str
    """Of Temporal, for messages."""

    @contextmanager
    def reaching_temporal(self) -> Generator[None]:
        """Turns Temporal's own errors into `ServiceUnreachable`."""
        try:
            yield
        except RPCError as error:
            raise unreachable(self.address, error) from error

"""The ports of an embedded stack: free when they are chosen, the same ever after."""

import itertools
import secrets
import socket
from collections.abc import Iterable

import psutil

from .stack_file import Ports

GRPC_OFFSET = 10_000
"""SeaweedFS serves gRPC on each service's port plus this."""

_LOWEST, _HIGHEST = 10_000, 22_767
"""With the offset added still below 32768, where the ports of outgoing connections begin: one of those
could take the port of a server while that is down."""

_WELL_KNOWN = {"temporal": 7233, "temporal_ui": 8233, "nats": 4222, "nats_monitor": 8222, "s3": 8333}


def choose_ports(*, well_known: bool) -> Ports:
    """Chooses ports that are free now.

    Args:
        well_known: take a service's usual port where that is free, so that other tools find it. Not
            for stacks that start at the same time, which would choose the same ones.
    """
    taken: set[int] = set()
    chosen: dict[str, int] = {}
    for name in Ports.model_fields:
        usual = [_WELL_KNOWN[name]] if well_known and name in _WELL_KNOWN else []
        chosen[name] = _first_free(itertools.chain(usual, iter(_any_port, None)), taken)
        taken |= {chosen[name], chosen[name] + GRPC_OFFSET}
    return Ports(**chosen)


def taken_port(ports: Iterable[int]) -> str | None:
    """Describes the first of the ports that another process listens on; None when all are free."""
    for port in ports:
        if not _is_free(port):
            return f"port {port} is taken by {_holder(port)}"
    return None


def _any_port() -> int:
    # Not from `random`: two processes with one seed would choose the same ports.
    return _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST + 1)


def _first_free(candidates: Iterable[int], taken: set[int]) -> int:
    return next(
        port
        for port in candidates
        if {port, port + GRPC_OFFSET}.isdisjoint(taken) and _is_free(port) and _is_free(port + GRPC_OFFSET)
    )


def _is_free(port: int) -> bool:
    """Whether a server may listen on a port, on any address: SeaweedFS insists on that."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _holder(port: int) -> str:
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,) and connection.pid:
            try:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
            except psutil.NoSuchProcess:
                break
    return "a process that cannot be seen from here"

"""What runs and what can be reached, for `marlaas status`."""

import asyncio
import shutil
from typing import Literal

import nats
import nats.errors
from temporalio.client import Client
from temporalio.service import RPCError

from ..schemas.contract import Contract
from .free_disk import needed_disk
from .s3_probe import s3_problem
from .settings import NatsSettings, S3Settings, Settings, TemporalSettings
from .stack_file import ServerName, StackFile, read_stack

_PROBE_SECONDS = 3.0
_NOT_RUNNING = "no stack runs it: `marlaas up`"


class ProcessStatus(Contract):
    """One process of the embedded stack.

    Attributes:
        role: `supervisor`, a server's name or a worker's.
        pid: None while there is no process.
        state: as in the stack file; `dead` when the process is gone and nothing starts it again.
        uptime: seconds; None while there is no process.
        restarts: since `up`.
        address: that it listens on; None for supervisor and workers.
    """

    role: str
    pid: int | None
    state: Literal["starting", "running", "waiting", "stopping", "stopped", "dead"]
    uptime: float | None
    restarts: int
    address: str | None


class AddressStatus(Contract):
    """Whether a server can be used from here.

    Attributes:
        embedded: started by `marlaas up`, not given by the settings.
        address: None when it is embedded and the stack does not run.
        problem: why it cannot be used; None when it can.
    """

    server: ServerName
    embedded: bool
    address: str | None
    problem: str | None

    @property
    def is_reachable(self) -> bool:
        return self.problem is None


class StackStatus(Contract):
    """What `marlaas status` shows of the stack.

    Attributes:
        processes: of the data folder's stack; none when it does not run.
        servers: all three, wherever they are.
        free_disk: bytes that are free where the data folder is; None when there is no such folder.
        needed_disk: bytes that have to be; below them `up` refuses to start.
    """

    data: str
    processes: tuple[ProcessStatus, ...]
    servers: tuple[AddressStatus, ...]
    free_disk: int | None
    needed_disk: int

    @property
    def disk_problem(self) -> str | None:
        """What is wrong with the disk, in words: servers on a full one refuse everything."""
        if not self.processes or self.free_disk is None or self.free_disk >= self.needed_disk:
            return None
        return (
            f"the disk of {self.data} has {self.free_disk / 2**20:.0f} MiB left: "
            "free some, and jobs go on by themselves"
        )


async def stack_status(settings: Settings) -> StackStatus:
    """Looks at the processes of the data folder's stack and tries every address, each for a few seconds.

    Raises:
        StackError: when the data folder's files cannot be read.
    """
    stack = read_stack(settings.data)
    whole = settings.on_stack(stack)
    problems = await asyncio.gather(
        _temporal_problem(whole.temporal), _nats_problem(whole.nats), _s3_problem(whole.s3)
    )
    names: tuple[ServerName, ...] = ("temporal", "nats", "s3")
    given = (whole.temporal.address, whole.nats.url, whole.s3.endpoint)
    servers = tuple(
        AddressStatus(server=name, embedded=name in settings.embedded, address=address, problem=problem)
        for name, address, problem in zip(names, given, problems, strict=True)
    )
    return StackStatus(
        data=str(settings.data),
        processes=_processes(stack),
        servers=servers,
        free_disk=shutil.disk_usage(settings.data).free if settings.data.is_dir() else None,
        needed_disk=needed_disk(settings) if settings.data.is_dir() else 0,
    )


def _processes(stack: StackFile | None) -> tuple[ProcessStatus, ...]:
    if stack is None or stack.state == "stopped":
        return ()
    is_supervised = stack.is_supervised
    supervisor = ProcessStatus(
        role="supervisor",
        pid=stack.supervisor.pid if is_supervised else None,
        state=stack.state if is_supervised else "dead",
        uptime=stack.supervisor.age() if is_supervised else None,
        restarts=0,
        address=None,
    )
    kept: list[ProcessStatus] = []
    for record in stack.processes:
        alive = record.identity if record.identity is not None and record.identity.is_alive() else None
        kept.append(
            ProcessStatus(
                role=record.name,
                pid=alive.pid if alive else None,
                state=record.state if alive or is_supervised else "dead",
                uptime=alive.age() if alive else None,
                restarts=record.restarts,
                address=record.address,
            )
        )
    return (supervisor, *kept)


async def _temporal_problem(temporal: TemporalSettings) -> str | None:
    if temporal.address is None:
        return _NOT_RUNNING
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            client = await Client.connect(temporal.address, namespace=temporal.namespace)
            await client.count_workflows()
    except TimeoutError:
        return f"no answer within {_PROBE_SECONDS:.0f} s"
    except (RPCError, RuntimeError) as error:
        return str(error)
    return None


async def _nats_problem(settings: NatsSettings) -> str | None:
    if settings.url is None:
        return _NOT_RUNNING

    async def quiet(_: Exception) -> None:
        """Errors come back from the calls; the client would log them as well."""

    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            client = await nats.connect(  # pyright: ignore[reportUnknownMemberType]
                settings.url, allow_reconnect=False, error_cb=quiet
            )
            try:
                await client.jetstream().account_info()  # pyright: ignore[reportUnknownMemberType]
            finally:
                await client.close()
    except TimeoutError:
        return f"no answer within {_PROBE_SECONDS:.0f} s"
    except (nats.errors.Error, OSError) as error:
        return str(error) or type(error).__name__
    return None


async def _s3_problem(s3: S3Settings) -> str | None:
    if s3.endpoint is None or s3.access_key is None or s3.secret_key is None:
        return _NOT_RUNNING
    return await asyncio.to_thread(
        s3_problem, s3.endpoint, s3.access_key, s3.secret_key, secure=s3.secure, seconds=_PROBE_SECONDS
    )

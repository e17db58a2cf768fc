"""The supervisor of the embedded stack: starts servers and workers, and keeps them running."""

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from ..schemas.contract import Contract
from .credentials import make_credentials
from .data_lock import locked
from .free_disk import FREE_DISK_LIMIT, needed_disk
from .keeper import Keeper, Program
from .log_files import bound_logs
from .ports import choose_ports
from .processes import ProcessIdentity
from .servers import nats_server, object_store, temporal_server
from .settings import Addresses, Settings
from .stack_file import StackError, StackFile, read_stack, write_stack

_UNUSABLE = set(",%#?")
"""In paths: SeaweedFS takes a comma for two folders, Temporal takes its database file for part of a URL."""

_WORKER_STOP_SECONDS = 20.0
"""A worker hands its work back on SIGTERM; see `graceful_shutdown_timeout` of Temporal's workers."""
_WORKER_SETTLED_SECONDS = 5.0
_LOG_CHECK_SECONDS = 5.0
_KILL_SECONDS = 10.0


class WorkerCommand(Contract):
    """A worker process for the supervisor to keep running.

    Attributes:
        name: unlike every other; names its log file too.
        argv: the program and its arguments. It runs in the current folder with this process's
            environment and the addresses of all servers in MARLAAS_ variables.
    """

    name: str
    argv: tuple[str, ...]


class Supervisor:
    """Runs the embedded stack of one data folder, in this process's main thread.

    For tests: `async with Supervisor(Settings(data=tmp_path)).running() as addresses`.

    Args:
        settings: servers with an address there are not started.
        workers: started after the servers, stopped before them.
        free_disk_limit: bytes that must be free where the data folder is.
        well_known_ports: for a data folder that has no ports yet; see `choose_ports`.
        report: is given a line for people when something happened.
    """

    def __init__(
        self,
        settings: Settings,
        workers: Sequence[WorkerCommand] = (),
        *,
        free_disk_limit: int = FREE_DISK_LIMIT,
        well_known_ports: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        names = ["temporal", "nats", "s3", *(worker.name for worker in workers)]
        if len(set(names)) != len(names):
            raise StackError(f"Two processes of the stack have one name: {', '.join(names)}.")
        self.settings = settings
        self._workers = workers
        self._free_disk_limit = free_disk_limit
        self._well_known_ports = well_known_ports
        self._tell = report
        self._stack: StackFile | None = None
        self._servers: dict[str, Keeper] = {}
        self._kept_workers: dict[str, Keeper] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Addresses]:
        """Runs the stack while the context lasts; entered once all servers work.

        Raises:
            StackError: when another process runs a stack in the data folder, the disk is too full, a
                port is taken or a server cannot be started.
        """
        _require_main_thread_of_linux()
        if not self.settings.embedded and not self._workers:
            raise StackError(
                "There is nothing to start: every server has an address, and no worker was asked for."
            )
        data = self.settings.data
        with locked(data):
            self._require_free_disk()
            addresses = self._prepare()
            log_task = asyncio.create_task(_keep_logs_bounded(data / "logs"))
            try:
                self._tasks = [keeper.start() for keeper in self._servers.values()]
                await asyncio.gather(*(keeper.ready() for keeper in self._servers.values()))
                self._tasks += [keeper.start() for keeper in self._kept_workers.values()]
                self._save("running")
                yield addresses
            finally:
                log_task.cancel()
                await _to_the_end(self._stop())

    async def failure(self) -> None:
        """Waits for as long as the stack can be kept running.

        Raises:
            StackError: when a server died and cannot be started again.
        """
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def kill(self, name: str) -> None:
        """Ends a server or worker with SIGKILL, for tests. `ready(name)` then waits for the next one."""
        self._keepers[name].kill()

    async def ready(self, name: str) -> None:
        """Returns when a server answers, or a worker has lived for some seconds.

        Raises:
            StackError: when a server cannot be started.
        """
        await self._keepers[name].ready()

    @property
    def _keepers(self) -> dict[str, Keeper]:
        return {**self._servers, **self._kept_workers}

    def _require_free_disk(self) -> None:
        data = self.settings.data
        free, needed = shutil.disk_usage(data).free, needed_disk(self.settings, self._free_disk_limit)
        if free < needed:
            raise StackError(
                f"Only {free / 2**30:.1f} GiB are free on the disk of {data}, and the stack needs "
                f"{needed / 2**30:.1f} GiB. Free some space, or use a data folder on another disk."
            )

    def _prepare(self) -> Addresses:
        """Ends what an earlier supervisor left, and settles ports, credentials and programs."""
        data, embedded = self.settings.data, self.settings.embedded
        if wrong := _UNUSABLE & set(str(data)):
            raise StackError(f"The servers cannot use the data folder {data}: its path has {' '.join(wrong)}")
        previous = read_stack(data)
        if previous is not None:
            end_survivors(previous)
        ports = previous.ports if previous else choose_ports(well_known=self._well_known_ports)
        credentials = make_credentials(data)
        supervisor = ProcessIdentity.of(os.getpid())
        assert supervisor is not None, "this process runs"
        self._stack = StackFile(
            supervisor=supervisor, state="starting", ports=ports, embedded=embedded, processes=()
        )
        addresses = self.settings.on_stack(self._stack).addresses()
        (data / "logs").mkdir(exist_ok=True)
        programs = {
            "temporal": lambda: temporal_server(data, ports, addresses.temporal_namespace),
            "nats": lambda: nats_server(data, ports),
            "s3": lambda: object_store(data, ports, credentials),
        }
        self._servers = {name: self._keeper(programs[name]()) for name in embedded}
        self._kept_workers = {
            worker.name: self._keeper(_worker_program(worker, data, addresses)) for worker in self._workers
        }
        write_stack(data, self._stack)
        return addresses

    def _report(self, line: str) -> None:
        """Says a line, if anybody is left to hear it: a closed terminal must not end what stops the rest."""
        with suppress(OSError):
            self._tell(line)

    def _keeper(self, program: Program) -> Keeper:
        return Keeper(program, self._report, self._save)

    async def _stop(self) -> None:
        self._save("stopping")
        await asyncio.gather(*(keeper.stop() for keeper in self._kept_workers.values()))
        await asyncio.gather(*(keeper.stop() for keeper in self._servers.values()))
        self._save("stopped")

    def _save(self, state: Literal["running", "stopping", "stopped"] | None = None) -> None:
        """Writes `stack.json`, with a new state of the whole when one is given."""
        assert self._stack is not None, "running() comes first"
        records = tuple(keeper.record for keeper in self._keepers.values())
        self._stack = self._stack.model_copy(
            update={"state": state or self._stack.state, "processes": records}
        )
        try:
            write_stack(self.settings.data, self._stack)
        except OSError as error:
            # A full disk must not end servers that still work.
            self._report(f"stack.json could not be written: {error}")


def end_survivors(stack: StackFile) -> None:
    """Kills what is left of a stack whose supervisor is gone. For the holder of the data folder's lock.

    Raises:
        StackError: when a process does not end.
    """
    for record in stack.processes:
        survivor = record.identity
        if survivor is not None and survivor.is_alive():
            os.killpg(survivor.pid, signal.SIGKILL)
            if not survivor.ends_within(_KILL_SECONDS):
                raise StackError(f"{record.name} (pid {survivor.pid}) does not end, not even by SIGKILL.")


def _worker_program(worker: WorkerCommand, data: Path, addresses: Addresses) -> Program:
    async def settled() -> None:
        await asyncio.sleep(_WORKER_SETTLED_SECONDS)

    return Program(
        name=worker.name,
        argv=worker.argv,
        folder=Path.cwd(),
        environment={**os.environ, **addresses.environment(), "MARLAAS_DATA": str(data)},
        log=data / "logs" / f"{worker.name}.log",
        ports=(),
        address=None,
        ready=settled,
        essential=False,
        stop_seconds=_WORKER_STOP_SECONDS,
    )


async def _keep_logs_bounded(folder: Path) -> None:
    while True:
        with suppress(OSError):
            bound_logs(folder)
        await asyncio.sleep(_LOG_CHECK_SECONDS)


def _require_main_thread_of_linux() -> None:
    if sys.platform != "linux":
        raise StackError(
            f"The embedded stack runs on Linux, not on {sys.platform}: give the addresses of servers."
        )
    if threading.current_thread() is not threading.main_thread():
        raise StackError(
            "A Supervisor must run in the main thread: its processes end with the thread that started them."
        )


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits work that must not be left half done: a cancellation meanwhile is raised after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled

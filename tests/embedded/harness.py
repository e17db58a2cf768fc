"""What the tests of the embedded stack share."""

import asyncio
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import nats
import urllib3
from marlaas.workers.settings import Addresses
from marlaas.workers.stack_file import StackFile, read_stack
from marlaas.workers.up import UpPlan
from minio import Minio
from nats.aio.client import Client as NatsClient
from temporalio.client import Client, WorkflowExecutionStatus


def processes_of(folder: Path) -> list[int]:
    """Every other process whose command line, variables or working directory name the folder."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            seen = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            seen += os.readlink(entry / "cwd").encode()
            if int(entry.name) != os.getpid() and str(folder).encode() in seen:
                found.append(int(entry.name))
    return found


def stack_file(data: Path) -> StackFile:
    stack = read_stack(data)
    assert stack is not None
    return stack


def pids(data: Path) -> dict[str, int]:
    """The recorded processes that there are, by name."""
    return {each.name: each.identity.pid for each in stack_file(data).processes if each.identity is not None}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass
class UpProcess:
    """A supervisor in a process of its own, started by the program `around`."""

    plan: UpPlan
    around: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [*self.around, sys.executable, "-m", "marlaas.workers.up"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(self.plan.model_dump_json().encode())

    def answer(self) -> bytes:
        """Waits until all servers work, or until it has failed."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass(frozen=True)
class Marks:
    """Leaves something in each server, and looks for it later, with one try."""

    addresses: Addresses

    async def leave(self, name: str) -> None:
        client = await Client.connect(self.addresses.temporal_address)
        await client.start_workflow("Nothing", id=name, task_queue="nobody-polls")
        connection = await self._nats()
        stream = connection.jetstream()  # pyright: ignore[reportUnknownMemberType]
        await stream.add_stream(name=name, subjects=[name])  # pyright: ignore[reportUnknownMemberType]
        await stream.publish(name, name.encode())
        await connection.close()
        await asyncio.to_thread(self._put, name)

    async def are_there(self, name: str) -> None:
        for server in ("temporal", "nats", "s3"):
            await self.are_in(server, name)

    async def are_in(self, server: str, name: str) -> None:
        if server == "temporal":
            client = await Client.connect(self.addresses.temporal_address)
            description = await client.get_workflow_handle(name).describe()
            assert description.status == WorkflowExecutionStatus.RUNNING
        elif server == "nats":
            connection = await self._nats()
            stream = connection.jetstream()  # pyright: ignore[reportUnknownMemberType]
            message = await stream.get_last_msg(name, name)
            assert message.data == name.encode()
            await connection.close()
        else:
            assert await asyncio.to_thread(self._get, name) == name.encode()

    async def _nats(self) -> NatsClient:
        return await nats.connect(self.addresses.nats_url, allow_reconnect=False)  # pyright: ignore[reportUnknownMemberType]

    def _minio(self) -> Minio:
        return Minio(
            self.addresses.s3_endpoint,
            access_key=self.addresses.s3_access_key,
            secret_key=self.addresses.s3_secret_key,
            secure=self.addresses.s3_secure,
            http_client=urllib3.PoolManager(retries=False),
        )

    def _put(self, name: str) -> None:
        client = self._minio()
        client.make_bucket(name)
        client.put_object(name, "mark", io.BytesIO(name.encode()), len(name))

    def _get(self, name: str) -> bytes:
        response = self._minio().get_object(name, "mark")
        try:
            return response.data
        finally:
            response.close()

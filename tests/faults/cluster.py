"""A whole cluster under test: real servers, real worker processes, a tiny model, and ways to hurt them."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
from marlaas.client import Client
from marlaas.job import Job
from marlaas.schemas.names import JobKey
from marlaas.workers.roles import Role
from marlaas.workers.settings import Addresses
from marlaas.workflows.train_job import TrainJob
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError


class WorkerProcess:
    """A worker, started as a person would start it."""

    def __init__(self, role: Role, addresses: Addresses, data: Path) -> None:
        self.role = role
        self._process = subprocess.Popen(
            [sys.executable, "-m", "marlaas", "worker", "--role", role, "--data", str(data)],
            cwd=Path(__file__).parent,
            env={**os.environ, **addresses.environment(), "OMP_NUM_THREADS": "1"},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def children(self, target: str = "") -> list[psutil.Process]:
        """Its child processes whose command line names `target`; some, as those of reports, live shortly."""
        found: list[psutil.Process] = []
        for child in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if target in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def child(self, target: str) -> psutil.Process:
        """Its one child process of this kind."""
        (found,) = self.children(target)
        return found

    def send(self, number: signal.Signals, *, tree: bool = False) -> None:
        """Sends a signal to the worker, and to its children when `tree`."""
        for child in self.children() if tree else ():
            child.send_signal(number)
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, of the worker alone; returns when it and its children are gone."""
        children = self.children()
        self._process.kill()
        self._process.wait()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive, f"left behind: {alive}"

    def wait(self) -> int:
        return self._process.wait(timeout=60)

    @property
    def running(self) -> bool:
        return self._process.poll() is None


class Workers:
    """Worker processes on one set of servers, with one data folder."""

    def __init__(self, addresses: Addresses, data: Path) -> None:
        self._addresses, self.data = addresses, data
        self._workers: list[WorkerProcess] = []

    def start(self, role: Role) -> WorkerProcess:
        worker = WorkerProcess(role, self._addresses, self.data)
        self._workers.append(worker)
        return worker

    def ensure(self, role: Role) -> WorkerProcess:
        """The only running worker of a role: one that is left from before, or a new one."""
        left = [worker for worker in self._workers if worker.role == role and worker.running]
        for surplus in left[1:]:
            surplus.kill()
        return left[0] if left else self.start(role)

    def ensure_all(self) -> None:
        """One running worker of each role."""
        for role in ("control", "cpu", "gpu"):
            self.ensure(role)

    def close(self) -> None:
        for worker in self._workers:
            if worker.running:
                worker.send(signal.SIGCONT, tree=True)
                worker.kill()


class Cluster:
    """What goes on in a cluster, as its servers tell."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def digests(self, key: JobKey) -> list[str]:
        """sha256 of every adapter revision of a job, from version 0."""
        found: list[str] = []
        while (manifest := await self.client.connection.revisions.manifest(key, len(found))) is not None:
            found.append(manifest.adapter.digest)
        return found

    async def committed(self, key: JobKey, version: int) -> None:
        """Waits until a version is committed."""

        async def is_there() -> bool:
            return await self.client.connection.revisions.manifest(key, version) is not None

        await until(is_there)

    def step(self, key: JobKey, step: int) -> WorkflowHandle[Any, Any]:
        return self.client.connection.temporal.get_workflow_handle(key.step_id(step))

    async def running(self, job: Job, activity: str) -> int:
        """Waits until a worker has an activity of this type in hand; returns the step."""
        while True:
            progress = await self.client.connection.temporal.get_workflow_handle_for(
                TrainJob.run, job.key.workflow_id
            ).query(TrainJob.progress)
            for step in progress.open_steps:
                if await self.in_hand(job.key, step, activity):
                    return step
            await asyncio.sleep(0.02)

    async def in_hand(self, key: JobKey, step: int, activity: str) -> int:
        """How many activities of this type in a step a worker has begun, and none has ended."""
        pending = await self._pending(key, step, activity)
        return sum(bool(one.last_started_time.seconds) for one in pending)

    async def pending(self, key: JobKey, step: int, activity: str) -> None:
        """Waits until an activity of a step is scheduled and not yet done."""

        async def is_pending() -> bool:
            return bool(await self._pending(key, step, activity))

        await until(is_pending)

    async def _pending(self, key: JobKey, step: int, activity: str) -> list[PendingActivityInfo]:
        try:
            description = await self.step(key, step).describe()
        except RPCError:  # the step has not been opened yet
            return []
        activities = description.raw_description.pending_activities
        return [one for one in activities if one.activity_type.name == activity]

    async def attempts(self, key: JobKey, step: int, activity: str) -> list[int]:
        """How many attempts each activity of this type in a closed step took."""
        types: dict[int, str] = {}
        found: list[int] = []
        async for event in self.step(key, step).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                scheduled = event.activity_task_scheduled_event_attributes
                types[event.event_id] = scheduled.activity_type.name
            elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                started = event.activity_task_started_event_attributes
                if types[started.scheduled_event_id] == activity:
                    found.append(started.attempt)
        return found


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Polls; the test's own time limit ends what never comes true."""
    while not await condition():
        await asyncio.sleep(0.05)


async def finished(job: Job) -> None:
    """Waits for the job's successful end."""
    result = await job.result()
    assert result.outcome == "completed"

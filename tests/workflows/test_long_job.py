"""A job of thousands of steps: bounded histories, and a control worker that does not grow."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
from marlaas.schemas import names
from marlaas.schemas.events import JobResult
from marlaas.tests.noop_activities import NoopActivities, job, start
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.worker import Worker

STEPS = 2000
MOST_EVENTS = 10_000
MOST_GROWTH = 32 << 20
"""Bytes from step 500 to the end. The worker caches a bounded number of workflows, full by then."""


@pytest.fixture
async def control_worker(temporal: Client, tmp_path: Path) -> AsyncGenerator[psutil.Process]:
    """The real control worker in a process of its own."""
    address = temporal.service_client.config.target_host
    servers = {
        "MARLAAS_TEMPORAL_ADDRESS": address,
        "MARLAAS_NATS_URL": "nats://127.0.0.1:1",
        "MARLAAS_S3_ENDPOINT": "127.0.0.1:1",
        "MARLAAS_S3_ACCESS_KEY": "unused",
        "MARLAAS_S3_SECRET_KEY": "unused",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "marlaas", "worker", "--role", "control"],
        env={**os.environ, **servers},
        cwd=tmp_path,
    )
    yield psutil.Process(process.pid)
    process.terminate()
    assert process.wait(timeout=60) == 0


@pytest.mark.timeout(1200)
async def test_2000_steps_keep_histories_bounded_and_the_control_worker_flat(
    temporal: Client, control_worker: psutil.Process
) -> None:
    activities = NoopActivities()
    resident: dict[int, int] = {}
    async with AsyncExitStack() as stack:
        for queue in (names.CPU_QUEUE, names.REWARD_QUEUE, names.SAMPLE_QUEUE, names.TRAIN_QUEUE):
            await stack.enter_async_context(Worker(temporal, task_queue=queue, activities=activities.all))
        activities.on_trained = lambda: resident.setdefault(
            len(activities.trained), control_worker.memory_info().rss
        )
        handle = await start(temporal, job("long", steps=STEPS, max_staleness=2), "acme/long")
        result = JobResult.model_validate(await handle.result(), strict=False)
    assert result.revision.version == STEPS
    assert [version for _, version in activities.trained] == list(range(STEPS))
    assert resident[STEPS] - resident[500] < MOST_GROWTH, resident
    closed = await closed_runs(temporal)
    runs = [one for one in closed if one.id == "acme/long"]
    assert {one.status for one in runs} == {
        WorkflowExecutionStatus.CONTINUED_AS_NEW,
        WorkflowExecutionStatus.COMPLETED,
    }
    assert len(closed) == STEPS + len(runs)
    assert max(one.history_length or 0 for one in closed) < MOST_EVENTS


async def closed_runs(temporal: Client) -> list[WorkflowExecution]:
    """Every run of the job and of its steps, once the server's lists, which lag, show all as closed."""
    while True:
        runs = [one async for one in temporal.list_workflows("WorkflowId STARTS_WITH 'acme/long'")]
        if all(one.status != WorkflowExecutionStatus.RUNNING for one in runs):
            return runs
        await asyncio.sleep(0.5)

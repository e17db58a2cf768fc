"""CASES 104: a job whose workers are gone says so instead of looking busy."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from marlaas.schemas import names
from marlaas.schemas.events import JobProgress
from marlaas.tests.noop_activities import NoopActivities, job, start
from marlaas.workflows.plugin import WORKFLOWS
from temporalio.client import Client
from temporalio.worker import Worker


async def until_state(handle: Any, state: str) -> JobProgress:
    while True:
        progress = JobProgress.model_validate(await handle.query("progress"), strict=False)
        if progress.state == state:
            return progress
        await asyncio.sleep(0.05)


async def test_a_job_without_samplers_is_stalled_until_there_is_one(temporal: Client) -> None:
    activities = NoopActivities()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            Worker(temporal, task_queue=names.TASK_QUEUE, workflows=list(WORKFLOWS), max_cached_workflows=50)
        )
        for queue in (names.CPU_QUEUE, names.REWARD_QUEUE, names.TRAIN_QUEUE):
            await stack.enter_async_context(Worker(temporal, task_queue=queue, activities=activities.all))
        spec = job("starved", steps=2, durability={"stalled_after_minutes": 0.01})
        handle = await start(temporal, spec, "acme/starved")
        reason = (await until_state(handle, "stalled")).reason or ""
        assert "step 0: nothing has moved in phase rollout for 0.01 minutes" in reason
        assert "0 of 2 groups are sampled" in reason
        await stack.enter_async_context(
            Worker(temporal, task_queue=names.SAMPLE_QUEUE, activities=activities.all)
        )
        await handle.result()
        assert (await until_state(handle, "done")).reason is None

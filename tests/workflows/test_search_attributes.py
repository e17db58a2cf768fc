"""Jobs can be found by tenant, base model, state, step and mean reward."""

import asyncio
from typing import Any

from marlaas.tests.noop_activities import NoopActivities, job, noop_workers, start
from marlaas.workers.search_attributes import ensure_search_attributes
from temporalio.client import Client


async def found(client: Client, query: str) -> list[str]:
    return [one.id async for one in client.list_workflows(query)]


async def until_found(client: Client, query: str, wanted: list[Any]) -> None:
    """Temporal's lists lag behind its histories."""
    while await found(client, query) != wanted:
        await asyncio.sleep(0.1)


async def test_a_job_is_listed_by_each_of_them(temporal: Client) -> None:
    await ensure_search_attributes(temporal)  # a second time: nothing is missing
    activities = NoopActivities()
    async with noop_workers(temporal, activities):
        handle = await start(temporal, job("listed", model="tiny/one", steps=4), "acme/listed")
        await handle.signal("pause")
        mine = "MarlaasTenant = 'acme' AND MarlaasBaseModel = 'tiny/one'"
        await until_found(
            temporal, f"{mine} AND MarlaasState = 'paused' AND MarlaasStep = 0", ["acme/listed"]
        )
        assert await found(temporal, f"{mine} AND MarlaasStep > 0") == []
        await handle.signal("resume")
        await handle.result()
        await until_found(temporal, f"{mine} AND MarlaasStep = 4 AND MarlaasReward = 0.5", ["acme/listed"])
        assert await found(temporal, "MarlaasBaseModel = 'tiny/two'") == []

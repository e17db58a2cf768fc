"""`marlaas metrics`: every row once, without a worker, during the job and after it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from marlaas.client import Client
from marlaas.schemas.events import Candidate
from marlaas.schemas.tracker_calls import TrackerState
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import StoringActivities, workers
from marlaas.tests.noop_activities import FINGERPRINT

Spec = Callable[..., dict[str, Any]]


async def storing(client: Client, tenant: str) -> StoringActivities:
    await client.connection.store.ensure_bucket(f"marlaas-{tenant}")
    blob = await client.connection.store.put_blob(f"marlaas-{tenant}", b"adapter")
    base = Candidate(
        version=0,
        parent=None,
        adapter=blob,
        optimizer=blob,
        batch=None,
        metrics=None,
        fingerprint=FINGERPRINT,
    )
    return StoringActivities(client.connection.revisions, base)


async def test_follow_prints_each_step_once_until_the_job_ends(
    marlaas: CommandLine, client: Client, tenant: str, spec: Spec
) -> None:
    activities = await storing(client, tenant)
    async with workers(client.connection.temporal, activities):
        job = await client.submit(spec(steps=4))
        while not await client.connection.revisions.latest_version(job.key):
            await asyncio.sleep(0.05)
        following = await marlaas.start("metrics", str(job.key), "--follow")
        await job.result()
        out, err = await following.communicate()
    assert (following.returncode, err) == (0, b"")
    lines = [json.loads(line) for line in out.decode().splitlines()]
    assert [(line["version"], line["reward/mean"]) for line in lines] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
        (4, 0.4),
    ]

    without_workers = await marlaas("metrics", str(job.key))
    assert without_workers.out == out.decode()
    table = await marlaas.on_terminal("metrics", str(job.key))
    assert table.code == 0
    assert "REWARD" in table.out
    assert "0.400" in table.out


async def test_a_job_that_was_never_stored_is_said(marlaas: CommandLine, tenant: str) -> None:
    ended = await marlaas("metrics", f"{tenant}/nothing")
    assert ended.code == 1
    assert f"the object store has no job {tenant}/nothing" in ended.err


async def test_a_tracker_that_fails_is_among_the_problems_of_a_job_that_goes_on(
    client: Client, tenant: str, spec: Spec
) -> None:
    activities = await storing(client, tenant)
    activities.trackers = (TrackerState(kind="wandb", version=None, problem="the server is down"),)
    async with workers(client.connection.temporal, activities):
        job = await client.submit(spec(steps=100_000, trackers=[{"kind": "wandb", "project": "p"}]))
        problems: list[str] = []
        while not problems:
            snapshot = await job.progress()
            problems = [str(one) for one in snapshot.problems if one.kind == "not reported"]
        await job.stop()
        assert (await job.result()).outcome == "stopped"
    assert problems == ["not reported: wandb: the server is down"]

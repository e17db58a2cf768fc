"""Changing a job from the command line: while it runs, and after it has ended."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from marlaas.client import Client
from marlaas.job import Job
from marlaas.jobs.errors import JobError
from marlaas.schemas.job_spec import InvalidJobSpec
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import GatedActivities, workers
from marlaas.tests.front_door.test_watch import until

Spec = Callable[..., dict[str, Any]]


async def at_rest(client: Client, spec: dict[str, Any]) -> Job:
    """A paused job without open steps."""
    job = await client.submit(spec)
    await job.pause()
    await until(job, lambda now: now.state == "paused" and not now.open_steps and now.version is not None)
    return job


async def test_set_says_from_where_it_acts_and_watch_shows_it(
    marlaas: CommandLine, client: Client, spec: Spec
) -> None:
    async with workers(client.connection.temporal, GatedActivities()):
        job = await at_rest(client, spec(steps=4))
        done = await marlaas("set", str(job.key), "optimizer.learning_rate=0.5", "steps=5")
        step = (await job.progress()).version
        assert (done.code, done.err) == (0, "")
        assert done.out.splitlines() == [
            f"optimizer.learning_rate is 0.5 from step {step} on",
            f"steps is 5 from step {step} on",
        ]
        resumed = await marlaas("resume", str(job.key))
        assert (resumed.code, resumed.out) == (0, f"job {job.key} goes on\n")
        watched = await marlaas("watch", str(job.key))
        assert watched.code == 0
        snapshot = await job.progress()
    assert (snapshot.version, snapshot.steps) == (5, 5)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lora.rank=8", "lora.rank can't be set while a job runs"),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate is -1"),
        ("optimizer.learning_rate=fast", "optimizer.learning_rate is 'fast': a number is needed"),
        ("optimizer.learning_rate", "is not of the form path=value"),
    ],
)
async def test_what_cannot_be_set_is_refused_with_its_path(
    marlaas: CommandLine, client: Client, spec: Spec, word: str, message: str
) -> None:
    async with workers(client.connection.temporal, GatedActivities()):
        job = await at_rest(client, spec())
        refused = await marlaas("set", str(job.key), word)
        assert refused.code in (1, 2)
        assert message in " ".join(refused.err.replace("│", " ").split())
        assert (await job.progress()).progress is not None
        await job.cancel()


async def test_a_job_without_a_version_cannot_be_resumed_and_one_that_runs_needs_no_change(
    client: Client, spec: Spec
) -> None:
    activities = GatedActivities()
    async with workers(client.connection.temporal, activities):
        job = await at_rest(client, spec(steps=2))
        assert await job.resume({"steps": 3}) is False
        result = await job.result()
        assert result.revision.version == 3
        with pytest.raises(InvalidJobSpec, match=r"lora\.rank"):
            await at_rest_and_set(client, spec(job="other"))
    with pytest.raises(JobError, match="has no committed version to go on from"):
        await job.resume()  # these activities store nothing


async def at_rest_and_set(client: Client, spec: dict[str, Any]) -> None:
    job = await at_rest(client, spec)
    try:
        await asyncio.wait_for(job.set({"lora.rank": 8}), timeout=60)
    finally:
        await job.cancel()

"""CASES 5, 7, 8, 97 and 98: a job that ended, however, goes on as if it never had."""

import asyncio

import pytest
from marlaas.job import Job
from marlaas.jobs.errors import JobError

from .cluster import Cluster, Workers, finished
from .conftest import Jobs

pytestmark = pytest.mark.parametrize("staleness", [0, 2])


async def ended(job: Job) -> None:
    while not (await job.progress()).is_over:
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("way", ["terminated", "cancelled", "stopped"])
async def test_a_resumed_job_has_the_bytes_of_one_that_never_ended(
    cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int, way: str
) -> None:
    workers.ensure_all()
    job = await jobs.submit(staleness)
    await cluster.committed(job.key, 2)
    if way == "terminated":
        await cluster.client.connection.temporal.get_workflow_handle(job.key.workflow_id).terminate()
    elif way == "cancelled":
        await job.cancel()
    else:
        await job.stop()
    await ended(job)
    assert await job.resume()
    await jobs.assert_undisturbed(job, staleness)


async def test_a_finished_job_trains_longer_when_it_is_given_more_steps(
    cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int
) -> None:
    workers.ensure_all()
    job = await jobs.submit(staleness)
    await finished(job)
    steps = len(await cluster.digests(job.key)) - 1
    await job.resume({"steps": steps + 2, "optimizer.learning_rate": 0.5})
    await finished(job)
    assert len(await cluster.digests(job.key)) == steps + 3
    manifest = await cluster.client.connection.revisions.manifest(job.key, steps + 2)
    assert manifest is not None
    assert manifest.epoch == 1
    assert {one.path: one.from_step for one in manifest.settings} == {
        "steps": steps,
        "optimizer.learning_rate": steps,
    }
    assert manifest.metrics is not None
    assert manifest.metrics.learning_rate == 0.5
    with pytest.raises(JobError, match=f"has trained all its {steps + 2} steps"):
        await job.resume()

"""Metrics of real jobs: each point once whatever is killed, and none that an evaluation changes."""

import asyncio
import json
from typing import Any

from marlaas.job import Job
from marlaas.tests.tracking.readers import tensorboard_points

from .cluster import Cluster, Workers, finished
from .conftest import STEPS, Jobs

TIMED = {"seconds", "throughput"}
"""Groups of figures that a clock decides."""


async def jsonl(cluster: Cluster, job: Job) -> list[dict[str, Any]]:
    stored = await cluster.client.connection.store.get(job.key.bucket, job.key.metrics_key(0))
    return [json.loads(line) for line in (stored or b"").decode().splitlines()]


async def test_a_cpu_worker_killed_while_it_reports(cluster: Cluster, workers: Workers, jobs: Jobs) -> None:
    job = await cluster.client.submit({**jobs.spec(0), "trackers": [{"kind": "tensorboard"}]})
    kills = 0
    while kills < 2:
        worker = workers.ensure("cpu")
        while not worker.children("tracker_child"):
            await asyncio.sleep(0.02)
        worker.kill()
        kills += 1
    workers.ensure("cpu")
    await jobs.assert_undisturbed(job, 0)
    rows = {row.version: row.figures["reward/mean"] async for row in job.metric_rows()}
    assert list(rows) == list(range(1, STEPS + 1))
    folder = workers.data / "tracking" / job.key.tenant / job.key.job / "tensorboard"
    points = {step: v for (tag, step), v in tensorboard_points(folder).items() if tag == "reward/mean"}
    assert {step: [round(one, 5) for one in v] for step, v in points.items()} == {
        version: [round(reward, 5)] for version, reward in rows.items()
    }
    assert [(line["version"], line["reward/mean"]) for line in await jsonl(cluster, job)] == list(
        rows.items()
    )


async def test_evaluations_between_change_no_step(cluster: Cluster, workers: Workers, jobs: Jobs) -> None:
    """CASES 88."""
    found: list[tuple[list[str], list[dict[str, float]]]] = []
    for every in (0, 2):
        evaluation = {"prompts": 4, "samples": 2, "every": every}
        job = await cluster.client.submit({**jobs.spec(0), "evaluation": evaluation})
        await finished(job)
        rows = [row async for row in job.metric_rows()]
        evaluated = [row.version for row in rows if row.kind == "evaluation"]
        assert evaluated == ([0, 2, 4, 6, 8] if every else [0, 8])
        figures = [
            {name: figure for name, figure in row.figures.items() if name.split("/")[0] not in TIMED}
            for row in rows
            if row.kind == "step"
        ]
        found.append((await cluster.digests(job.key), figures))
    assert found[0] == found[1]

"""One stack of servers and one set of undisturbed runs for all tests that kill something."""

import json
import uuid
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from marlaas.client import connect
from marlaas.job import Job
from marlaas.tests.tiny_model import write_tiny_model
from marlaas.workers.settings import Settings
from marlaas.workers.supervisor import Supervisor

from .cluster import Cluster, Workers, finished

STEPS = 8


class Jobs:
    """Submits jobs that differ in their names alone, and knows what each must produce."""

    def __init__(self, cluster: Cluster, model: Path, rows: Path) -> None:
        self._cluster, self._model, self._rows = cluster, model, rows
        self._calm: dict[int, list[str]] = {}

    def spec(self, staleness: int, heartbeat_seconds: float = 2.0) -> dict[str, Any]:
        return {
            "tenant": "faults",
            "job": f"k{staleness}-{uuid.uuid4().hex[:8]}",
            "model": str(self._model),
            "steps": STEPS,
            "max_staleness": staleness,
            "seed": 7,
            "lora": {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "v_proj"]},
            "environment": {"kind": "jsonl", "path": str(self._rows), "reward": "rewards:lower_case"},
            "sampling": {
                "groups_per_step": 4,
                "samples_per_group": 4,
                "max_prompt_tokens": 64,
                "max_tokens": 16,
                "slots": 16,
            },
            "optimizer": {"learning_rate": 0.05},
            "durability": {"heartbeat_seconds": heartbeat_seconds},
        }

    async def submit(self, staleness: int, heartbeat_seconds: float = 2.0) -> Job:
        return await self._cluster.client.submit(self.spec(staleness, heartbeat_seconds))

    async def calm_digests(self, staleness: int) -> list[str]:
        """The digests of the undisturbed run, which is made once."""
        if staleness not in self._calm:
            job = await self.submit(staleness)
            await finished(job)
            self._calm[staleness] = await self._cluster.digests(job.key)
        return self._calm[staleness]

    async def assert_undisturbed(self, job: Job, staleness: int) -> None:
        """The job ends, and every adapter revision has the bytes of the undisturbed run."""
        await finished(job)
        digests = await self._cluster.digests(job.key)
        assert digests == await self.calm_digests(staleness)
        assert len(set(digests)) == STEPS + 1


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = [{"messages": [{"role": "user", "content": f"Say {n}."}]} for n in range(20)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture(scope="session")
async def supervisor(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Supervisor]:
    supervisor = Supervisor(Settings(data=tmp_path_factory.mktemp("stack")))
    async with supervisor.running():
        yield supervisor


@pytest.fixture(scope="session")
async def cluster(supervisor: Supervisor) -> AsyncGenerator[Cluster]:
    async with await connect(supervisor.settings.addresses()) as client:
        yield Cluster(client)


@pytest.fixture(scope="session")
def all_workers(supervisor: Supervisor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    workers = Workers(supervisor.settings.addresses(), tmp_path_factory.mktemp("workers"))
    yield workers
    workers.close()


@pytest.fixture
def workers(all_workers: Workers) -> Workers:
    """One running worker of each role, whatever the test before has killed."""
    all_workers.ensure_all()
    return all_workers


@pytest.fixture(scope="session")
async def jobs(cluster: Cluster, all_workers: Workers, model: Path, rows: Path) -> Jobs:
    all_workers.ensure_all()
    jobs = Jobs(cluster, model, rows)
    assert await jobs.calm_digests(0) != await jobs.calm_digests(2)
    return jobs

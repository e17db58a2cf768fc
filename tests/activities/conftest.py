"""Real servers and everything that activities are given, with engines and rewards of the tests' own."""

import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
from marlaas.schemas.dataset import Dataset, DatasetRef, Message, Row
from marlaas.schemas.job_spec import JobSpec, parse_job_spec
from marlaas.storage.blob_cache import BlobCache
from marlaas.storage.object_store import ObjectStore
from marlaas.storage.revisions import Revisions
from marlaas.storage.trajectory_log import TrajectoryLog
from marlaas.tests.servers import NatsServer, S3Server


@dataclass
class Storage:
    """Clients of the shared servers."""

    store: ObjectStore
    revisions: Revisions
    log: TrajectoryLog
    cache: BlobCache


@dataclass
class Job:
    """A claimed job with a stored dataset of four prompts."""

    spec: JobSpec
    dataset: DatasetRef


@pytest.fixture
async def storage(nats_server: NatsServer, s3_server: S3Server, tmp_path: Path) -> AsyncGenerator[Storage]:
    store = ObjectStore(s3_server.endpoint, s3_server.access_key, s3_server.secret_key, secure=False)
    log = await TrajectoryLog.connect(nats_server.url, store, max_stream_bytes=16 << 20)
    yield Storage(store, Revisions(store), log, BlobCache(store, tmp_path / "cache", 1 << 30))
    await log.close()
    store.close()


@pytest.fixture
async def job(storage: Storage) -> Job:
    spec = parse_job_spec(
        {
            "tenant": f"t{uuid.uuid4().hex[:8]}",
            "job": "sums",
            "model": "none",
            "steps": 4,
            "environment": {"kind": "jsonl", "path": "rows.jsonl", "reward": "rewards:exact"},
            "sampling": {"groups_per_step": 2, "samples_per_group": 3, "slots": 16},
            "evaluation": {"prompts": 2, "samples": 2},
        }
    )
    rows = tuple(
        Row(source=f"row {n}", messages=(Message(role="user", content=f"say {n}"),), fields={"n": n})
        for n in range(4)
    )
    await storage.store.ensure_bucket(spec.key.bucket)
    await storage.log.ensure_stream(spec.key)
    blob = await storage.store.put_blob(
        spec.key.bucket, Dataset(train=rows[:2], held_out=rows[2:]).model_dump_json().encode()
    )
    return Job(spec, DatasetRef(blob=blob, train=2, held_out=2))

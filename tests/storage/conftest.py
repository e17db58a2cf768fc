"""A store and a log on the shared servers, and a job of its own for every test."""

import uuid
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from marlaas.schemas.names import JobKey
from marlaas.storage.object_store import ObjectStore
from marlaas.storage.trajectory_log import TrajectoryLog
from marlaas.tests.servers import NatsServer, S3Server

TENANT = "storage"


@pytest_asyncio.fixture(scope="session")
async def store(s3_server: S3Server) -> AsyncGenerator[ObjectStore]:
    store = ObjectStore(s3_server.endpoint, s3_server.access_key, s3_server.secret_key, secure=False)
    await store.ensure_bucket(f"marlaas-{TENANT}")
    yield store
    store.close()


@pytest_asyncio.fixture(scope="session")
async def log(nats_server: NatsServer, store: ObjectStore) -> AsyncGenerator[TrajectoryLog]:
    log = await TrajectoryLog.connect(nats_server.url, store)
    yield log
    await log.close()


@pytest.fixture
def key() -> JobKey:
    return JobKey(tenant=TENANT, job=uuid.uuid4().hex)

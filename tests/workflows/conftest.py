"""A private Temporal server."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from marlaas.workers.search_attributes import ensure_search_attributes
from marlaas.workflows.plugin import temporal_plugin
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

FLAGS = {
    "history.transferProcessorMaxPollRPS": "5000",
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}


@asynccontextmanager
async def temporal_server() -> AsyncGenerator[Client]:
    """A client of a Temporal dev server that lives as long as the context."""
    environment = await WorkflowEnvironment.start_local(  # pyright: ignore[reportUnknownMemberType]
        dev_server_existing_path=str(Path(sys.executable).with_name("temporal")),
        dev_server_extra_args=[
            part for name, value in FLAGS.items() for part in ("--dynamic-config-value", f"{name}={value}")
        ],
        dev_server_log_level="error",
    )
    address = environment.client.service_client.config.target_host
    client = await Client.connect(address, plugins=[temporal_plugin()])
    await ensure_search_attributes(client)
    yield client
    await environment.shutdown()


@pytest.fixture(scope="session")
async def temporal() -> AsyncGenerator[Client]:
    async with temporal_server() as client:
        yield client

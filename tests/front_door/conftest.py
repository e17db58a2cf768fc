"""A real stack for all tests here; every test has a Temporal namespace and a tenant of its own."""

import dataclasses
import itertools
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from marlaas.client import Client, connect
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.workers.settings import Addresses, Settings
from marlaas.workers.supervisor import Supervisor
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

_NUMBERS = itertools.count(1)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Addresses]:
    data = tmp_path_factory.mktemp("front-door") / "stack"
    async with Supervisor(Settings(data=data)).running() as addresses:
        yield addresses


@pytest.fixture
def tenant() -> str:
    """A name that no other test has."""
    return f"t{next(_NUMBERS)}"


@pytest_asyncio.fixture(loop_scope="session")
async def addresses(stack: Addresses, tenant: str) -> Addresses:
    """The stack, with a namespace that no worker has ever polled."""
    async with await connect(stack) as client:
        await client.connection.temporal.workflow_service.register_namespace(
            RegisterNamespaceRequest(
                namespace=tenant, workflow_execution_retention_period=Duration(seconds=24 * 3600)
            )
        )
    return dataclasses.replace(stack, temporal_namespace=tenant)


@pytest_asyncio.fixture(loop_scope="session")
async def client(addresses: Addresses) -> AsyncGenerator[Client]:
    async with await connect(addresses) as connected:
        yield connected


@pytest.fixture
def marlaas(addresses: Addresses, tmp_path: Path) -> CommandLine:
    """The command line as a person uses it, in an empty folder."""
    return CommandLine(tmp_path, addresses.environment())


@pytest.fixture
def spec(tenant: str) -> Callable[..., dict[str, Any]]:
    """A small valid spec of the test's tenant, as JSON."""

    def make(**changes: Any) -> dict[str, Any]:
        return {
            "tenant": tenant,
            "job": "sums",
            "model": "none",
            "steps": 3,
            "environment": {"kind": "reasoning-gym", "task": "chain_sum"},
            "sampling": {"groups_per_step": 4, "samples_per_group": 4, "slots": 16},
            **changes,
        }

    return make

import os
import signal
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio
from marlaas.tests.embedded.harness import UpProcess, processes_of
from marlaas.workers.settings import Addresses, Settings
from marlaas.workers.supervisor import Supervisor
from marlaas.workers.up import UpPlan


@pytest.fixture
def data(tmp_path: Path) -> Generator[Path]:
    """A data folder; at the end of the test no process of it may be left."""
    folder = tmp_path / "stack"
    yield folder
    left = processes_of(folder)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, "the test left processes behind"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[tuple[Supervisor, Addresses]]:
    """A stack for all tests of a file, in this process."""
    supervisor = Supervisor(Settings(data=tmp_path_factory.mktemp("shared") / "stack"))
    async with supervisor.running() as addresses:
        yield supervisor, addresses


@pytest.fixture
def run_up(data: Path) -> Generator[Callable[..., UpProcess]]:
    """Starts a supervisor of `data` in a process of its own, given parts of an `UpPlan`."""
    started: list[UpProcess] = []

    def run(**plan: object) -> UpProcess:
        started.append(UpProcess(UpPlan.model_validate({"settings": Settings(data=data), **plan})))
        return started[-1]

    yield run
    for each in started:
        each.close()

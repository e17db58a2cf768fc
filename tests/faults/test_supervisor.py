"""`kill -9` of the supervisor: nothing is left running, and the next `up` goes on with the job."""

import signal
from pathlib import Path

import psutil
import pytest
from marlaas.client import connect
from marlaas.terminal.stack import worker_commands
from marlaas.tests.embedded.harness import processes_of
from marlaas.workers.settings import Settings
from marlaas.workers.stack_file import read_stack
from marlaas.workers.up import UpPlan, down, up_in_background

from .cluster import Cluster, finished, until
from .conftest import Jobs


def plan(data: Path) -> UpPlan:
    return UpPlan(settings=Settings(data=data), workers=worker_commands())


@pytest.mark.parametrize("staleness", [0, 2])
async def test_supervisor_killed(
    jobs: Jobs, staleness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)  # where the workers find the reward
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec = jobs.spec(staleness)
    expected = await jobs.calm_digests(staleness)
    async with await connect(up_in_background(plan(tmp_path))) as client:
        job = await client.submit(spec)
        await Cluster(client).committed(job.key, 1)
    stack = read_stack(tmp_path)
    assert stack is not None
    psutil.Process(stack.supervisor.pid).send_signal(signal.SIGKILL)

    async def nothing_is_left() -> bool:
        return not processes_of(tmp_path)

    await until(nothing_is_left)
    try:
        async with await connect(up_in_background(plan(tmp_path))) as client:
            job = client.job(job.key)
            await finished(job)
            assert await Cluster(client).digests(job.key) == expected
    finally:
        down(tmp_path)

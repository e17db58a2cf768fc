import os
import signal
from collections.abc import Callable
from pathlib import Path

from marlaas.tests.embedded.harness import UpProcess, pids, processes_of, wait_until
from marlaas.workers.settings import Addresses, NatsSettings, S3Settings, Settings, TemporalSettings
from marlaas.workers.stack_status import ProcessStatus, StackStatus, stack_status
from marlaas.workers.supervisor import Supervisor


async def test_of_a_running_stack(stack: tuple[Supervisor, Addresses]) -> None:
    supervisor, addresses = stack
    supervisor.kill("nats")
    await supervisor.ready("nats")
    status = await stack_status(supervisor.settings)
    roles = {each.role: each for each in status.processes}
    assert set(roles) == {"supervisor", "temporal", "nats", "s3"}
    assert roles["supervisor"].pid == os.getpid()
    assert {each.state for each in status.processes} == {"running"}
    assert roles["nats"].pid == pids(supervisor.settings.data)["nats"]
    assert roles["nats"].restarts == 1
    assert roles["temporal"].restarts == 0
    assert (roles["nats"].uptime or 0) < (roles["temporal"].uptime or 0)
    assert roles["s3"].address == addresses.s3_endpoint
    assert [each.server for each in status.servers] == ["temporal", "nats", "s3"]
    assert all(each.embedded and each.is_reachable for each in status.servers)


async def test_of_servers_elsewhere(stack: tuple[Supervisor, Addresses], data: Path) -> None:
    _, other = stack
    settings = Settings(
        data=data,
        temporal=TemporalSettings(address=other.temporal_address, namespace="missing"),
        nats=NatsSettings(url="nats://127.0.0.1:1"),
        s3=S3Settings(endpoint=other.s3_endpoint, access_key=other.s3_access_key, secret_key="wrong"),
    )
    status = await stack_status(settings)
    assert status.processes == ()
    temporal, nats, s3 = status.servers
    assert not any(each.embedded or each.is_reachable for each in status.servers)
    assert "missing" in (temporal.problem or "")
    assert nats.problem
    assert "SignatureDoesNotMatch" in (s3.problem or "")


async def test_of_no_stack(data: Path) -> None:
    status = await stack_status(Settings(data=data))
    assert status.processes == ()
    assert all("marlaas up" in (each.problem or "") for each in status.servers)


async def test_of_a_stack_whose_supervisor_was_killed(run_up: Callable[..., UpProcess], data: Path) -> None:
    up = run_up()
    up.answer()
    up.process.send_signal(signal.SIGKILL)
    up.process.wait()
    wait_until(lambda: not processes_of(data))
    status = await stack_status(Settings(data=data))
    assert {each.state for each in status.processes} == {"dead"}
    assert {each.pid for each in status.processes} == {None}
    assert not any(each.is_reachable for each in status.servers)


def test_a_disk_that_is_nearly_full_is_a_problem_of_a_running_stack() -> None:
    process = ProcessStatus(role="s3", pid=1, state="running", uptime=1.0, restarts=0, address=None)

    def problem(free: int | None, *processes: ProcessStatus) -> str | None:
        return StackStatus(
            data="/data", processes=processes, servers=(), free_disk=free, needed_disk=2**31
        ).disk_problem

    assert problem(2**20, process) == (
        "the disk of /data has 1 MiB left: free some, and jobs go on by themselves"
    )
    assert problem(2**31, process) is None
    assert problem(None, process) is None
    assert problem(2**20) is None

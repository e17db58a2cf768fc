import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from marlaas.tests.embedded.harness import Marks, pids, processes_of, stack_file, until
from marlaas.workers.log_files import tail
from marlaas.workers.ports import GRPC_OFFSET
from marlaas.workers.processes import ProcessIdentity
from marlaas.workers.settings import Addresses, NatsSettings, S3Settings, Settings, TemporalSettings
from marlaas.workers.stack_file import ProcessRecord, StackError, write_stack
from marlaas.workers.supervisor import Supervisor, WorkerCommand

Stack = tuple[Supervisor, Addresses]

TEMPORAL_ELSEWHERE = TemporalSettings(address="127.0.0.1:1")
NATS_ELSEWHERE = NatsSettings(url="nats://127.0.0.1:1")
S3_ELSEWHERE = S3Settings(endpoint="127.0.0.1:1", access_key="a", secret_key="s")


def worker(name: str, code: str, *arguments: str) -> WorkerCommand:
    return WorkerCommand(name=name, argv=(sys.executable, "-c", code, *arguments))


def only_workers(
    data: Path, *workers: WorkerCommand, report: Callable[[str], None] = lambda _: None
) -> Supervisor:
    settings = Settings(data=data, temporal=TEMPORAL_ELSEWHERE, nats=NATS_ELSEWHERE, s3=S3_ELSEWHERE)
    return Supervisor(settings, workers, report=report)


@pytest.mark.parametrize("server", ["temporal", "nats", "s3"])
async def test_a_killed_server_is_back_with_its_data(stack: Stack, server: str) -> None:
    supervisor, addresses = stack
    marks = Marks(addresses)
    await marks.leave(f"before-{server}")
    for _ in range(3):
        supervisor.kill(server)
        await supervisor.ready(server)
        await marks.are_in(server, f"before-{server}")
    await marks.leave(f"after-{server}")
    await marks.are_there(f"after-{server}")


async def test_the_next_stack_has_the_same_addresses_and_data(data: Path) -> None:
    supervisor = Supervisor(Settings(data=data))
    async with supervisor.running() as first:
        await Marks(first).leave("mark")
        assert Settings(data=data).addresses() == first
    assert not processes_of(data)
    async with Supervisor(Settings(data=data)).running() as second:
        await Marks(second).are_there("mark")
    assert second == first


async def test_two_stacks_side_by_side(stack: Stack, data: Path) -> None:
    _, first = stack
    async with Supervisor(Settings(data=data)).running() as second:
        await Marks(second).leave("mine")
        await Marks(first).leave("mine")


async def test_every_port_is_local_and_below_the_ephemeral_ones(data: Path) -> None:
    async with Supervisor(Settings(data=data)).running():
        ports, running = stack_file(data).ports, set(pids(data).values())
        chosen = set(ports.model_dump().values())
        # SeaweedFS opens this one last, after it works.
        await until(lambda: ("127.0.0.1", ports.s3_admin) in _listening(running))
        listening = _listening(running)
    # The dev server of Temporal has three ports for itself, new ones at every start.
    kept = {port for _, port in listening if port < 32768}
    assert {address for address, _ in listening} == {"127.0.0.1"}
    assert chosen <= kept <= chosen | {port + GRPC_OFFSET for port in chosen}
    assert len(listening) - len(kept) == 3


async def test_what_holds_secrets_is_for_the_owner_only(stack: Stack) -> None:
    supervisor, _ = stack
    folder = supervisor.settings.data
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "s3-credentials.json").stat().st_mode & 0o077 == 0


async def test_a_server_with_an_address_is_not_started(stack: Stack, data: Path) -> None:
    _, other = stack
    settings = Settings(data=data, nats=NatsSettings(url=other.nats_url))
    async with Supervisor(settings).running() as addresses:
        assert set(pids(data)) == {"temporal", "s3"}
        assert addresses.nats_url == other.nats_url
        await Marks(addresses).leave("mixed")


async def test_any_path_works_or_is_refused(tmp_path: Path) -> None:
    async with Supervisor(Settings(data=tmp_path / "größer 'als\" $HOME [1]")).running() as addresses:
        await Marks(addresses).leave("mark")
    assert not processes_of(tmp_path)
    with pytest.raises(StackError, match="its path has %"):
        async with Supervisor(Settings(data=tmp_path / "a%20b")).running():
            pass


async def test_nothing_to_start_is_an_error(data: Path) -> None:
    with pytest.raises(StackError, match="nothing to start"):
        async with only_workers(data).running():
            pass


async def test_a_full_disk_is_refused_with_both_numbers(data: Path) -> None:
    with pytest.raises(StackError, match=r"Only [\d.]+ GiB are free .* needs [\d.]+ GiB"):
        async with Supervisor(Settings(data=data), free_disk_limit=2**60).running():
            pass
    assert not processes_of(data)


async def test_a_server_that_cannot_start_fails_the_stack_with_its_log(data: Path) -> None:
    (data / "temporal").mkdir(parents=True)
    (data / "temporal" / "temporal.db").write_text("no database " * 1000)
    with pytest.raises(
        StackError, match=r"(?s)temporal cannot be started: it ended with status .*not a database"
    ):
        async with Supervisor(Settings(data=data)).running():
            pass
    assert not processes_of(data)
    assert stack_file(data).state == "stopped"


async def test_a_server_that_cannot_be_started_again_fails_the_stack(data: Path) -> None:
    supervisor = Supervisor(Settings(data=data))
    async with supervisor.running():
        (data / "nats" / "server.conf").write_text("{ jetstream: ")
        supervisor.kill("nats")
        with pytest.raises(StackError, match="nats cannot be started"):
            await supervisor.failure()
        with pytest.raises(StackError, match="nats cannot be started"):
            await supervisor.ready("nats")
    assert not processes_of(data)


async def test_a_taken_port_is_named_with_the_process_that_has_it(data: Path) -> None:
    async with Supervisor(Settings(data=data)).running():
        port = stack_file(data).ports.nats
    taken = rf"nats cannot be started: port {port} is taken by pid {os.getpid()}"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(StackError, match=taken):
        async with Supervisor(Settings(data=data)).running():
            pass


async def test_an_unknown_stack_file_is_refused_by_name(data: Path) -> None:
    data.mkdir()
    (data / "stack.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(StackError, match=r"stack.json cannot be read"):
        async with Supervisor(Settings(data=data)).running():
            pass


async def test_survivors_of_an_earlier_supervisor_are_ended_and_strangers_are_not(data: Path) -> None:
    async with Supervisor(Settings(data=data)).running():
        pass
    survivor = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    stranger = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    there, reused = ProcessIdentity.of(survivor.pid), ProcessIdentity.of(stranger.pid)
    assert there is not None
    assert reused is not None
    reused = reused.model_copy(update={"ticks": reused.ticks - 1})
    records = tuple(
        ProcessRecord(name=name, identity=identity, state="running", restarts=0, address=None)
        for name, identity in (("nats", there), ("s3", reused))
    )
    write_stack(data, stack_file(data).model_copy(update={"state": "running", "processes": records}))
    async with Supervisor(Settings(data=data)).running():
        assert await survivor.wait() == -signal.SIGKILL
        assert reused.model_copy(update={"ticks": reused.ticks + 1}).is_alive()
    stranger.kill()
    await stranger.wait()


async def test_a_worker_gets_the_addresses_and_comes_back(data: Path) -> None:
    code = "import os, time; from marlaas.workers.settings import load_settings\n"
    code += "print(load_settings().addresses(), flush=True); time.sleep(1000)"
    async with only_workers(data, worker("gpu", code)).running() as addresses:
        log = data / "logs" / "gpu.log"
        await until(lambda: str(addresses) in tail(log))
        first = pids(data)["gpu"]
        os.kill(first, signal.SIGKILL)
        await until(lambda: pids(data).get("gpu", first) != first)
        await until(lambda: log.read_text().count(str(addresses)) == 2)
        assert stack_file(data).processes[0].restarts == 1


async def test_a_worker_that_dies_at_once_is_tried_again_and_reported(data: Path) -> None:
    lines: list[str] = []
    bad = worker("bad", "print('cannot go on'); raise SystemExit(3)")
    good = worker("good", "import time; time.sleep(1000)")
    async with only_workers(data, bad, good, report=lines.append).running():
        await until(lambda: stack_file(data).processes[0].restarts >= 3)
        assert "good" in pids(data)
    assert any("bad: it ended with status 3" in line and "cannot go on" in line for line in lines)


async def test_what_a_dead_worker_leaves_is_ended(data: Path) -> None:
    code = "import subprocess, time; subprocess.Popen(['sleep', '1000']); time.sleep(1000)"
    async with only_workers(data, worker("gpu", code)).running():
        await until(lambda: len(processes_of(data)) == 2)
        left = set(processes_of(data))
        os.kill(pids(data)["gpu"], signal.SIGKILL)
        await until(lambda: not left & set(processes_of(data)))


async def test_workers_end_before_servers(data: Path) -> None:
    code = """
import signal, socket, sys, time
host, port = sys.argv[1].removeprefix("nats://").split(":")
def end(*_):
    socket.create_connection((host, int(port)))
    print("the server is there", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(1000)
"""
    settings = Settings(data=data, temporal=TEMPORAL_ELSEWHERE, s3=S3_ELSEWHERE)
    async with Supervisor(settings).running() as addresses:
        pass
    async with Supervisor(settings, [worker("cpu", code, addresses.nats_url)]).running():
        await until(lambda: "up" in tail(data / "logs" / "cpu.log"))
    assert "the server is there" in tail(data / "logs" / "cpu.log")


async def test_a_worker_that_does_not_end_is_killed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.workers.supervisor._WORKER_STOP_SECONDS", 0.2)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "print('up', flush=True); time.sleep(1000)"
    async with only_workers(data, worker("stubborn", code)).running():
        await until(lambda: "up" in tail(data / "logs" / "stubborn.log"))
    assert not processes_of(data)


async def test_a_cancelled_stack_stops_whole(data: Path) -> None:
    async def serve() -> None:
        async with Supervisor(Settings(data=data)).running():
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await until(lambda: (data / "stack.json").exists() and stack_file(data).state == "running")
    task.cancel()
    # Once more, while it stops.
    await until(lambda: stack_file(data).state == "stopping")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not processes_of(data)
    assert stack_file(data).state == "stopped"


async def test_another_thread_than_the_main_one_is_refused(data: Path) -> None:
    async def start() -> None:
        async with Supervisor(Settings(data=data)).running():
            pass

    problems: list[str] = []

    def run() -> None:
        try:
            asyncio.run(start())
        except StackError as error:
            problems.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in problems[0]


def test_two_workers_of_one_name_are_refused(data: Path) -> None:
    with pytest.raises(StackError, match="one name"):
        Supervisor(Settings(data=data), [worker("gpu", ""), worker("gpu", "")])


def _listening(of: set[int]) -> set[tuple[str, int]]:
    """Addresses and ports that processes listen on."""
    inodes = {
        os.readlink(handle)
        for pid in of
        for handle in Path(f"/proc/{pid}/fd").iterdir()
        if os.readlink(handle).startswith("socket:")
    }
    found: set[tuple[str, int]] = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                number, port = fields[1].split(":")
                words = [bytes.fromhex(number[at : at + 8])[::-1] for at in range(0, len(number), 8)]
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found

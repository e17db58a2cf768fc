import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from marlaas.tests.embedded.harness import Marks, UpProcess, pids, processes_of, stack_file, wait_until
from marlaas.workers.settings import AddressUnknown, Settings
from marlaas.workers.stack_file import StackError
from marlaas.workers.supervisor import WorkerCommand
from marlaas.workers.up import UpPlan, down, up_in_background

Run = Callable[..., UpProcess]

IDLE = WorkerCommand(name="idle", argv=(sys.executable, "-c", "import time; time.sleep(1000)"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(run_up: Run, data: Path, number: signal.Signals) -> None:
    up = run_up(workers=[IDLE])
    assert b"addresses" in up.answer()
    wait_until(lambda: set(pids(data)) == {"temporal", "nats", "s3", "idle"})
    up.process.send_signal(number)
    assert up.process.wait() == 0
    assert not processes_of(data)
    assert stack_file(data).state == "stopped"


def test_up_under_nohup_goes_on_after_a_hang_up(data: Path) -> None:
    up = UpProcess(UpPlan(settings=Settings(data=data)), around=("nohup",))
    assert b"addresses" in up.answer()
    ignored = next(
        line
        for line in Path(f"/proc/{up.process.pid}/status").read_text().splitlines()
        if line.startswith("SigIgn:")
    )
    assert int(ignored.split()[1], 16) >> (signal.SIGHUP - 1) & 1
    up.close()
    assert up.process.returncode == 0


@pytest.mark.parametrize("delay", [0.05, 0.3, 0.5, 0.7, 1.0, 1.4])
def test_ctrl_c_while_it_starts_leaves_nothing(run_up: Run, data: Path, delay: float) -> None:
    up = run_up(workers=[IDLE])
    time.sleep(delay)
    up.process.send_signal(signal.SIGINT)
    time.sleep(delay / 2)
    up.process.send_signal(signal.SIGINT)
    up.process.wait()
    assert not processes_of(data)


async def test_kill_9_of_the_supervisor_leaves_no_orphan_and_no_loss(run_up: Run, data: Path) -> None:
    first = run_up(workers=[IDLE])
    first.answer()
    addresses = Settings(data=data).addresses()
    await Marks(addresses).leave("mark")
    first.process.kill()
    wait_until(lambda: not processes_of(data))
    with pytest.raises(AddressUnknown, match="marlaas up"):
        Settings(data=data).addresses()
    run_up().answer()
    assert Settings(data=data).addresses() == addresses
    await Marks(addresses).are_there("mark")


@pytest.mark.parametrize("delay", [0.3, 0.5, 0.7])
def test_kill_9_of_the_supervisor_while_it_starts(run_up: Run, data: Path, delay: float) -> None:
    first = run_up()
    time.sleep(delay)
    first.process.kill()
    wait_until(lambda: not processes_of(data))
    assert b"addresses" in run_up().answer()


def test_a_second_up_names_the_first(run_up: Run, data: Path) -> None:
    first = run_up()
    first.answer()
    with pytest.raises(StackError, match=rf"pid {first.process.pid}\b"):
        up_in_background(UpPlan(settings=Settings(data=data)))
    assert stack_file(data).is_supervised
    assert len(processes_of(data)) == 3


def test_background_and_down(data: Path) -> None:
    addresses = up_in_background(UpPlan(settings=Settings(data=data), workers=(IDLE,)))
    assert addresses == Settings(data=data).addresses()
    supervisor = stack_file(data).supervisor
    assert os.getsid(supervisor.pid) == supervisor.pid
    assert down(data)
    assert not supervisor.is_alive()
    assert not processes_of(data)
    assert not down(data)


def test_down_where_nothing_ever_ran(data: Path) -> None:
    assert not down(data)
    assert not data.exists()


def test_down_while_it_starts(run_up: Run, data: Path) -> None:
    up = run_up()
    wait_until(lambda: (data / "stack.json").exists())
    assert down(data)
    assert up.process.wait() == 0
    assert not processes_of(data)


def test_down_ends_what_a_killed_supervisor_left(run_up: Run, data: Path) -> None:
    up = run_up()
    up.answer()
    survivor = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    up.process.kill()
    up.process.wait()
    wait_until(lambda: not processes_of(data))
    text = (data / "stack.json").read_text()
    nats = stack_file(data).processes[1].identity
    assert nats is not None
    ticks = Path(f"/proc/{survivor.pid}/stat").read_text().split()[21]
    text = text.replace(f'"pid": {nats.pid}', f'"pid": {survivor.pid}').replace(str(nats.ticks), ticks)
    (data / "stack.json").write_text(text)
    assert not down(data)
    assert survivor.wait() == -signal.SIGKILL
    assert stack_file(data).state == "stopped"


def test_a_failed_background_start_says_why(data: Path) -> None:
    (data / "temporal").mkdir(parents=True)
    (data / "temporal" / "temporal.db").write_text("no database " * 1000)
    with pytest.raises(StackError, match=r"(?s)temporal cannot be started.*not a database"):
        up_in_background(UpPlan(settings=Settings(data=data)))


def test_a_supervisor_whose_caller_is_gone_stops(run_up: Run, data: Path) -> None:
    up = run_up()
    assert up.process.stdout is not None
    up.process.stdout.close()
    assert up.process.wait() == 1
    assert stack_file(data).state == "stopped"
    assert not processes_of(data)


def test_too_full_a_disk(run_up: Run) -> None:
    up = run_up(free_disk_limit=2**60)
    assert b"are free" in up.answer()
    assert up.process.wait() == 1

"""`up`, `status`, `down` and `worker` as a person runs them."""

import json
import signal
import sys
from pathlib import Path

import pytest
from marlaas.client import connect
from marlaas.jobs.workflow_state import is_polled
from marlaas.schemas.names import CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TRAIN_QUEUE
from marlaas.terminal.stack import workers_ready
from marlaas.tests.embedded.harness import processes_of
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.workers.settings import Settings
from marlaas.workers.stack_file import StackError
from marlaas.workers.supervisor import WorkerCommand
from marlaas.workers.up import UpPlan, down, up_in_background
from temporalio.api.enums.v1 import TaskQueueType

JOB = {
    "tenant": "acme",
    "job": "one",
    "model": "none",
    "steps": 1,
    "environment": {"kind": "reasoning-gym", "task": "chain_sum"},
    "sampling": {"groups_per_step": 2, "samples_per_group": 2},
}


async def test_a_stack_in_the_background(tmp_path: Path) -> None:
    marlaas = CommandLine(tmp_path, {})
    up = await marlaas("up", "--detach")
    assert (up.code, up.err) == (0, "")
    assert f"its data is in {tmp_path / '.marlaas'}" in up.out
    again = await marlaas("up", "--detach")
    assert again.code == 1
    assert "marlaas down" in again.err
    status = await marlaas("status", "--json")
    assert (status.code, status.err) == (0, "")
    document = json.loads(status.out)
    assert [one["role"] for one in document["processes"]] == ["supervisor", "temporal", "nats", "s3"]
    assert [one["problem"] for one in document["servers"]] == [None] * 3
    assert document["jobs"] == []
    assert (await marlaas("down")).code == 0
    assert not processes_of(tmp_path)
    assert (await marlaas("status")).code == 1


async def test_up_says_which_jobs_go_on_and_returns_when_its_workers_ask_for_work(tmp_path: Path) -> None:
    marlaas = CommandLine(tmp_path, {})
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    assert (await marlaas("up", "--detach")).code == 0
    assert (await marlaas("submit", "job.json")).code == 0
    assert (await marlaas("down")).code == 0
    up = await marlaas("up", "--workers", "--detach")
    assert (up.code, up.err) == (0, "")
    assert "job acme/one is open and goes on; `marlaas cancel acme/one` ends it" in up.out.splitlines()
    async with await connect(Settings(data=tmp_path / ".marlaas")) as client:
        kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
        for queue in (CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TRAIN_QUEUE):
            assert await is_polled(client.connection.temporal, queue, kind)
    assert (await marlaas("down")).code == 0
    assert not processes_of(tmp_path)


async def test_a_worker_that_does_not_stay_up_is_no_reason_to_wait_for_ever(tmp_path: Path) -> None:
    data = tmp_path / "stack"
    broken = WorkerCommand(name="gpu", argv=(sys.executable, "-c", "print('no torch'); exit(3)"))
    addresses = up_in_background(UpPlan(settings=Settings(data=data), workers=(broken,)))
    try:
        async with await connect(addresses) as client:
            with pytest.raises(StackError, match=r"(?s)worker gpu does not stay up.*no torch"):
                await workers_ready(client, data)
    finally:
        down(data)


async def test_ctrl_c_stops_the_stack_and_its_workers(tmp_path: Path) -> None:
    marlaas = CommandLine(tmp_path, {})
    process = await marlaas.start("up", "--workers")
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if "ctrl-C stops it" in line:
            break
    names = {one["role"] for one in json.loads((await marlaas("status", "--json")).out)["processes"]}
    assert names == {"supervisor", "temporal", "nats", "s3", "control", "cpu", "gpu"}
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 0
    assert b"Traceback" not in err
    assert not processes_of(tmp_path)

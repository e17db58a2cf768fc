"""`up`, `status`, `down` and `worker` as a person runs them."""

import json
import signal
from pathlib import Path

from marlaas.tests.embedded.harness import processes_of
from marlaas.tests.front_door.command_line import CommandLine


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

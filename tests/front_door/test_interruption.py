"""Ctrl-C before a command does its work: it ends quietly."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from marlaas.tests.front_door.command_line import CommandLine

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("imported", ["typer", "pydantic", "temporalio.client"])
@pytest.mark.parametrize(
    "program", [("marlaas", "up"), ("marlaas", "watch", "a/b"), ("examples.demo",)], ids=lambda one: one[0]
)
def test_during_the_imports(program: tuple[str, ...], imported: str, tmp_path: Path) -> None:
    """`-X importtime` says on stderr what has been imported just now."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", *program],
        cwd=ROOT,
        env={**os.environ, "MARLAAS_DATA": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.split("|")[-1].strip() == imported:
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate()
    assert [line for line in err.splitlines() if not re.match("import time:", line)] == []
    assert out == ""
    assert process.returncode == -signal.SIGINT, "a shell calls that 130"


async def test_while_it_connects(tmp_path: Path) -> None:
    came = asyncio.Event()
    silent = await asyncio.start_server(lambda _reader, _writer: came.set(), "127.0.0.1", 0)
    address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    variables = {"MARLAAS_TEMPORAL_ADDRESS": address, "MARLAAS_NATS_URL": "nats://127.0.0.1:9"}
    variables |= {"MARLAAS_S3_ENDPOINT": "127.0.0.1:9", "MARLAAS_S3_ACCESS_KEY": "a"}
    marlaas = CommandLine(tmp_path, {**variables, "MARLAAS_S3_SECRET_KEY": "b"})
    process = await marlaas.start("watch", "a/b")
    await came.wait()
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")

    ended = await marlaas("list")
    assert (ended.code, ended.out) == (1, "")
    assert f"Temporal at {address} accepts connections but does not answer" in ended.err
    silent.close()

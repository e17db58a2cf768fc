"""Jobs started with the stock Temporal CLI, with whatever it can send."""

import asyncio
import base64
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from marlaas.client import Client
from marlaas.jobs.errors import JobFailed
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import GatedActivities, workers
from marlaas.workers.settings import Addresses

Spec = Callable[..., dict[str, Any]]

HUGE = "9" * 5000


async def start(addresses: Addresses, name: str, arguments: Sequence[str]) -> None:
    """`temporal workflow start`, as the README has it."""
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("temporal"),
        *("workflow", "start", "--type", "TrainJob", "--task-queue", "marlaas", "--workflow-id", name),
        *("--address", addresses.temporal_address, "--namespace", addresses.temporal_namespace),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()


def meta(encoding: str, *inputs: str) -> list[str]:
    return [part for one in inputs for part in ("--input", one, "--input-meta", f"encoding={encoding}")]


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ([], "started with one input, its spec as JSON, and not with 0"),
        (["--input", "null"], "a mapping of fields, not null"),
        (["--input", "[1, 2]"], r"a mapping of fields, not \[1, 2\]"),
        (["--input", "1e999"], "cannot be decoded|a mapping of fields, not"),
        (["--input", HUGE], "5000 bytes of encoding b'json/plain', cannot be decoded"),
        (["--input", f'{{"steps": {HUGE}}}'], r"begins with b'{\"steps\": 999"),
        (["--input", '"' + "x" * 100_000 + '"'], r'a mapping of fields, not "x{76}\.\.\.'),
        (["--input", "[" * 500 + "]" * 500], "cannot be decoded"),
        (["--input", "{}", "--input", "{}"], "one input, its spec as JSON, and not with 2"),
        (["--input", "{}", "--input", "{}", "--input", "3"], "and not with 3"),
        (meta("binary/plain", "not json"), "a mapping of fields, not \"b'not json'\""),
        (meta("binary/null", ""), "a mapping of fields, not null"),
        (meta("binary/null", "null"), "encoding b'binary/null', cannot be decoded"),
        (meta("binary/protobuf", "not json"), "encoding b'binary/protobuf', cannot be decoded"),
        (meta("json/protobuf", "{}"), "encoding b'json/protobuf', cannot be decoded"),
        (meta("yaml", "steps: 3"), "encoding b'yaml', cannot be decoded"),
        (
            [*meta("binary/gzip", base64.b64encode(b"\xff\xfe").decode()), "--input-base64"],
            r"encoding b'binary/gzip', cannot be decoded.*begins with b'\\xff\\xfe'",
        ),
        (["--input", json.dumps({f"f{n}": n for n in range(7_000)})], "and 6976 more"),
        (["--input", json.dumps({"x" * 100_000: 1})], r"xxx\.\.\."),
    ],
    ids=lambda one: one[:40] if isinstance(one, str) else None,
)
async def test_input_that_is_no_spec_fails_at_once_and_says_why(
    client: Client, addresses: Addresses, tenant: str, arguments: list[str], fragment: str
) -> None:
    await start(addresses, f"{tenant}/sums", arguments)
    async with workers(client.connection.temporal, GatedActivities()):
        with pytest.raises(JobFailed, match="(?s)InvalidJobSpec: .*" + fragment):
            await client.job(f"{tenant}/sums").result()


async def test_a_job_file_starts_a_job(
    client: Client, marlaas: CommandLine, addresses: Addresses, spec: Spec, tenant: str
) -> None:
    path = marlaas.folder / "job.json"
    path.write_text(json.dumps(spec()))
    await start(addresses, f"{tenant}/sums", ["--input-file", str(path)])
    async with workers(client.connection.temporal, GatedActivities()):
        assert (await client.job(f"{tenant}/sums").result()).outcome == "completed"

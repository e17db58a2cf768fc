"""The command line itself: help, usage, and errors that are no jobs'."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = [
    *("up", "status", "down", "worker"),
    *("submit", "list", "watch", "stop", "pause", "resume", "cancel", "export"),
]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "marlaas", *arguments], cwd=folder, capture_output=True, text=True
    )


def test_help_of_every_command_loads_nothing_slow(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from marlaas.cli import run\n"
        f"codes = [run([*command, '--help']) for command in [[], *([one] for one in {COMMANDS})]]\n"
        "slow = {'torch', 'transformers', 'temporalio', 'minio', 'nats'} & set(sys.modules)\n"
        "sys.exit(f'{codes} {slow}' if any(codes) or slow else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert f"Usage: marlaas {command}" in done.stdout
    for taught in (
        "marlaas up --workers",
        "--role gpu --device cuda",
        "temporal workflow start --type TrainJob",
    ):
        assert taught in done.stdout


@pytest.mark.parametrize(
    "arguments", [(), ("submit",), ("frobnicate",), ("worker", "--role", "tpu"), ("export", "a/b")]
)
def test_wrong_usage_has_exit_code_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert "Usage: marlaas" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list",), "Run `marlaas up`, or set MARLAAS_TEMPORAL_ADDRESS"),
        (("worker", "--role", "cpu"), "Run `marlaas up`, or set MARLAAS_TEMPORAL_ADDRESS"),
        (("list", "--nats-url", "here"), "error: The settings are wrong. nats.url"),
    ],
)
def test_settings_that_are_missing_or_wrong_are_named(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = run(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    flags = ["--temporal-address", "127.0.0.1:9", "--nats-url", "nats://127.0.0.1:9"]
    flags += ["--s3-endpoint", "127.0.0.1:9", "--s3-access-key", "a"]
    done = subprocess.run(
        [sys.executable, "-m", "marlaas", "list", *flags],
        env={**os.environ, "MARLAAS_S3_SECRET_KEY": "never-shown"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Temporal at 127.0.0.1:9, namespace default")
    assert "never-shown" not in done.stderr


def test_down_and_status_without_a_stack(tmp_path: Path) -> None:
    assert "was not running" in run("down", folder=tmp_path).stdout
    done = run("status", folder=tmp_path)
    assert done.returncode == 1
    assert "no stack runs in" in done.stdout
    assert done.stdout.count("marlaas up") == 3


def test_a_reader_that_goes_away_is_no_failure_with_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m marlaas --help | head -1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""

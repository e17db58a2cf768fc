"""`marlaas init`: what it writes, asks and refuses."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from marlaas.jobs.errors import InvalidJobFile
from marlaas.jobs.job_file import read_job_file
from marlaas.jobs.new_job_file import job_file_text, parse_environment, write_job_file
from marlaas.jobs.spec_schema import job_schema
from marlaas.schemas.job_spec import InvalidJobSpec, parse_job_spec
from marlaas.tests.front_door.command_line import CommandLine

VALUES: dict[str, Any] = {
    "tenant": "acme",
    "job": "sums",
    "model": "none",
    "steps": 7,
    "environment": {"kind": "reasoning-gym", "task": "chain_sum"},
    "sampling": {"groups_per_step": 4, "samples_per_group": 4},
}
FLAGS = ["--tenant", "acme", "--job", "sums", "--model", "none", "--steps", "7"]
COMMENTED = re.compile(r"^( *)#(?=\w+:)", re.MULTILINE)


def test_the_file_is_the_spec_of_what_was_chosen(tmp_path: Path) -> None:
    spec = write_job_file(tmp_path / "job.yaml", VALUES)
    assert parse_job_spec(read_job_file(tmp_path / "job.yaml")) == spec == parse_job_spec(VALUES)


@pytest.mark.parametrize(
    "environment",
    [VALUES["environment"], {"kind": "jsonl", "path": "/rows.jsonl", "reward": "rewards:true"}],
    ids=lambda environment: environment["kind"],
)
def test_the_comments_are_the_defaults(tmp_path: Path, environment: dict[str, Any]) -> None:
    values = {**VALUES, "environment": environment}
    text = job_file_text(values)
    path = tmp_path / "all.yaml"
    path.write_text(COMMENTED.sub(r"\1", text))
    content = read_job_file(path)
    assert parse_job_spec(content) == parse_job_spec(values)
    properties = job_schema()["properties"]
    assert set(content) == set(properties) - {"format"}
    assert set(content["optimizer"]) == set(job_schema()["$defs"]["OptimizerSpec"]["properties"])


@pytest.mark.parametrize("word", ["true", "No", "null", "1e3", "a: b", "x # y", "ü", "'", "~"])
def test_words_that_yaml_takes_for_something_else(tmp_path: Path, word: str) -> None:
    spec = write_job_file(tmp_path / "job.yaml", {**VALUES, "model": word})
    assert (spec.model, read_job_file(tmp_path / "job.yaml")["model"]) == (word, word)


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("mine")
    with pytest.raises(InvalidJobFile, match="exists and is left as it is"):
        write_job_file(path, VALUES)
    assert path.read_text() == "mine"


def test_what_is_no_spec_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobSpec, match="tenant is"):
        write_job_file(tmp_path / "job.yaml", {**VALUES, "tenant": "A B"})
    with pytest.raises(InvalidJobFile, match=r"\*\.yaml"):
        write_job_file(tmp_path / "job.json", VALUES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "reward", "said"),
    [
        ("chain_sum", None, "write reasoning-gym:TASK"),
        ("gym:chain_sum", None, "write reasoning-gym:TASK"),
        ("reasoning-gym:", None, "write reasoning-gym:TASK"),
        ("jsonl:a.jsonl", None, "needs a reward"),
        ("reasoning-gym:chain_sum", "a:b", "scorer of its own"),
    ],
)
def test_environments_that_are_refused(text: str, reward: str | None, said: str) -> None:
    with pytest.raises(InvalidJobFile, match=said):
        parse_environment(text, reward, Path("job.yaml"))


def init(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "marlaas", "init", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_flags_alone_write_a_file_and_say_what_is_next(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    environment = ["--environment", "jsonl:data/rows.jsonl", "--reward", "rewards:exact"]
    done = init(tmp_path, "jobs/sums.yaml", *FLAGS, *environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "marlaas submit jobs/sums.yaml" in done.stdout
    spec = parse_job_spec(read_job_file(tmp_path / "jobs" / "sums.yaml"))
    assert (str(spec.key), spec.steps) == ("acme/sums", 7)
    assert spec.environment.model_dump()["path"] == str(tmp_path / "data" / "rows.jsonl")
    again = init(tmp_path, "jobs/sums.yaml", *FLAGS, *environment)
    assert (again.returncode, again.stdout) == (2, "")
    assert "exists and is left as it is" in again.stderr


def test_without_a_terminal_a_missing_flag_is_named(tmp_path: Path) -> None:
    done = init(tmp_path, *FLAGS)
    assert done.returncode == 2
    assert "--environment" in done.stderr
    assert not list(tmp_path.iterdir())


async def test_on_a_terminal_it_asks_for_what_no_flag_says(tmp_path: Path) -> None:
    answers = {"Tenant": "acme", "Model": "", "Environment": "jsonl:rows.jsonl", "Reward": "rewards:exact"}
    ended = await CommandLine(tmp_path, {}).on_terminal(
        "init", "--job", "sums", "--steps", "7", answers=answers
    )
    assert ended.code == 0, ended.out
    spec = parse_job_spec(read_job_file(tmp_path / "job.yaml"))
    assert (str(spec.key), spec.model, spec.steps) == ("acme/sums", "smollm2-135m-instruct", 7)
    assert spec.environment.model_dump() == {
        "kind": "jsonl",
        "path": os.fspath(tmp_path / "rows.jsonl"),
        "reward": "rewards:exact",
    }

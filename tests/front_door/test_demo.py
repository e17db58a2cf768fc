"""The demo as `make demo` runs it, with a model of a few thousand parameters."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from marlaas.jobs.job_file import read_job_file
from marlaas.schemas.environment import ReasoningGymEnvironment
from marlaas.schemas.job_spec import parse_job_spec
from marlaas.tests.embedded.harness import processes_of, stack_file, wait_until
from marlaas.tests.tiny_model import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job like the demo's, of a size for tests."""
    folder = tmp_path_factory.mktemp("demo")
    write_tiny_model(folder / "tiny")
    content = read_job_file(EXAMPLES / "sums.yaml")
    content |= {"model": "./tiny", "steps": 3, "evaluation": {"prompts": 4, "samples": 2}}
    content["sampling"] = {
        "groups_per_step": 2,
        "samples_per_group": 4,
        "max_prompt_tokens": 128,
        "max_tokens": 8,
        "slots": 16,
    }
    path = folder / "tiny.json"
    path.write_text(json.dumps(content))
    return path


class Demo:
    """A demo that runs; its output is read line by line."""

    def __init__(self, config: Path, data: Path, seed: int = 0) -> None:
        arguments = ("--config", str(config), "--data", str(data), "--seed", str(seed))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo", *arguments],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []

    def read_until(self, text: str) -> None:
        while not (self.lines and text in self.lines[-1]):
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            assert line, self.lines
            self.lines.append(line.rstrip("\n"))

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        assert self._process.stdout is not None
        self.lines += self._process.stdout.read().splitlines()
        return self._process.wait()


def test_the_demo_ends_with_its_figures_and_leaves_an_adapter_and_no_process(
    config: Path, tmp_path: Path
) -> None:
    data = tmp_path / "stack"
    demo = Demo(config, data, seed=3)
    assert demo.end() == 0, demo.lines
    assert re.fullmatch(
        r"RESULT held_out_before=\d\.\d{4} held_out_after=\d\.\d{4} greedy_before=\d\.\d{4} "
        r"greedy_after=\d\.\d{4} steps=3 train_minutes=\d+\.\d\d",
        demo.lines[-1],
    )
    shown = "\n".join(demo.lines)
    wall = shown[shown.index("WALL TIME") :].splitlines()
    spent = {words[0]: float(words[1]) for line in wall[1:9] if (words := re.split(r"\s{2,}", line))[1:]}
    assert set(spent) == {
        "servers and workers",
        "start of the job",
        "evaluation of version 0",
        "training",
        "evaluation of version 3",
        "between these",
        "total",
    }
    assert all(seconds >= 0 for seconds in spent.values())
    assert spent.pop("total") == pytest.approx(sum(spent.values()), abs=0.4)
    for part in ("mean reward", "avg@2, 4 prompts", "tokens sampled", "SECONDS BY PHASE"):
        assert part in shown
    provenance = json.loads((data / "exports" / "demo" / "sums-1" / "marlaas.json").read_text())
    assert provenance["version"] == 3
    assert list((data / "scratch").iterdir()) == []
    assert not processes_of(data)

    again = Demo(config, data)
    again.read_until("is started, with seed")
    assert "job demo/sums-2 of" in again.lines[-1]
    again.send(signal.SIGINT)
    assert again.end() == 130


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("starting Temporal", signal.SIGINT),
        ("temporal: ready", signal.SIGTERM),
        ("evaluating", signal.SIGHUP),
    ],
)
def test_an_interrupted_demo_leaves_no_process(
    config: Path, tmp_path: Path, text: str, number: signal.Signals
) -> None:
    data = tmp_path / "stack"
    demo = Demo(config, data)
    demo.read_until(text)
    demo.send(number)
    assert demo.end() == 130, demo.lines
    assert demo.lines[-1] == "interrupted; everything is stopped"
    assert not processes_of(data)


@pytest.mark.parametrize("text", ["temporal: ready", "evaluating"])
@pytest.mark.parametrize("leader", ["", "sh -c 'trap : HUP; \"$@\"; true' sh"], ids=["itself", "another"])
def test_a_demo_whose_terminal_is_closed_leaves_no_process(
    config: Path, tmp_path: Path, text: str, leader: str
) -> None:
    """What it says while it stops has nowhere to go; the kernel tells the session's leader only."""
    data = tmp_path / "stack"
    command = [
        *shlex.split(leader),
        sys.executable,
        "-m",
        "examples.demo",
        "--config",
        str(config),
        "--data",
        str(data),
    ]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execvpe(command[0], command, {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"})
    shown = b""
    while text.encode() not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.WIFEXITED(status)
    assert not processes_of(data)


def test_a_demo_whose_make_was_killed_stops_everything(config: Path, tmp_path: Path) -> None:
    data = tmp_path / "stack"
    with subprocess.Popen(
        [
            *("make", "-o", "install", "demo", f"BIN={Path(sys.executable).parent}"),
            f"ARGS=--config {config} --data {data}",
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as make:
        assert make.stdout is not None
        while "is started, with seed" not in (line := make.stdout.readline()):
            assert line
        make.kill()
        assert make.stdout.read().splitlines()[-1] == "interrupted; everything is stopped"
    assert stack_file(data).state == "stopped"
    assert not processes_of(data)


@pytest.mark.parametrize("detached", [("nohup",), ("setsid",)])
def test_a_detached_demo_outlives_who_started_it(
    config: Path, tmp_path: Path, detached: tuple[str, ...]
) -> None:
    """Its end, when it is asked for, is that of an interrupted one: it had not begun to stop before."""
    data = tmp_path / "stack"
    program = (*detached, sys.executable, "-m", "examples.demo", "--config", str(config), "--data", str(data))
    with subprocess.Popen(
        ["sh", "-c", '"$@" & read -r _', "sh", *program],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout is not None
        while "temporal: ready" not in (line := shell.stdout.readline()):
            assert line
        shell.kill()
        shell.wait()
        while "is started, with seed" not in (line := shell.stdout.readline()):
            assert line
        stack_file(data).supervisor.send(signal.SIGTERM)
        assert shell.stdout.read().splitlines()[-1] == "interrupted; everything is stopped"
    assert not processes_of(data)


def test_a_killed_demo_leaves_no_process_and_the_next_one_ends_its_job(config: Path, tmp_path: Path) -> None:
    data = tmp_path / "stack"
    demo = Demo(config, data)
    demo.read_until("is started, with seed")
    demo.send(signal.SIGKILL)
    demo.end()
    wait_until(lambda: not processes_of(data))
    demo = Demo(config, data)
    demo.read_until("is started, with seed")
    assert "job demo/sums-1 of an interrupted demo is ended" in demo.lines
    # The name is free again when the killed job had no version 0.
    assert re.search(r"job demo/sums-[12] of", demo.lines[-1])
    demo.send(signal.SIGINT)
    assert demo.end() == 130


def test_the_example_for_the_temporal_cli_is_the_one_of_the_demo_but_for_its_name() -> None:
    given = read_job_file(EXAMPLES / "sums.json")
    assert given.pop("job") == "sums-cli"
    assert {**given, "job": "sums"} == read_job_file(EXAMPLES / "sums.yaml")


def test_the_examples_are_valid() -> None:
    sums = parse_job_spec(read_job_file(EXAMPLES / "sums.yaml"))
    assert isinstance(sums.environment, ReasoningGymEnvironment)
    assert sums.evaluation.prompts >= 64
    brevity = parse_job_spec(read_job_file(EXAMPLES / "brevity.yaml"))
    assert brevity.environment.kind == "jsonl"
    assert Path(brevity.environment.path) == EXAMPLES / "questions.jsonl"


def test_the_reward_of_the_example(tmp_path: Path) -> None:
    code = (
        "import json\nfrom examples.rewards import brevity\n"
        "rows = [json.loads(line) for line in open('examples/questions.jsonl')]\n"
        "assert all(brevity('Paris.', **row) == 1.0 for row in rows)\n"
        "assert brevity('one two three four', messages=[], words=2) == 0.5\n"
        "assert brevity('', messages=[], words=2) == 0.0\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

import subprocess
import sys
from pathlib import Path

import pytest
from marlaas.engines.made_once import made_once
from marlaas.tests.embedded.harness import wait_until

_PROGRAM = """
import sys
from pathlib import Path
from marlaas.engines.made_once import made_once

def make(part):
    part.mkdir()
    (part / "half").write_text("of it")
    print("at it", flush=True)
    sys.stdin.read()

print("comes", flush=True)
made_once(Path(sys.argv[1]), make)
"""


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _sleeps(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def _make(part: Path) -> None:
    part.mkdir()
    (part / "weights").write_text("all")


def test_what_a_killed_process_made_is_cleared_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "one"
    with _start(folder) as first:
        assert [_line(first), _line(first)] == ["comes", "at it"]
        first.kill()
    assert [path.name for path in folder.parent.glob("*/half")] == ["half"]
    made_once(folder, _make)
    assert {str(path.relative_to(folder.parent)) for path in folder.parent.rglob("*")} == {
        ".one.lock",
        "one",
        "one/weights",
    }


def test_one_process_makes_it_and_the_others_wait(tmp_path: Path) -> None:
    first = _start(tmp_path / "one")
    assert [_line(first), _line(first)] == ["comes", "at it"]
    second = _start(tmp_path / "one")
    assert _line(second) == "comes"
    wait_until(lambda: _sleeps(second))
    assert first.communicate() == ("", None)
    assert second.communicate() == ("", None)
    assert (first.returncode, second.returncode) == (0, 0)


def test_a_failure_leaves_nothing_of_size(tmp_path: Path) -> None:
    def fails(part: Path) -> None:
        _make(part)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        made_once(tmp_path / "one", fails)
    assert [path.name for path in tmp_path.iterdir()] == [".one.lock"]

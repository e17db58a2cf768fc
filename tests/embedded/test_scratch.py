import subprocess
import sys
from pathlib import Path

from marlaas.workers.scratch import scratch_folder

_HOLDS = """
import sys
from pathlib import Path
from marlaas.workers.scratch import scratch_folder

with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "step").mkdir()
    (folder / "step" / "adapter").write_text("tensors")
    print(folder, flush=True)
    sys.stdin.read()
"""


def _holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_worker_s_folder_is_deleted_by_the_next_one_and_a_living_one_s_is_not(
    tmp_path: Path,
) -> None:
    parent = tmp_path / "scratch"
    (killed, left), (living, used) = _holder(parent), _holder(parent)
    killed.kill()
    killed.communicate()
    assert (left / "step" / "adapter").exists()
    with scratch_folder(parent) as own:
        assert set(parent.iterdir()) == {used, own}
        assert (used / "step" / "adapter").exists()
    assert set(parent.iterdir()) == {used}
    living.communicate()
    assert living.returncode == 0
    assert list(parent.iterdir()) == []

"""The package as people get it: built from a clone of any name, installed where nothing else is."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "schemas",
    "storage",
    "environments",
    "engines",
    "activities",
    "workflows",
    "workers",
    "jobs",
    "terminal",
    "commands",
    "tracking",
)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_wheel_from_a_clone_of_another_name_holds_the_package_and_works_alone(tmp_path: Path) -> None:
    clone = tmp_path / "x-1"
    run("git", "clone", "-q", ROOT, clone, cwd=tmp_path)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, clone, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")

    tracked = run("git", "ls-files", "*.py", "py.typed", *(f"{p}/*.py" for p in PACKAGES), cwd=clone).split()
    expected = {name for name in tracked if "/" not in name or name.split("/")[0] in PACKAGES}
    packed = {
        name.removeprefix("marlaas/") for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name
    }
    assert packed == expected

    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    assert "marlaas submit" in run(tmp_path / "venv" / "bin" / "marlaas", "--help", cwd=tmp_path)
    run(
        python,
        "-c",
        "import marlaas.workflows, marlaas.activities, sys; assert 'torch' not in sys.modules",
        cwd=tmp_path,
    )

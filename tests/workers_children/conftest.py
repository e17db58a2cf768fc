import os
from collections.abc import Callable
from pathlib import Path

import pytest

TARGETS = Path(__file__).parent / "targets"


@pytest.fixture(autouse=True)
def _targets_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children inherit the path on which they find the modules of `targets/`."""
    monkeypatch.setenv("PYTHONPATH", str(TARGETS), prepend=":")


@pytest.fixture
def running() -> Callable[[int], bool]:
    """Whether a process runs; one that is dead and only not yet waited for does not."""

    def state(pid: int) -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] not in "ZX"

    assert state(os.getpid())
    return state

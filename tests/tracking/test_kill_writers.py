"""A process that writes to a tracker is killed again and again: every point is there once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from marlaas.tests.tracking.readers import Points, mlflow_points, tensorboard_points, wandb_points

LAST, AT_ONCE = 24, 6
FIGURES = {"step": "reward/mean", "evaluation": "eval/accuracy"}


def expected() -> Points:
    points: Points = {}
    for version in range(LAST + 1):
        for kind, name in FIGURES.items():
            if version > 0 if kind == "step" else version % 4 == 0:
                points[name, version] = [version / 8]
                points[f"{name}_2", version] = [-version / 4]
    return points


def write(tracker: str, folder: Path, kill_after: tuple[int, float] | None) -> bool:
    """Runs a writer; kills it and all that it started so long after so many lines. True when it was done."""
    writer = Path(__file__).with_name("writer.py")
    process = subprocess.Popen(
        [sys.executable, str(writer), tracker, str(folder), str(LAST), str(AT_ONCE)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[bytes] = []
    for line in process.stdout:
        lines.append(line)
        if kill_after is not None and len(lines) == kill_after[0]:
            time.sleep(kill_after[1])
            os.killpg(process.pid, signal.SIGKILL)
            break
    process.stdout.close()
    code = process.wait()
    assert code in (0, -signal.SIGKILL)
    return lines[-1:] == [b"done\n"]


READERS: dict[str, Callable[[Path], Points]] = {
    "tensorboard": lambda folder: tensorboard_points(folder / "acme/sums/tensorboard"),
    "wandb": lambda folder: wandb_points(folder / "acme/sums/wandb"),
    "mlflow": lambda folder: mlflow_points(folder / "acme/_shared/mlflow/mlflow.db"),
}


@pytest.mark.parametrize(
    ("tracker", "seconds", "kills"),
    [
        ({"kind": "tensorboard"}, 0.004, 8),
        ({"kind": "wandb", "project": "p", "mode": "offline"}, 1.5, 4),
        ({"kind": "mlflow"}, 0.2, 3),
    ],
    ids=["tensorboard", "wandb", "mlflow"],
)
def test_every_point_is_there_once(
    tmp_path: Path, tracker: dict[str, str], seconds: float, kills: int
) -> None:
    """CASES 22: Rows have keys, so none is dropped or doubled."""
    chance = random.Random(7)
    for _ in range(kills):
        write(json.dumps(tracker), tmp_path, (chance.choice([1, 2, 2, 3]), seconds * chance.random()))
    assert write(json.dumps(tracker), tmp_path, None)
    found = READERS[tracker["kind"]](tmp_path)
    ours = {point: values for point, values in found.items() if point[0].startswith(("reward/", "eval/"))}
    assert ours == expected()

"""Rows that reach MLflow a second time, as from an attempt whose replacement was faster."""

from pathlib import Path

from marlaas.schemas.tracker_calls import Position
from marlaas.schemas.trackers import MlflowTracker
from marlaas.tests.tracking.readers import mlflow_points
from marlaas.tests.tracking.writer import KEY, row
from marlaas.tracking.mlflow_run import MlflowRun


def test_rows_that_are_sent_twice_are_there_once(tmp_path: Path) -> None:
    rows = [*(row(version, "step") for version in (1, 2, 3)), row(0, "evaluation")]
    attempts = [MlflowRun(MlflowTracker(kind="mlflow"), KEY, tmp_path) for _ in range(2)]
    assert [one.position() for one in attempts] == [Position(), Position()]
    for attempt in attempts:
        attempt.append(rows, final=True)
    points = mlflow_points(tmp_path / "mlflow.db")
    assert {version: points["reward/mean", version] for version in (1, 2, 3)} == {
        1: [0.125],
        2: [0.25],
        3: [0.375],
    }
    assert attempts[0].position() == Position(step=3, evaluation=0)


def test_names_that_mlflow_refuses_are_written_out(tmp_path: Path) -> None:
    figures = {"eval/pass@8": 0.5, "eval/long-sums/accuracy": 0.25}
    run = MlflowRun(MlflowTracker(kind="mlflow"), KEY, tmp_path)
    run.position()
    run.append([row(2, "evaluation").model_copy(update={"figures": figures})], final=False)
    points = mlflow_points(tmp_path / "mlflow.db")
    assert (points["eval/pass_at_8", 2], points["eval/long-sums/accuracy", 2]) == ([0.5], [0.25])

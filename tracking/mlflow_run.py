"""MLflow: a run for each job."""
# The library is partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import os
from collections.abc import Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.exceptions import MlflowException

from ..schemas.metric_row import MetricRow
from ..schemas.names import JobKey
from ..schemas.tracker_calls import Position
from ..schemas.trackers import MlflowTracker

_TAG = "marlaas.job"
_ROWS_AT_ONCE = 20
"""MLflow takes at most 1000 metrics in one request."""


class MlflowRun:
    """The run that is tagged with the job's name, on the server or in an SQLite file of the folder.

    With each row goes its version under the name `marlaas/step` or `marlaas/evaluation`, whose newest
    value is the position. A point's key in MLflow's database is (run, name, step, time, value), and the
    time is the row's own, so a row that is sent again is the same points.
    """

    def __init__(self, tracker: MlflowTracker, key: JobKey, folder: Path) -> None:
        server = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(tracking_uri=server or f"sqlite:///{folder.absolute()}/mlflow.db")
        self._artifacts = None if server else (folder / "artifacts").absolute().as_uri()
        self._experiment = f"{key.tenant}/{tracker.experiment}"
        self._key = key
        self._run_id = ""

    def position(self) -> Position:
        run = self._run()
        self._run_id = run.info.run_id
        last = {kind: int(run.data.metrics.get(f"marlaas/{kind}", -1)) for kind in ("step", "evaluation")}
        return Position(step=max(0, last["step"]), evaluation=last["evaluation"])

    def append(self, rows: Sequence[MetricRow], *, final: bool) -> None:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            points = [point for row in rows[start : start + _ROWS_AT_ONCE] for point in _points(row)]
            self._client.log_batch(self._run_id, metrics=points)
        if final:
            self._client.set_terminated(self._run_id)

    def _run(self) -> Run:
        """The job's run. Of two that were made at the same time both makers take the first."""
        experiment = self._experiment_id()
        if found := self._runs(experiment):
            return found[0]
        made = self._client.create_run(experiment, tags={_TAG: str(self._key)}, run_name=str(self._key))
        first = self._runs(experiment)[0]
        if first.info.run_id != made.info.run_id:
            self._client.delete_run(made.info.run_id)
        return first

    def _runs(self, experiment: str) -> list[Run]:
        found = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{self._key}'")
        return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            try:
                return self._client.create_experiment(self._experiment, artifact_location=self._artifacts)
            except MlflowException:
                found = self._client.get_experiment_by_name(self._experiment)  # another has just made it
                if found is None:
                    raise
        return found.experiment_id


def _points(row: MetricRow) -> list[Metric]:
    """The figures, and last the version. MLflow's names have no `@`."""
    time = round(1000 * (row.time or 0.0))
    figures = {**row.figures, f"marlaas/{row.kind}": float(row.version)}
    return [Metric(name.replace("@", "_at_"), figure, time, row.version) for name, figure in figures.items()]

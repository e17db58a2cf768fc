"""Weights & Biases: a run for a job's steps, and one for its evaluations, which come late."""
# The library is partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb

from ..schemas.metric_row import MetricRow, RowKind
from ..schemas.names import JobKey
from ..schemas.tracker_calls import Position
from ..schemas.trackers import WandbTracker

_KINDS: tuple[RowKind, ...] = ("step", "evaluation")
_OFFLINE_BATCH = 100
"""Rows in one folder of an offline run, but at the job's end."""


class _Runs:
    """What online and offline have in common.

    A run's id is a function of the job, and a row's place in it, W&B's step, is the version. W&B takes
    rows of a run with growing steps only, which is why evaluations have a run of their own.
    """

    def __init__(self, tracker: WandbTracker, key: JobKey, folder: Path) -> None:
        self._tracker = tracker
        self._key = key
        self._folder = folder

    def _id(self, kind: RowKind) -> str:
        return hashlib.sha256(f"{self._key}/{kind}".encode()).hexdigest()[:20]

    def _log(self, kind: RowKind, rows: Sequence[MetricRow], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        run = wandb.init(
            project=self._tracker.project,
            entity=self._tracker.entity,
            id=self._id(kind),
            name=f"{self._key} {kind}s",
            group=str(self._key),
            job_type=kind,
            mode=self._tracker.mode,
            resume="allow",
            dir=str(folder),
            settings=_settings(),
        )
        for row in rows:
            run.log({**row.figures, "version": row.version}, step=row.version)
        run.finish()


class WandbOffline(_Runs):
    """Folders for `wandb sync`, each with the rows of its two versions and those between.

    A folder is written aside and then renamed, so it is there whole or not at all, and the names say
    which rows there are.
    """

    def position(self) -> Position:
        shutil.rmtree(self._aside, ignore_errors=True)
        step, evaluation = (self._last(kind) for kind in _KINDS)
        return Position(step=max(0, step), evaluation=evaluation, batch=_OFFLINE_BATCH)

    def append(self, rows: Sequence[MetricRow], *, final: bool) -> None:
        for kind in _KINDS:
            if mine := [row for row in rows if row.kind == kind]:
                self._log(kind, mine, self._aside)
                (written,) = (self._aside / "wandb").glob("offline-run-*")
                for file in written.glob("*.wandb"):
                    with file.open("rb") as synced:
                        os.fsync(synced.fileno())
                written.rename(self._folder / f"{self._prefix(kind)}-{mine[0].version}-{mine[-1].version}")
                shutil.rmtree(self._aside)

    @property
    def _aside(self) -> Path:
        return self._folder / "unfinished"

    def _prefix(self, kind: RowKind) -> str:
        return f"offline-run-{kind}s-{self._id(kind)}"

    def _last(self, kind: RowKind) -> int:
        found = self._folder.glob(f"{self._prefix(kind)}-*")
        return max((int(path.name.rpartition("-")[2]) for path in found), default=-1)


class WandbOnline(_Runs):
    """Runs on a W&B server, which says where each of them ends.

    W&B drops a row whose step is not beyond the run's last, so a row that the server had taken and not
    yet counted is not doubled when it is sent again.
    """

    def position(self) -> Position:
        step, evaluation = (self._last(kind) for kind in _KINDS)
        return Position(step=max(0, step), evaluation=evaluation)

    def append(self, rows: Sequence[MetricRow], *, final: bool) -> None:
        for kind in _KINDS:
            if mine := [row for row in rows if row.kind == kind]:
                self._log(kind, mine, self._folder)

    def _last(self, kind: RowKind) -> int:
        api = wandb.Api(timeout=20)
        entity = self._tracker.entity or api.default_entity
        filters: dict[str, Any] = {"name": self._id(kind)}
        try:
            runs = list(api.runs(f"{entity}/{self._tracker.project}", filters=filters))
        except ValueError:  # there is no such project yet
            return -1
        return runs[0].lastHistoryStep if runs else -1


def _settings() -> wandb.Settings:
    return wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        init_timeout=30,
        silent=True,
        x_disable_meta=True,
        x_disable_stats=True,
    )

"""What every tracker does, and which one a job's tracker is."""

import fcntl
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..schemas.metric_row import MetricRow
from ..schemas.names import JobKey
from ..schemas.tracker_calls import Position
from ..schemas.trackers import (
    MlflowTracker,
    PrometheusTracker,
    TensorBoardTracker,
    Tracker,
    WandbTracker,
)


class TrackerUnavailable(Exception):
    """This worker can't write to the tracker; the message says what to do."""


class Sink(Protocol):
    """One job in one tracker, for one process at a time.

    It is asked what it has before it is given rows, and keeps its answer true by itself: killed at any
    moment, the next process finds each row there or not there, and goes on from that.
    """

    def position(self) -> Position:
        """What the tracker has, after mending what a killed process left."""
        ...

    def append(self, rows: Sequence[MetricRow], *, final: bool) -> None:
        """Adds rows after the position, in order of version; they are stored when it returns."""
        ...


@contextmanager
def open_sink(tracker: Tracker, key: JobKey, folder: Path) -> Generator[Sink]:
    """A job's sink, for as long as no other process of this machine has it.

    Args:
        folder: in which trackers that write files have their own, by tenant and job.

    Raises:
        TrackerUnavailable: when the tracker's library is missing, or the address that it needs.
    """
    place = folder / key.tenant / (key.job if tracker.kind != "mlflow" else "_shared") / tracker.kind
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends, however it does
        try:
            yield _sink(tracker, key, place)
        except ModuleNotFoundError as error:
            raise TrackerUnavailable(
                f"the worker lacks the library {error.name}: pip install 'marlaas[{tracker.kind}]' there"
            ) from error


def _sink(tracker: Tracker, key: JobKey, place: Path) -> Sink:
    # Each library is loaded only where its tracker is used: they are optional, and slow to load.
    match tracker:
        case TensorBoardTracker():
            from .tensorboard_files import TensorBoardFiles

            return TensorBoardFiles(place)
        case WandbTracker():
            from .wandb_runs import WandbOffline, WandbOnline

            return (WandbOffline if tracker.mode == "offline" else WandbOnline)(tracker, key, place)
        case MlflowTracker():
            from .mlflow_run import MlflowRun

            return MlflowRun(tracker, key, place)
        case PrometheusTracker():
            from .push_gateway import PushGateway

            return PushGateway(key)

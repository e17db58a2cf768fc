"""What trackers have, as their own libraries read it: (name, step) to each value found there, in order."""
# The libraries have few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from wandb.proto.wandb_internal_pb2 import Record

Points = dict[tuple[str, int], list[float]]

_BLOCK = 1 << 15
"""Bytes of a block of LevelDB's log format, in which W&B keeps its records."""


def tensorboard_points(folder: Path) -> Points:
    """Of all event files below a folder."""
    points: Points = defaultdict(list)
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                points[value.tag, event.step].append(value.simple_value)
    return points


def mlflow_points(database: Path) -> Points:
    """Of the only run in a database."""
    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    experiments = [one.experiment_id for one in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    points: Points = defaultdict(list)
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            points[name, metric.step].append(metric.value)
    return points


def wandb_points(folder: Path) -> Points:
    """Of all offline runs in a folder: the history rows that `wandb sync` would send."""
    points: Points = defaultdict(list)
    for path in sorted(folder.glob("offline-run-*/*.wandb")):
        for data in _records(path.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                for item in record.history.item:
                    name = item.key or "/".join(item.nested_key)
                    if not name.startswith("_"):
                        points[name, record.history.step.num].append(json.loads(item.value_json))
    return points


def _records(data: bytes) -> Iterator[bytes]:
    """Records of a log: fragments of check sum (4), length (2), type (1) and data, none across blocks."""
    offset, parts = 7, b""  # after the file's own header
    while offset + 7 <= len(data):
        left = _BLOCK - offset % _BLOCK
        if left < 7:
            offset += left
            continue
        length, kind = struct.unpack_from("<HB", data, offset + 4)
        parts += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # whole, or the last fragment
            yield parts
            parts = b""

"""TensorBoard's event files: one record for each row."""
# The library has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false, reportUnknownParameterType=false

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter

from ..schemas.metric_row import MetricRow, RowKind
from ..schemas.tracker_calls import Position

_ROWS = 10_000
"""In one file: it bounds what is read to know the position."""
_KINDS: tuple[RowKind, ...] = ("step", "evaluation")


@dataclass(frozen=True)
class _Content:
    """Whole records of a file: their length in bytes, and the step of the last one that is a row."""

    length: int
    last: int | None


class TensorBoardFiles:
    """A job's event files, in the folders `step` and `evaluation`, which TensorBoard shows as two runs.

    A row is one record, and a file is only ever appended to. A killed process leaves at most one record
    cut short, at the end of the newest file; readers wait for its rest, and the next process cuts it off.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def position(self) -> Position:
        step, evaluation = (self._last(kind) for kind in _KINDS)
        return Position(step=0 if step is None else step, evaluation=-1 if evaluation is None else evaluation)

    def append(self, rows: Sequence[MetricRow], *, final: bool) -> None:
        for kind in _KINDS:
            if mine := [row for row in rows if row.kind == kind]:
                self._append(kind, mine)

    def _files(self, kind: RowKind) -> list[Path]:
        return sorted((self._folder / kind).glob("events.out.tfevents.*"))

    def _last(self, kind: RowKind) -> int | None:
        lasts = (_content(path).last for path in reversed(self._files(kind)))
        return next((last for last in lasts if last is not None), None)

    def _append(self, kind: RowKind, rows: Sequence[MetricRow]) -> None:
        path = self._file(kind, rows[0].version)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.truncate(_content(path).length)
            writer = RecordWriter(file)
            if file.seek(0, os.SEEK_END) == 0:
                writer.write(Event(file_version="brain.Event:2").SerializeToString())
            for row in rows:
                writer.write(_event(row).SerializeToString())
            file.flush()
            os.fsync(file.fileno())

    def _file(self, kind: RowKind, version: int) -> Path:
        """The newest file, or where a new one is due, with the version in the place of the time."""
        files = self._files(kind)
        if files and version - int(files[-1].name.split(".")[3]) < _ROWS:
            return files[-1]
        return self._folder / kind / f"events.out.tfevents.{version:010d}.marlaas"


def _event(row: MetricRow) -> Event:
    values = [Summary.Value(tag=name, simple_value=figure) for name, figure in row.figures.items()]
    return Event(wall_time=row.time or 0.0, step=row.version, summary=Summary(value=values))


def _content(path: Path) -> _Content:
    """Reads records up to the first that is cut short.

    A record is the length of its data (8 bytes, little-endian), its check sum (4), the data and theirs.
    """
    data = path.read_bytes() if path.exists() else b""
    offset, last = 0, None
    while offset + 12 <= len(data):
        length, check = struct.unpack_from("<QI", data, offset)
        end = offset + 12 + length + 4
        if end > len(data) or masked_crc32c(data[offset : offset + 8]) != check:
            break
        event = Event.FromString(data[offset + 12 : end - 4])
        offset, last = end, event.step if event.HasField("summary") else last
    return _Content(offset, last)

"""A process that reports rows to a tracker, a few at a time, until it is done or killed.

    python writer.py TRACKER FOLDER LAST    (TRACKER as JSON)

Prints a line before each append, so that a test can kill it in one.
"""

import os
import sys
from pathlib import Path

from marlaas.schemas.metric_row import MetricRow
from marlaas.schemas.names import JobKey
from marlaas.schemas.trackers import Tracker
from marlaas.tracking.sink import open_sink
from pydantic import TypeAdapter

KEY = JobKey(tenant="acme", job="sums")


def row(version: int, kind: str) -> MetricRow:
    name = "reward/mean" if kind == "step" else "eval/accuracy"
    return MetricRow.model_validate(
        {
            "key": KEY,
            "version": version,
            "kind": kind,
            "time": 1.7e9 + version,
            "figures": {name: version / 8, f"{name}_2": -version / 4},
        }
    )


def main(tracker: Tracker, folder: Path, last: int, at_once: int) -> None:
    with open_sink(tracker, KEY, folder) as sink:
        position = sink.position()
        os.write(1, b"open\n")
        for first in range(min(position.step, position.evaluation) + 1, last + 1, at_once):
            versions = range(first, min(last, first + at_once - 1) + 1)
            rows = [row(one, "step") for one in versions if one > position.step]
            rows += [row(one, "evaluation") for one in versions if one > position.evaluation and one % 4 == 0]
            os.write(1, b"append\n")
            sink.append(rows, final=last in versions)
    os.write(1, b"done\n")


if __name__ == "__main__":
    adapter: TypeAdapter[Tracker] = TypeAdapter(Tracker)
    main(adapter.validate_json(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

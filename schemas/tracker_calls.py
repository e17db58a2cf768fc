"""What a worker asks of the process that writes to a tracker, and what a job keeps of it."""

from collections.abc import Sequence

from .contract import Contract
from .metric_row import MetricRow
from .names import JobKey
from .trackers import Tracker


class Position(Contract):
    """What a tracker has of a job.

    Attributes:
        step: version of its last row of a step.
        evaluation: of its last row of an evaluation; -1 when there is none.
        batch: fewest rows that it takes before the job's end.
        newest_only: it keeps the newest rows alone, and is given them at every report.
    """

    step: int = 0
    evaluation: int = -1
    batch: int = 1
    newest_only: bool = False


class OpenCall(Contract):
    """Asks for a job's position in a tracker; its other calls follow in the same process.

    Attributes:
        folder: of the worker, for trackers that write files.
    """

    tracker: Tracker
    key: JobKey
    folder: str


class AppendCall(Contract):
    """Adds rows that lie after the position, in order of version.

    Attributes:
        final: the job has ended, and there will be no more.
    """

    rows: Sequence[MetricRow]
    final: bool


class TrackerState(Contract):
    """How a tracker does.

    Attributes:
        version: of the last row of a step that it is known to have; None when it did not say.
        behind: more rows are there than it took in the time that a report has.
        problem: why it did not take all; None when it did.
    """

    kind: str
    version: int | None
    behind: bool = False
    problem: str | None = None

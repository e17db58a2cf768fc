"""Rows of metrics as JSONL in the tenant's bucket: one object for each hundred versions."""

import json

from ..schemas.job_spec import JobSpec
from ..schemas.metric_row import MetricRow
from .documents import UnreadableDocument
from .metric_rows import MetricRows
from .object_store import ObjectStore
from .revisions import Revisions

CHUNK = 100
"""Versions in one object."""

_Key = tuple[int, bool]
"""(version, whether it is an evaluation): what lines are sorted by, and what is there once."""


class MetricLog:
    """The JSONL objects of one job.

    An object holds its rows in the order of their keys, one a line. It only ever grows: it is replaced on
    the condition that it is what was read, so a writer that was overtaken begins again, and one that
    finds nothing missing writes nothing.

    Raises as `Revisions` does, and `UnreadableDocument` for lines that are not ours.
    """

    def __init__(self, store: ObjectStore, revisions: Revisions, spec: JobSpec) -> None:
        self._store = store
        self._rows = MetricRows(revisions, spec)
        self._key = spec.key

    async def update(self, first: int, last: int) -> None:
        """Adds the rows of the versions from `first` to `last`, the newest, that are not there."""
        for start in range(first // CHUNK * CHUNK, last + 1, CHUNK):
            while not await self._update_chunk(start, last):
                pass

    async def _update_chunk(self, start: int, last: int) -> bool:
        """Returns False when another writer was faster."""
        bucket, key = self._key.bucket, self._key.metrics_key(start)
        stored = await self._store.get_tagged(bucket, key)
        lines = {} if stored is None else _lines(stored[0], f"{bucket}/{key}")
        end = min(start + CHUNK - 1, last)
        steps = [one for one in range(max(1, start), end + 1) if (one, False) not in lines]
        due = self._rows.evaluated(start, end, last)
        new = await self._rows.steps(steps)
        new += await self._rows.evaluations([one for one in due if (one, True) not in lines])
        if not new:
            return True
        lines |= {_key(row): row.to_line() for row in new}
        data = "".join(f"{lines[each]}\n" for each in sorted(lines)).encode()
        if stored is None:
            return await self._store.put_new(bucket, key, data)
        return await self._store.put_over(bucket, key, data, stored[1])


def _key(row: MetricRow) -> _Key:
    return row.version, row.kind == "evaluation"


def _lines(data: bytes, where: str) -> dict[_Key, str]:
    try:
        lines = data.decode().splitlines()
        heads = [json.loads(line) for line in lines]
        return {
            (head["version"], head["kind"] == "evaluation"): line
            for head, line in zip(heads, lines, strict=True)
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableDocument(f"{where}: its lines are not rows of metrics: {error}") from error

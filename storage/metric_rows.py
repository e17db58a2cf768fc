"""Rows of metrics, read from what a job has committed."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from ..schemas.job_spec import JobSpec
from ..schemas.metric_row import MetricRow, evaluation_row, step_row
from .revisions import Revisions

T = TypeVar("T")

_AT_ONCE = 64


class MetricRows:
    """The rows of one job. Raises as `Revisions` does."""

    def __init__(self, revisions: Revisions, spec: JobSpec) -> None:
        self._revisions = revisions
        self._spec = spec

    async def steps(self, versions: Sequence[int]) -> list[MetricRow]:
        """Rows of the steps that led to those of these versions which are committed."""
        rows: list[MetricRow] = []
        for part in _parts(versions):
            manifests = await asyncio.gather(*(self._revisions.manifest(self._spec.key, one) for one in part))
            found = (step_row(manifest) for manifest in manifests if manifest is not None)
            rows += [row for row in found if row is not None]
        return rows

    async def evaluations(self, versions: Sequence[int]) -> list[MetricRow]:
        """Rows of those of these versions which have been evaluated."""
        rows: list[MetricRow] = []
        for part in _parts(versions):
            found = await asyncio.gather(*(self._revisions.evaluation(self._spec.key, one) for one in part))
            rows += [evaluation_row(document) for document in found if document is not None]
        return rows

    def evaluated(self, first: int, last: int, newest: int) -> list[int]:
        """Versions from `first` to `last` that are or will be evaluated, if `newest` is the job's last."""
        every = self._spec.evaluation.every
        due = [one for one in range(first, last + 1) if one in (0, newest) or (every and one % every == 0)]
        return due if self._spec.evaluation.prompts else []


def _parts(versions: Sequence[T]) -> list[Sequence[T]]:
    return [versions[start : start + _AT_ONCE] for start in range(0, len(versions), _AT_ONCE)]

"""The version of a job that did best on the held-out prompts."""

from ..schemas.job_spec import JobSpec
from ..storage.metric_rows import MetricRows
from ..storage.revisions import Revisions
from .errors import JobError


async def best_version(revisions: Revisions, spec: JobSpec) -> int:
    """Of the versions with the highest `evaluation.best`, the first. Read from the evaluations each time.

    Raises:
        JobError: when no version has been evaluated, or none has the figure.
        StoreUnavailable: when the object store does not answer.
    """
    best = spec.evaluation.best
    rows = await MetricRows(revisions, spec).evaluations(await revisions.evaluated_versions(spec.key))
    found = [(row.figures[f"eval/{best}"], row.version) for row in rows if f"eval/{best}" in row.figures]
    if not found:
        raise JobError(
            f"job {spec.key} has no version with a held-out {best.replace('_', ' ')}, so none is the best: "
            "`evaluation.prompts` turns evaluation on; or name a version by its number"
        )
    return max(found, key=lambda one: (one[0], -one[1]))[1]

"""The version of a job that did best on the held-out prompts."""

import asyncio
from typing import Literal

from ..schemas.manifest import EvaluationDocument
from ..schemas.names import JobKey
from ..storage.revisions import Revisions
from .errors import JobError

_AT_ONCE = 64


async def best_version(
    revisions: Revisions, key: JobKey, figure: Literal["accuracy", "greedy_accuracy", "reward_mean"]
) -> int:
    """Of the versions with the highest figure, the first. Read from the evaluations each time.

    Raises:
        JobError: when no version has been evaluated, or none has the figure.
        StoreUnavailable: when the object store does not answer.
    """
    versions = await revisions.evaluated_versions(key)
    found: list[tuple[float, int]] = []
    for start in range(0, len(versions), _AT_ONCE):
        part = versions[start : start + _AT_ONCE]
        documents = await asyncio.gather(*(revisions.evaluation(key, one) for one in part))
        values = [(_figure(one, figure), one.version) for one in documents if one is not None]
        found += [(value, version) for value, version in values if value is not None]
    if not found:
        raise JobError(
            f"job {key} has no version with a held-out {figure.replace('_', ' ')}, so none is the best: "
            "`evaluation.prompts` turns evaluation on; or name a version by its number"
        )
    return max(found, key=lambda one: (one[0], -one[1]))[1]


def _figure(document: EvaluationDocument, name: str) -> float | None:
    figures = {
        "accuracy": document.accuracy,
        "greedy_accuracy": document.greedy_accuracy,
        "reward_mean": document.reward_mean,
    }
    return figures[name]

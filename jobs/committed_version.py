"""A committed version with all that is known of it."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from ..schemas.manifest import AdapterRevision, EvaluationDocument, JobDocument, Manifest
from ..schemas.names import JobKey
from ..storage.revisions import Revisions
from .best_version import best_version
from .errors import JobError, JobNotFound


@dataclass(frozen=True)
class CommittedVersion:
    """What the object store has of a version.

    Attributes:
        job: the claim of the job's name, with its spec.
        evaluations: of version 0 and of this one, as far as there are any.
    """

    job: JobDocument
    revision: AdapterRevision
    manifest: Manifest
    evaluations: tuple[EvaluationDocument, ...]


async def committed_job(revisions: Revisions, key: JobKey) -> JobDocument:
    """The claim of a job's name.

    Raises:
        JobNotFound: when the job has no committed version.
    """
    document = await revisions.job(key)
    if document is None:
        raise JobNotFound(
            f"the object store has no version of job {key}: it was never started, failed at its start, or is "
            "there still"
        )
    return document


async def committed_version(
    revisions: Revisions, key: JobKey, version: int | Literal["best"] | None
) -> CommittedVersion:
    """A version of a job, by default the newest.

    Raises:
        JobNotFound: when the job has no committed version.
        JobError: when the version is not committed, or `best` is asked for and none was evaluated.
    """
    document, latest = await asyncio.gather(committed_job(revisions, key), revisions.latest_version(key))
    if version == "best":
        version = await best_version(revisions, document.spec)
    wanted = (latest or 0) if version is None else version
    found = await revisions.committed(key, wanted)
    if found is None:
        raise JobError(f"version {wanted} of job {key} is not committed; the newest is {latest}")
    evaluations = await asyncio.gather(
        *(revisions.evaluation(key, one) for one in dict.fromkeys((0, wanted)))
    )
    return CommittedVersion(document, *found, tuple(one for one in evaluations if one))

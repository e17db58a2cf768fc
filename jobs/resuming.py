"""What a job that has ended can go on from."""

import asyncio
from collections.abc import Mapping
from typing import Any

from ..schemas.job_spec import JobSpec
from ..schemas.names import JobKey
from ..schemas.settings import settle, with_settings
from ..storage.revisions import Revisions
from .errors import JobError


async def resumable_spec(revisions: Revisions, key: JobKey, changes: Mapping[str, Any]) -> JobSpec:
    """The spec that a job was started with, when the job can go on with the changes.

    Args:
        changes: values by path, as `set` takes them.

    Raises:
        InvalidJobSpec: when a change is not allowed.
        JobError: when no version is committed, or all steps are trained.
    """
    claim, latest = await asyncio.gather(revisions.job(key), revisions.latest_version(key))
    newest = await revisions.manifest(key, latest) if latest is not None else None
    if claim is None or newest is None:
        raise JobError(f"job {key} has no committed version to go on from; submit it")
    version = newest.version
    spec = with_settings(claim.spec, newest.settings, version)
    if changes:
        spec = with_settings(
            spec, settle(spec, dict(changes), untrained=version, undispatched=version), version
        )
    if spec.steps <= version:
        raise JobError(
            f"job {key} has trained all its {spec.steps} steps; to train more, give it more: "
            f"marlaas resume {key} --steps {2 * spec.steps}"
        )
    return claim.spec

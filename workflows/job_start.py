"""The start of a job, and the start of a further epoch of one that has ended."""

from temporalio import workflow

from ..schemas.events import (
    Candidate,
    ClaimInput,
    InitialiseInput,
    JobState,
    ReopenInput,
    SnapshotInput,
    Started,
)
from ..schemas.job_spec import JobSpec
from .activity_calls import CHECK_NAME, INITIALISE, PREPARE_DATASET, REOPEN_JOB, SNAPSHOT


async def start_job(spec: JobSpec) -> JobState:
    """Looks the name up, fixes the dataset and commits version 0, with which the name is claimed."""
    run = workflow.info().first_execution_run_id
    await CHECK_NAME(spec, ClaimInput(spec=spec, first_run_id=run))
    dataset = await PREPARE_DATASET(spec, spec)
    candidate: Candidate = await INITIALISE(spec, InitialiseInput(spec=spec, dataset=dataset))
    base = await SNAPSHOT(
        spec,
        SnapshotInput(spec=spec, candidate=candidate, groups=(), first_run_id=run, dataset=dataset),
    )
    return JobState(
        started=Started(dataset=dataset, fingerprint=candidate.fingerprint, adapter=base.adapter),
        recent=(base,),
        next_step=0,
        paused=False,
        stopping=False,
        evaluations=(),
        last=None,
    )


async def reopen_job(spec: JobSpec) -> JobState:
    """Goes on from the newest version of a job that has ended."""
    run = workflow.info().first_execution_run_id
    return await REOPEN_JOB(spec, ReopenInput(spec=spec, first_run_id=run))

"""The end of a job: what it held is given back."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from ..schemas.events import CloseInput
from ..schemas.job_spec import JobSpec
from .activity_calls import CLOSE_JOB


async def close_job(spec: JobSpec, epoch: int) -> int | None:
    """Has the job's stream deleted. A failure to do so is logged, and changes no job's end.

    Returns:
        The newest committed version, as far as the store has told.
    """
    run = workflow.info().first_execution_run_id
    try:
        closed = await CLOSE_JOB(spec, CloseInput(key=spec.key, first_run_id=run, epoch=epoch))
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        workflow.logger.warning(
            "the stream %s is left behind: %s", spec.key.in_epoch(epoch).stream, error.cause
        )
        return None
    return closed.version

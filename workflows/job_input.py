"""What a TrainJob was started with: anybody may start one, with whatever bytes."""

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ..schemas.events import JobState
from ..schemas.job_spec import InvalidJobSpec, JobSpec, parse_job_spec


def job_input(inputs: Sequence[Any]) -> tuple[JobSpec, JobState | None]:
    """The checked spec, and the state that continue-as-new carries; None in a job's first run.

    Raises:
        ApplicationError: `InvalidJobSpec`, for good: unless there is one input that can be decoded and
            is a valid spec, which names the id that the workflow runs under.
    """
    if workflow.info().continued_run_id is not None and len(inputs) == 2:
        return _checked(inputs[0]), JobState.model_validate(inputs[1], strict=False)
    if len(inputs) != 1:
        raise _invalid(f"a job is started with one input, its spec as JSON, and not with {len(inputs)}")
    return _checked(inputs[0]), None


def _checked(data: Any) -> JobSpec:
    if isinstance(data, RawValue):
        encoding = data.payload.metadata.get("encoding", b"none")
        raise _invalid(
            f"the input, {len(data.payload.data)} bytes of encoding {encoding!r}, cannot be decoded: a job "
            f"spec is JSON of encoding json/plain. It begins with {data.payload.data[:60]!r}"
        )
    try:
        spec = parse_job_spec(data)
    except InvalidJobSpec as error:
        raise _invalid(str(error)) from None
    if workflow.info().workflow_id != spec.key.workflow_id:
        raise _invalid(
            f"the workflow id is {workflow.info().workflow_id!r}, but the spec names "
            f"{spec.key.workflow_id!r}; "
            f"start it with --workflow-id {spec.key.workflow_id}"
        )
    return spec


def _invalid(message: str) -> ApplicationError:
    return ApplicationError(message, type="InvalidJobSpec", non_retryable=True)

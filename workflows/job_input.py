"""What a TrainJob was started with: anybody may start one, with whatever bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ..schemas.events import JobState
from ..schemas.job_spec import InvalidJobSpec, JobSpec, parse_job_spec


@dataclass(frozen=True)
class JobInput:
    """What a run begins with.

    Attributes:
        state: that continue-as-new carries; None in the other runs.
        resumed: changes with which a job goes on that has ended, by path; None in a new job.
    """

    spec: JobSpec
    state: JobState | None = None
    resumed: dict[str, Any] | None = None


def job_input(inputs: Sequence[Any]) -> JobInput:
    """Checks what a run was started with.

    A job is started with its spec. One that has ended goes on with its spec and `{"resume": changes}`,
    where the changes are as `set` takes them and may be `{}`.

    Raises:
        ApplicationError: `InvalidJobSpec`, for good: unless the inputs are these, can be decoded, and the
            spec is valid and names the id that the workflow runs under.
    """
    if not inputs:
        raise _invalid("a job is started with one input, its spec as JSON, and not with 0")
    if workflow.info().continued_run_id is not None and len(inputs) == 2:
        return JobInput(_checked(inputs[0]), state=JobState.model_validate(inputs[1], strict=False))
    match inputs[1:]:
        case []:
            return JobInput(_checked(inputs[0]))
        case [{"resume": dict(), **others}] if not others:
            return JobInput(_checked(inputs[0]), resumed=cast(dict[str, Any], inputs[1]["resume"]))
        case _:
            raise _invalid(
                f"a job is started with one input, its spec as JSON, and not with {len(inputs)}; one that "
                'has ended goes on with its spec and {"resume": {}}'
            )


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

"""The failure at the root of a chain of Temporal's errors, in one sentence with its place."""

from temporalio.client import WorkflowFailureError
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    ServerError,
    TerminatedError,
    TimeoutError,
)

from .snapshot import Status


def root_cause(error: BaseException) -> str:
    """Where it failed and why, for people."""
    places: list[str] = []
    while True:
        match error:
            case WorkflowFailureError():
                pass
            case ChildWorkflowError():
                places.append(error.workflow_id)
            case ActivityError():
                places.append(f"activity {error.activity_type}")
            case ServerError() if error.__cause__ is not None:
                pass  # Temporal's word for a failure that it cut to size
            case _:
                break
        if error.__cause__ is None:
            break
        error = error.__cause__
    if isinstance(error, TerminatedError) and not places and error.message:
        return error.message  # the job's status says the rest
    where = f"{', '.join(places[-2:])}: " if places else ""
    return where + _sentence(error)


def ended_as(error: WorkflowFailureError) -> Status:
    """How a workflow ended that raises this."""
    match error.cause:
        case CancelledError():
            return "cancelled"
        case TerminatedError():
            return "terminated"
        case TimeoutError():
            return "timed out"
        case _:
            return "failed"


def _sentence(error: BaseException) -> str:
    match error:
        case ServerError() if error.__cause__ is not None:
            return _sentence(error.__cause__)
        case ApplicationError():
            return f"{error.type}: {error.message}" if error.type else error.message
        case TimeoutError():
            kind = error.type.name.lower().replace("_", "-") if error.type else "some"
            before = f"; the last failure was {_sentence(error.__cause__)}" if error.__cause__ else ""
            return f"{_TIMEOUTS.get(kind, f'{kind} timeout')}{before}"
        case CancelledError():
            return "cancelled"
        case TerminatedError():
            return f"terminated: {error.message}" if error.message else "terminated"
        case _:
            return f"{type(error).__name__}: {error}"


_TIMEOUTS = {
    "heartbeat": "its worker was lost (no heartbeat)",
    "schedule-to-close": "no worker ended it in time (durability.give_up_hours)",
}

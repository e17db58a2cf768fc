"""Causes of failures as Temporal hands them out."""

from marlaas.jobs.failure_cause import root_cause
from temporalio.exceptions import ApplicationError, ServerError, TimeoutError, TimeoutType


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_a_failure_that_was_cut_to_size_keeps_its_cause() -> None:
    cause = ApplicationError("2 errors", type="ValidationError")
    cut = caused(ServerError("Failure exceeds size limit."), cause)
    assert root_cause(cut) == "ValidationError: 2 errors"
    late = TimeoutError("", type=TimeoutType.SCHEDULE_TO_CLOSE, last_heartbeat_details=[])
    assert root_cause(caused(late, cut)).endswith("; the last failure was ValidationError: 2 errors")
    assert root_cause(ServerError("down")) == "ServerError: down"

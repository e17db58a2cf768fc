"""What the SDK raises. Every message says what is wrong, where, and what to do."""

from ..schemas.names import JobKey


class JobError(Exception):
    """A job cannot be started, found, changed or exported as asked."""


class InvalidJobName(JobError):
    """A job's name is not of the form tenant/job."""


class InvalidJobFile(JobError):
    """A job file cannot be read; the message has the file, and line and column where there are any."""


class JobExists(JobError):
    """The job's name is taken; the message says by what."""


class JobNotFound(JobError):
    """There is no such job, or Temporal keeps nothing of it any more."""


class JobOver(JobError):
    """A job that has ended cannot be changed."""


class JobFailed(JobError):
    """A job ended without a result.

    Attributes:
        job: its name.
        status: how it ended.
        cause: the failure at the root, with the place where it happened.
    """

    def __init__(self, job: JobKey, status: str, cause: str) -> None:
        super().__init__(f"job {job} {status}" + ("" if cause == status else f": {cause}"))
        self.job = job
        self.status = status
        self.cause = cause


class ExportRefused(JobError):
    """An adapter cannot be exported to where it was asked for."""


class ServiceUnreachable(Exception):
    """Temporal does not answer, or refuses to; the message has its address.

    Attributes:
        may_recover: whether it may answer later.
    """

    def __init__(self, message: str, *, may_recover: bool = True) -> None:
        super().__init__(message)
        self.may_recover = may_recover

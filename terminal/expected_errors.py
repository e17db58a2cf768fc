"""Errors that people cause or can mend: shown as a message, not as a traceback."""


def exit_code(error: BaseException) -> int | None:
    """2 for bad input, 1 for what failed, None for what nobody expected: that is a bug of ours."""
    from ..jobs.errors import InvalidJobFile, InvalidJobName, JobError, ServiceUnreachable
    from ..schemas.job_spec import InvalidJobSpec
    from ..storage.documents import UnreadableDocument
    from ..storage.object_store import CorruptBlob, MissingBlob, StoreRefused, StoreUnavailable
    from ..workers.stack_file import StackError

    match error:
        case InvalidJobName() | InvalidJobFile() | InvalidJobSpec():
            return 2
        case JobError() | ServiceUnreachable() | StackError() | OSError():
            return 1
        case UnreadableDocument() | CorruptBlob() | MissingBlob() | StoreRefused() | StoreUnavailable():
            return 1
        case _:
            return None

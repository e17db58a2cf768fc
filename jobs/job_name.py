"""A job's name as people write it."""

from pydantic import ValidationError

from ..schemas.names import JobKey
from .errors import InvalidJobName


def job_key(name: str) -> JobKey:
    """The key in a name of the form `tenant/job`.

    Raises:
        InvalidJobName: when it has another form.
    """
    try:
        return JobKey.parse(name)
    except ValidationError:
        raise InvalidJobName(
            f"{name!r} is not the name of a job: write tenant/job, for example acme/sums, each part 1 to 63 "
            "of a-z, 0-9 and '-', with no '-' at either end"
        ) from None

"""The embedded object store's credentials: made once, kept in the data folder."""

import secrets
from pathlib import Path

from pydantic import ValidationError

from ..schemas.contract import Document
from .stack_file import StackError, write_atomically


class S3Credentials(Document):
    """An access key and its secret."""

    access_key: str
    secret_key: str


def read_credentials(data: Path) -> S3Credentials:
    """Reads the data folder's credentials.

    Raises:
        StackError: when there is no file, or it does not hold any.
    """
    path = _path(data)
    try:
        return S3Credentials.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError) as error:
        raise StackError(
            f"{path} holds no credentials: {error}\nDelete it and run `marlaas up`, which makes new ones."
        ) from error


def make_credentials(data: Path) -> S3Credentials:
    """The data folder's credentials, made when there are none. For the holder of the folder's lock."""
    if not _path(data).exists():
        made = S3Credentials(
            access_key=f"marlaas-{secrets.token_hex(8)}", secret_key=secrets.token_urlsafe(32)
        )
        write_atomically(_path(data), made.model_dump_json() + "\n")
    return read_credentials(data)


def _path(data: Path) -> Path:
    return data / "s3-credentials.json"

"""Reads stored documents, and names those that cannot be read."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ..schemas.contract import Document

D = TypeVar("D", bound=Document)


class UnreadableDocument(Exception):
    """Stored bytes are not the document that stands at their key, or are of a newer format."""


class _Written(BaseModel):
    format: int


def decode(model: type[D], data: bytes, where: str) -> D:
    """Parses a stored document.

    Args:
        model: the kind of document that is expected.
        data: JSON, as stored.
        where: named in errors: the bucket and key, or the stream's subject.

    Raises:
        UnreadableDocument: names the place, and the format when that is not this code's.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        written = _written_format(data)
        if written not in (None, model.FORMAT):
            raise UnreadableDocument(
                f"{where}: {model.__name__} has format {written}; this version of marlaas reads format "
                f"{model.FORMAT}. Read it with the version that wrote it, or a newer one"
            ) from error
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the document"
        raise UnreadableDocument(
            f"{where}: not a {model.__name__}: {field}: {first['msg']} ({error.error_count()} faults in all)"
        ) from error


def _written_format(data: bytes) -> int | None:
    try:
        return _Written.model_validate_json(data).format
    except ValidationError:
        return None

"""Prompts from a JSONL file of OpenAI-style messages."""

import errno
import json
import math
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

from ..schemas.dataset import Message, Row
from .invalid import InvalidEnvironment

_PATH = "environment.path"
_ROLES = ("system", "user", "assistant")
_NO_SUCH_FILE = {errno.ENOENT, errno.EISDIR, errno.EACCES, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}


def read_jsonl(path: str) -> list[Row]:
    """The rows of a file, in its order; lines that are blank are skipped.

    Every line is an object with `messages`, whose last is the user's; its other fields are kept as
    they are and go to the reward. UTF-8, with or without a byte order mark.

    Raises:
        InvalidEnvironment: when the file cannot be read or a line is wrong; it names the line.
        OSError: when reading failed for a reason that may pass.
    """
    try:
        if Path(path).is_fifo() or Path(path).is_char_device() or Path(path).is_socket():
            raise InvalidEnvironment(_PATH, f"{path!r} is no file that can be read to its end")
        data = Path(path).read_bytes()
    except (OSError, ValueError) as fault:
        if isinstance(fault, OSError) and fault.errno not in _NO_SUCH_FILE:
            raise
        raise InvalidEnvironment(_PATH, f"{path!r} cannot be read: {fault}") from fault
    rows = list(_rows(path, data.removeprefix(b"\xef\xbb\xbf")))
    if not rows:
        raise InvalidEnvironment(_PATH, f"{path!r} has no rows; every line is an object with 'messages'")
    return rows


def _rows(path: str, data: bytes) -> Iterator[Row]:
    # Only \n ends a line: str.splitlines would also cut at characters that JSON strings may hold.
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            yield _row(number, line)
        except _WrongLine as fault:
            raise InvalidEnvironment(_PATH, f"{path!r}, line {number}: {fault}") from fault


class _WrongLine(Exception):
    pass


def _row(number: int, line: bytes) -> Row:
    fields = _parse(line)
    if not isinstance(fields, dict):
        raise _WrongLine(f"is {_kind(fields)}; every line is an object with 'messages'")
    fields = cast(dict[str, Any], fields)
    if "messages" not in fields:
        raise _WrongLine(f"has no 'messages'; its fields are {', '.join(map(repr, fields)) or 'none'}")
    if "completion" in fields:
        raise _WrongLine("has a field 'completion', the name of the reward's first argument; give it another")
    return Row(source=f"line {number}", messages=_messages(fields.pop("messages")), fields=fields)


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        found = _kind(cast(object, value))
        raise _WrongLine(f"messages is {found}; it has to be a list of {{role, content}} with at least one")
    messages = tuple(_message(index, message) for index, message in enumerate(cast(list[Any], value)))
    if messages[-1].role != "user":
        raise _WrongLine(
            f"the last message has role {messages[-1].role!r}; it has to be 'user', since the policy writes "
            "what follows"
        )
    return messages


def _message(index: int, value: Any) -> Message:
    where = f"messages[{index}]"
    if not isinstance(value, dict):
        raise _WrongLine(f"{where} is {_kind(value)}; it has to be an object with role and content")
    message = cast(dict[str, Any], value)
    if set(message) != {"role", "content"}:
        found = ", ".join(map(repr, message)) or "none"
        raise _WrongLine(f"{where} has the fields {found}; it has to have 'role' and 'content' and no other")
    role, content = message["role"], message["content"]
    if role not in _ROLES:
        raise _WrongLine(f"{where}.role is {reprlib.repr(role)}; allowed are {', '.join(_ROLES)}")
    if not isinstance(content, str) or not content.strip():
        problem = "empty" if isinstance(content, str) else _kind(content)
        raise _WrongLine(f"{where}.content is {problem}; it has to be text that is not blank")
    return Message(role=role, content=content)


def _parse(line: bytes) -> Any:
    """The JSON value of a line; refuses what cannot be stored and returned unchanged."""
    try:
        text = line.decode()
    except UnicodeDecodeError as fault:
        raise _WrongLine(f"is not UTF-8 at byte {fault.start + 1}") from fault
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as fault:
        raise _WrongLine(f"is no JSON: {fault.msg} at column {fault.colno}") from fault
    except UnicodeEncodeError as fault:
        raise _WrongLine("has half of a surrogate pair (\\ud800 to \\udfff), which is no text") from fault
    except (ValueError, RecursionError) as fault:
        raise _WrongLine(f"cannot be stored: {fault}") from fault
    return value


def _no_number(text: str) -> NoReturn:
    raise _WrongLine(f"has the number {text}, which JSON does not know")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _WrongLine(f"has the number {text[:50]}, which is too large")
    return value


def _kind(value: object) -> str:
    if value == []:
        return "an empty list"
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a number")

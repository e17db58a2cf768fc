"""What a row of prompts has to be, whatever file it comes from."""

import json
import reprlib
from collections.abc import Iterable
from typing import Any, cast

from ..schemas.dataset import Message, Row
from .invalid import InvalidEnvironment

PATH = "environment.path"
MOST_ROWS = 1_000_000
MOST_BYTES = 1 << 28
"""Of all rows together, as JSON: a dataset is one message between processes, and one blob."""
_TOLD = 10
_LONGEST = 500
_ROLES = ("system", "user", "assistant")


class WrongRow(Exception):
    """What is wrong with a row, in words that follow its place."""


def checked_rows(path: str, read: Iterable[tuple[str, object]], prompt_field: str | None) -> list[Row]:
    """The rows of a source, in its order.

    A row is an object with the prompt in `prompt_field`: text that is one user message, or a list of
    {role, content} whose last is the user's. Without a `prompt_field` it is in `messages`, or in `prompt`
    where there is no `messages`. Its other fields are kept as they are and go to the reward.

    Args:
        read: each row's place and its value, or the WrongRow that kept it from being read.

    Raises:
        InvalidEnvironment: naming the first ten wrong rows, or the limit that all rows together pass.
    """
    rows: list[Row] = []
    told: list[str] = []
    wrong = size = 0
    ids: dict[str, str] = {}
    for source, value in read:
        try:
            row, length = _checked(source, value, prompt_field)
            size += length
            _require_new_id(row, ids)
            rows.append(row)
        except WrongRow as fault:
            wrong += 1
            if len(told) < _TOLD:
                told.append(f"{source}: {str(fault)[:_LONGEST]}")
        if len(rows) + wrong > MOST_ROWS or size > MOST_BYTES:
            raise InvalidEnvironment(
                PATH,
                f"{path!r} is too big at {source}: at most {MOST_ROWS:,} rows, and {MOST_BYTES:,} bytes of "
                "them as JSON; take fewer, or leave out columns that the reward does not need",
            )
    if wrong:
        raise InvalidEnvironment(PATH, _told(path, told, wrong))
    if not rows:
        raise InvalidEnvironment(PATH, f"{path!r} has no rows; every row has 'messages' or a 'prompt'")
    return rows


def kind_of(value: object) -> str:
    """What a value is, in JSON's words, without showing it."""
    if value == []:
        return "an empty list"
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a number")


def _told(path: str, told: list[str], wrong: int) -> str:
    if wrong == 1:
        return f"{path!r}, {told[0]}"
    more = [f"and {wrong - len(told)} more"] if wrong > len(told) else []
    return "\n  ".join([f"{path!r} has {wrong} wrong rows:", *told, *more])


def _checked(source: str, value: object, prompt_field: str | None) -> tuple[Row, int]:
    """The row, and its length as JSON in bytes."""
    if isinstance(value, WrongRow):
        raise value
    if not isinstance(value, dict):
        raise WrongRow(f"is {kind_of(value)}; every row is an object with 'messages' or a 'prompt'")
    fields = dict(cast(dict[str, Any], value))
    length = sum(_length(name, one) for name, one in fields.items())
    column = prompt_field or ("prompt" if "prompt" in fields and "messages" not in fields else "messages")
    if column not in fields:
        lacking = f"no {prompt_field!r}" if prompt_field else "neither 'messages' nor 'prompt'"
        raise WrongRow(f"has {lacking}; its fields are {', '.join(map(repr, fields)) or 'none'}")
    prompt = fields.pop(column)
    for name, meaning in (("completion", "the completion"), ("messages", "the prompt")):
        if name in fields:
            raise WrongRow(f"has a field {name!r}, by which the reward is given {meaning}; rename the field")
    return Row(source=source, messages=_messages(column, prompt), fields=fields), length


def _require_new_id(row: Row, ids: dict[str, str]) -> None:
    value = row.fields.get("id")
    if value is None:
        return
    before = ids.setdefault(json.dumps(value), row.source)
    if before != row.source:
        raise WrongRow(f"has the id {reprlib.repr(value)}, which {before} has too")


def _messages(column: str, value: Any) -> tuple[Message, ...]:
    if isinstance(value, str) and column != "messages":
        return (Message(role="user", content=_text(column, value)),)
    if not isinstance(value, list) or not value:
        text = "" if column == "messages" else "text, or "
        raise WrongRow(
            f"{column} is {kind_of(cast(object, value))}; it has to be {text}a list of {{role, content}} "
            "with at least one"
        )
    messages = tuple(
        _message(f"{column}[{index}]", message) for index, message in enumerate(cast(list[Any], value))
    )
    if messages[-1].role != "user":
        raise WrongRow(
            f"the last message has role {messages[-1].role!r}; it has to be 'user', since the policy writes "
            "what follows"
        )
    return messages


def _message(where: str, value: Any) -> Message:
    if not isinstance(value, dict):
        raise WrongRow(f"{where} is {kind_of(value)}; it has to be an object with role and content")
    message = cast(dict[str, Any], value)
    if set(message) != {"role", "content"}:
        found = ", ".join(map(repr, message)) or "none"
        raise WrongRow(f"{where} has the fields {found}; it has to have 'role' and 'content' and no other")
    role = message["role"]
    if role not in _ROLES:
        raise WrongRow(f"{where}.role is {reprlib.repr(role)}; allowed are {', '.join(_ROLES)}")
    return Message(role=role, content=_text(f"{where}.content", message["content"]))


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        problem = "empty" if isinstance(value, str) else kind_of(value)
        raise WrongRow(f"{where} is {problem}; it has to be text that is not blank")
    return value


def _length(name: str, value: object) -> int:
    try:
        return len(json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode())
    except UnicodeEncodeError as fault:
        raise WrongRow("has half of a surrogate pair (\\ud800 to \\udfff), which is no text") from fault
    except (ValueError, RecursionError) as fault:
        raise WrongRow(f"{name} cannot be stored: {fault}") from fault

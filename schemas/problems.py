"""Validation errors in words: the field's path, its value, and what is allowed there."""

import difflib
import inspect
import json
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from .contract import LABEL_PATTERN, TENANT_PATTERN

_IN_WORDS = {
    pattern: f"should be a DNS label: 1 to {most} of a-z, 0-9 and '-', with no '-' at either end"
    for pattern, most in ((LABEL_PATTERN, 63), (TENANT_PATTERN, 55))
}


_MOST_LINES = 30
_LONGEST_LINE = 500
"""A spec may be wrong in thousands of places, and Temporal keeps no message of that size."""


def problem_lines(errors: Sequence[ErrorDetails], model: type[BaseModel]) -> list[str]:
    """The errors of the validation of `model`, a line for each; of very many, the first."""
    lines = [_cut(in_words(one, model), _LONGEST_LINE) for one in errors[:_MOST_LINES]]
    more = len(errors) - len(lines)
    return [*lines, f"and {more} more"] if more else lines


def in_words(error: ErrorDetails, model: type[BaseModel]) -> str:
    """One error of the validation of `model`, in one line, with the path as the person wrote it."""
    path, owner = _walk(model, error["loc"])
    where = ".".join(path)
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return f"{where} is missing"
        case "extra_forbidden":
            return f"{where} is not a known field{_suggestion(path[-1], owner)}"
        case "value_error" | "assertion_error":
            # Raised by our validators, whose text names the value.
            text = f"{context.get('error', error['msg'])}"
            return f"{where}: {text}" if where else text
        case "union_tag_not_found":
            return f"{where}.{_bare(context['discriminator'])} is missing; it says which fields there are"
        case "union_tag_invalid":
            kind = _bare(context["discriminator"])
            return (
                f"{where}.{kind} is {shortened(context['tag'])}: should be one of {context['expected_tags']}"
            )
        case "string_pattern_mismatch" if context["pattern"] in _IN_WORDS:
            allowed = _IN_WORDS[context["pattern"]]
        case _:
            allowed = error["msg"].removeprefix("Input ")
    return f"{where} is {shortened(error['input'])}: {allowed}"


def _walk(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], type[BaseModel] | None]:
    """The path without the tags that pydantic puts after a union's name, and the model of its last field."""
    path: list[str] = []
    models: list[type[BaseModel]] = [model]
    owner: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int):  # a place in a list, whose elements these are models of
            path.append(str(part))
            continue
        if len(models) > 1:  # a tag, which a field of that name may follow
            models = [one for one in models if part in _tags(one)] or models
            continue
        owner = models[0] if len(models) == 1 else None
        field = owner.model_fields.get(part) if owner else None
        models = _models(field.annotation) if field else []
        path.append(part)
    return path, owner


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    """What the field `kind` may be: the tags of a variant of a union."""
    kind = model.model_fields.get("kind")
    return get_args(kind.annotation) if kind else ()


def _models(annotation: Any) -> list[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for one in get_args(annotation) for model in _models(one)]


def _suggestion(name: str, owner: type[BaseModel] | None) -> str:
    if owner is None:
        return ""
    known = list(owner.model_fields)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; the fields here are {', '.join(known)}"


def _bare(discriminator: str) -> str:
    return discriminator.strip("'")


def shortened(value: Any) -> str:
    """A value as JSON, in at most 80 characters, whatever it is."""
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        # A number of thousands of digits, for one, is a number that Python does not write down.
        return f"a {type(value).__name__} ({error})"
    return _cut(text, 80)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."

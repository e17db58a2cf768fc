"""Changes of a job spec as a person writes them on the command line."""

import json
from collections.abc import Iterable
from typing import Any

import typer


def parse_changes(given: Iterable[str]) -> dict[str, Any]:
    """Values by path, from words of the form `path=value`. Whether they may be set, the job says.

    Raises:
        typer.BadParameter: when a word is not of this form, or its value is no number.
    """
    values: dict[str, Any] = {}
    for word in given:
        path, equals, text = word.partition("=")
        if not equals or not path:
            raise typer.BadParameter(f"{word!r} is not of the form path=value, as in steps=200")
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise typer.BadParameter(f"{path} is {text!r}: a number is needed")
        values[path] = value
    return values

"""Prompts from a JSONL file."""

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

from ..schemas.dataset import Row
from .row_check import WrongRow, checked_rows
from .source_file import read_source


def read_jsonl(path: str, prompt_field: str | None = None) -> list[Row]:
    """The rows of a file, in its order; lines that are blank are skipped.

    UTF-8, with or without a byte order mark.

    Raises:
        InvalidEnvironment: when the file cannot be read or lines are wrong; it names them.
        OSError: when reading failed for a reason that may pass.
    """
    return checked_rows(path, _lines(read_source(path).removeprefix(b"\xef\xbb\xbf")), prompt_field)


def _lines(data: bytes) -> Iterator[tuple[str, object]]:
    # Only \n ends a line: str.splitlines would also cut at characters that JSON strings may hold.
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield f"line {number}", _parse(line)


def _parse(line: bytes) -> Any:
    """The JSON value of a line, or why it has none that can be returned unchanged."""
    try:
        return json.loads(line.decode(), parse_constant=_no_number, parse_float=_finite)
    except WrongRow as fault:
        return fault
    except UnicodeDecodeError as fault:
        return WrongRow(f"is not UTF-8 at byte {fault.start + 1}")
    except json.JSONDecodeError as fault:
        return WrongRow(f"is no JSON: {fault.msg} at column {fault.colno}")
    except (ValueError, RecursionError) as fault:
        return WrongRow(f"cannot be stored: {fault}")


def _no_number(text: str) -> NoReturn:
    raise WrongRow(f"has the number {text}, which JSON does not know")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise WrongRow(f"has the number {text[:50]}, which is too large")
    return value

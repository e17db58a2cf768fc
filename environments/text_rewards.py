"""Parts of a reward that read the completion and one field of its row."""

import math
import re
import reprlib

from ..schemas.dataset import Row
from ..schemas.rewards import ExactPart, FormatPart, LengthPart, NumericPart
from .answers import extract_answer
from .reward import InvalidReward


def expected(row: Row, field: str) -> str | None:
    """What a field of a row holds, as text without blanks around it; None where it is null.

    Raises:
        InvalidReward: when there is no such field, or it holds neither text nor a number.
    """
    if field not in row.fields:
        raise InvalidReward(
            f"{row.source} has no field {field!r}; its fields are {', '.join(row.fields) or 'none'}"
        )
    value = row.fields[field]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidReward(
            f"{row.source}: the field {field!r} holds {reprlib.repr(value)}; text or a number is needed"
        )
    return str(value).strip()


def exact(part: ExactPart, row: Row, completion: str) -> float | None:
    """1.0 when the answer of the completion is the row's, else 0.0; None where the row has none."""
    right = expected(row, part.field)
    answer = extract_answer(completion, part.answer)
    return None if right is None else float(answer is not None and answer.strip() == right)


def numeric(part: NumericPart, row: Row, completion: str) -> float | None:
    """1.0 when the last number of the completion is the row's, else 0.0; None where the row has none.

    Raises:
        InvalidReward: when there is no finite number in the row's field.
    """
    text = expected(row, part.field)
    if text is None:
        return None
    right = _last_number(text)
    if right is None or not math.isfinite(right):
        raise InvalidReward(
            f"{row.source}: the field {part.field!r} holds {reprlib.repr(text)}, which has no number in it"
        )
    answer = _last_number(completion)
    return float(answer is not None and math.isclose(answer, right, rel_tol=0.0, abs_tol=part.tolerance))


def has_format(part: FormatPart, row: Row, completion: str) -> float:
    """1.0 when the pattern is found in the completion, else 0.0."""
    return float(re.search(part.pattern, completion) is not None)


def length(part: LengthPart, row: Row, completion: str) -> float:
    """1.0 for a length within the bounds, falling to 0.0 over the margin outside of them."""
    count = len(completion.split()) if part.unit == "words" else len(completion)
    outside = max(part.min - count, count - part.max if part.max is not None else 0, 0)
    if outside == 0:
        return 1.0
    return max(0.0, 1.0 - outside / part.margin) if part.margin else 0.0


def _last_number(text: str) -> float | None:
    found = extract_answer(text, "last-number")
    return None if found is None else float(found)

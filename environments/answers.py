"""What of a completion is handed to a scorer."""

import re
from collections import deque
from typing import Literal

Extraction = Literal["raw", "last-number", "last-line"]

_NUMBER = re.compile(
    r"""
    (?P<sign> (?<! [^\W_] ) (?<! [)\]%] ) [+\u2212-] )?   # none right after a letter or digit: 3-5, GPT-4
    (?: (?P<whole> [0-9]+ (?: ,[0-9]+ )* ) (?P<fraction> \.[0-9]+ )?
      | (?P<bare> (?<! [0-9.] ) \.[0-9]+ ) )
    (?P<exponent> [eE][+-]?[0-9]+ (?! \w ) )?
    """,
    re.VERBOSE,
)
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(,[0-9]{3})+")


def extract_answer(completion: str, extraction: Extraction) -> str | None:
    """The answer that a completion gives; None when it has none of the kind.

    `raw` is the completion itself, `last-line` its last line that is not blank, stripped, and
    `last-number` the last number in it, wherever it stands:

    - Digits are 0-9; a decimal part needs digits after its point, so `12.` ends a sentence. An
      exponent counts (`2e-3`).
    - Commas count as separators of thousands only where all of them fit: `1,234` is 1234, `1,2` and
      `12,34` end with the numbers 2 and 34. They are left out of the answer.
    - `-` (or `−`) is a sign unless a letter, a digit, a closing bracket or `%` stands right before
      it: `3-5` ends with 5, `3 -5`, `=-5` and `3*-5` with -5, `3 - 5` with 5.
    - `1/2` ends with 2, `50%` is 50.
    """
    match extraction:
        case "raw":
            return completion
        case "last-line":
            lines = completion.split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), None)
        case "last-number":
            return _last_number(completion)


def _last_number(text: str) -> str | None:
    matches = deque(_NUMBER.finditer(text), maxlen=1)
    if not matches:
        return None
    last = matches.pop()
    sign = "-" if last["sign"] in ("-", "\u2212") else ""
    whole = last["whole"] or "0"
    if _THOUSANDS.fullmatch(whole):
        whole = whole.replace(",", "")
    elif "," in whole:
        sign, whole = "", whole.rpartition(",")[2]
    return f"{sign}{whole}{last['fraction'] or last['bare'] or ''}{last['exponent'] or ''}"

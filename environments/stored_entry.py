"""Task entries as JSON text and back, without loss.

Scorers tell tuples from lists and look up integers in dictionaries, and plain JSON keeps neither: an
ARC grid read back as lists scores 0.05 where the right answer scored 1.
"""

import json
from typing import Any, cast

_TUPLE = "~tuple"
_PAIRS = "~pairs"


def encode_entry(entry: dict[str, Any]) -> str:
    """JSON text from which `decode_entry` makes an equal entry.

    Raises:
        ValueError: when the entry holds what cannot be kept.
    """
    try:
        text = json.dumps(_tagged(entry), separators=(",", ":"))
    except (TypeError, RecursionError) as fault:
        raise ValueError(str(fault)) from fault
    if decode_entry(text) != entry:
        raise ValueError("it is not equal to what JSON makes of it")
    return text


def decode_entry(text: str) -> dict[str, Any]:
    """The entry that `encode_entry` was given."""
    return json.loads(text, object_hook=_untagged)


def _tagged(value: Any) -> Any:
    match value:
        case tuple():
            return {_TUPLE: [_tagged(item) for item in cast(tuple[Any, ...], value)]}
        case list():
            return [_tagged(item) for item in cast(list[Any], value)]
        case dict():
            items = cast(dict[Any, Any], value).items()
            if all(isinstance(key, str) and not key.startswith("~") for key, _ in items):
                return {key: _tagged(item) for key, item in items}
            return {_PAIRS: [[_tagged(key), _tagged(item)] for key, item in items]}
        case _:
            return value


def _untagged(value: dict[str, Any]) -> Any:
    if _TUPLE in value:
        return tuple(value[_TUPLE])
    if _PAIRS in value:
        return dict(value[_PAIRS])
    return value

"""Stop strings: what they end, and the text that is left."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections import deque
from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerBase

from .chat import completion_text

_BEGINNING = 5
"""More tokens than a stop string has bytes: a character may be cut at the start of what is decoded, which
garbles up to 3 of them, and some tokenizers drop a blank there."""


class StopStrings:
    """The stop strings of a request, for a model's tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.strings = tuple(strings)
        added = tokenizer.added_tokens_decoder.items()
        self.special = frozenset(tokenizer.all_special_ids) | {i for i, token in added if token.special}

    def text(self, token_ids: Sequence[int]) -> str:
        """The completion as the reward reads it: without special tokens, up to the first stop string."""
        text = completion_text(self.tokenizer, token_ids)
        found = [place for place in map(text.find, self.strings) if place >= 0]
        return text[: min(found)] if found else text

    def in_text(self, token_ids: Iterable[int]) -> bool:
        """Whether the tokens' text has a stop string in it."""
        text = completion_text(self.tokenizer, token_ids)
        return any(string in text for string in self.strings)


class StopSearch:
    """Looks for stop strings at the end of one completion, while it grows.

    A token that is not special is at least a byte of the text, so as many tokens as the longest string has
    bytes hold all that a new token can complete. Only those are decoded for each token; all of the
    completion is where they hold a stop string.
    """

    def __init__(self, stop: StopStrings) -> None:
        self._stop = stop
        longest = max((len(string.encode()) for string in stop.strings), default=0)
        self._tail: deque[int] = deque(maxlen=longest + _BEGINNING)

    def ends(self, token_ids: Sequence[int]) -> bool:
        """Whether the last token completes a stop string. Called once for each token of a completion."""
        if not self._stop.strings or token_ids[-1] in self._stop.special:
            return False
        self._tail.append(token_ids[-1])
        return self._stop.in_text(self._tail) and self._stop.in_text(token_ids)

"""From chat messages to prompt tokens, once; nothing later is ever tokenised again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterable, Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

from ..schemas.dataset import Message


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """Renders messages with the model's chat template, ready for the assistant's turn.

    Returns:
        Token ids with the special tokens that the template writes and no others.

    Raises:
        ValueError: when the tokenizer has no chat template or the template refuses the messages.
    """
    if not tokenizer.chat_template:
        raise ValueError("the model's tokenizer has no chat template; choose an instruction-tuned model")
    text = cast(
        str,
        tokenizer.apply_chat_template(
            [message.model_dump() for message in messages], add_generation_prompt=True, tokenize=False
        ),
    )
    return tokenizer.encode(text, add_special_tokens=False)


def completion_text(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """Decodes a completion without its special tokens; bytes that form no character become U+FFFD."""
    text = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return cast(str, text)

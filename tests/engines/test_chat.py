"""Prompts hold what the chat template writes, once."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import copy
from typing import Any

from marlaas.engines.base_model import BaseModel
from marlaas.engines.chat import prompt_ids
from marlaas.schemas.dataset import Message
from tokenizers.processors import TemplateProcessing

MESSAGES = [Message(role="user", content="hi")]


def test_what_the_template_opens_is_opened_once(tiny: BaseModel) -> None:
    """CASES 62."""
    tokenizer: Any = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    text = tokenizer.decode(prompt_ids(tokenizer, MESSAGES))
    assert text.endswith("assistant\n<think>\n")
    assert text.count("<think>") == 1


def test_a_tokenizer_that_adds_a_beginning_adds_none_to_the_template_s(tiny: BaseModel) -> None:
    """CASES 65."""
    tokenizer: Any = copy.deepcopy(tiny.tokenizer)
    expected = prompt_ids(tokenizer, MESSAGES)
    (begin,) = tokenizer.encode("<|start|>", add_special_tokens=False)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", begin)]
    )
    assert tokenizer.encode("x")[0] == begin
    assert prompt_ids(tokenizer, MESSAGES) == expected
    assert expected[0] == begin != expected[1]

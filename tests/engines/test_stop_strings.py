"""Stop strings: found as soon as the text holds them, wherever tokens and characters are cut."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marlaas.engines.base_model import BaseModel
from marlaas.engines.chat import completion_text
from marlaas.engines.sampler import FinishedSample, Sampler
from marlaas.engines.stop_strings import StopSearch, StopStrings
from marlaas.schemas.job_spec import LoraSpec
from marlaas.tests.engines.sampling import Samples, group, load, sample, write_adapter
from transformers import AutoTokenizer, PreTrainedTokenizerBase


@pytest.fixture(scope="module")
def pieces(smollm2_folder: Path) -> PreTrainedTokenizerBase:
    """A tokenizer whose tokens are words, parts of words, runs of blanks and single bytes."""
    return AutoTokenizer.from_pretrained(smollm2_folder)


def end_of(tokenizer: Any, ids: Sequence[int], strings: Sequence[str]) -> int | None:
    """How many tokens a search takes until it stops; None when it never does."""
    search = StopSearch(StopStrings(tokenizer, strings))
    return next((n for n in range(1, len(ids) + 1) if search.ends(ids[:n])), None)


def slow_end_of(tokenizer: Any, ids: Sequence[int], strings: Sequence[str]) -> int | None:
    texts = (completion_text(tokenizer, ids[:n]) for n in range(1, len(ids) + 1))
    return next((n for n, text in enumerate(texts, 1) if any(string in text for string in strings)), None)


TEXT = "Let me see. 3 + 4 = 7 🙂🙃 and 数字 too\n\nThe answer: 7.  \n\nQuestion: next?"


@pytest.mark.parametrize(
    "strings",
    [
        ["\n\nQ"],
        ["answer"],
        ["swer: 7"],
        ["answer", "e answer"],
        ["🙂"],
        ["🙃 a"],
        ["数字"],
        ["字 too\n"],
        ["nowhere", "next?"],
        [TEXT[:64]],
        ["nowhere"],
        ["L"],
        [],
    ],
)
def test_a_stop_string_across_tokens_and_cut_characters(tiny: BaseModel, pieces: Any, strings: Any) -> None:
    """CASES 68, where a character's bytes come in several tokens."""
    for tokenizer in (tiny.tokenizer, pieces):
        ids = tokenizer.encode(TEXT, add_special_tokens=False)
        expected = slow_end_of(tokenizer, ids, strings)
        assert end_of(tokenizer, ids, strings) == expected
        if expected is not None:
            text = StopStrings(tokenizer, strings).text(ids[:expected])
            assert text == TEXT[: min(TEXT.find(string) for string in strings if string in TEXT)]


@pytest.mark.parametrize("seed", range(20))
def test_any_tokens_stop_where_their_whole_text_says(pieces: Any, seed: int) -> None:
    """Random tokens: broken characters, special tokens, blanks."""
    draw = np.random.default_rng(seed)
    ids = [*draw.integers(0, 400, 30), *draw.integers(0, len(pieces), 30)]
    draw.shuffle(ids)
    ids = [int(token) for token in ids]
    text = completion_text(pieces, ids).replace("\ufffd", " ")
    for _ in range(5):
        begin = int(draw.integers(0, len(text)))
        string = text[begin : begin + int(draw.integers(1, 20))]
        assert end_of(pieces, ids, [string]) == slow_end_of(pieces, ids, [string])


def test_special_tokens_between_do_not_count(tiny: BaseModel) -> None:
    (start,) = tiny.tokenizer.encode("<|start|>", add_special_tokens=False)
    a, b = tiny.tokenizer.encode("ab", add_special_tokens=False)
    ids = [a, *[start] * 40, b, a]
    assert end_of(tiny.tokenizer, ids, ["ab"]) == 42
    assert end_of(tiny.tokenizer, ids, ["start"]) is None


def test_what_is_decoded_for_a_token_does_not_grow(tiny: BaseModel, monkeypatch: Any) -> None:
    decoded: list[int] = []
    decode = type(tiny.tokenizer).decode

    def counting(self: Any, ids: Any, **options: Any) -> Any:
        decoded.append(len(ids))
        return decode(self, ids, **options)

    monkeypatch.setattr(type(tiny.tokenizer), "decode", counting)
    assert end_of(tiny.tokenizer, tiny.tokenizer.encode("x" * 500), ["\n\n", "stop"]) is None
    assert len(decoded) == 500
    assert max(decoded) <= 10


LORA = LoraSpec(rank=4)


class TestSampler:
    @pytest.fixture(scope="class")
    def sampler(self, tiny: BaseModel) -> Sampler:
        return Sampler(tiny, slots=16, context=96)

    @pytest.fixture(scope="class")
    def adapter(self, tiny: BaseModel, sampler: Sampler, tmp_path_factory: Any) -> Any:
        return load(sampler, write_adapter(tmp_path_factory.mktemp("adapter"), tiny, LORA, 1), LORA)

    def free(self, sampler: Sampler, adapter: Any) -> Samples:
        request = group("free", [5, 6, 7], adapter, seeds=range(12), max_tokens=60)
        return sample(sampler, [request])

    def test_a_sample_ends_with_the_stop_string_and_is_the_same_before(
        self, tiny: BaseModel, sampler: Sampler, adapter: Any
    ) -> None:
        free = self.free(sampler, adapter)
        long = next(one for one in free.values() if len(one.token_ids) > 30)
        stop = next(
            long.text[i : i + 2]
            for i in range(10, len(long.text))
            if "\ufffd" not in long.text[i : i + 2] and long.text.find(long.text[i : i + 2]) == i
        )
        found = sample(
            sampler, [group("stop", [5, 6, 7], adapter, seeds=range(12), max_tokens=60, stop=(stop,))]
        )
        alone = sample(
            sampler,
            [group("alone", [5, 6, 7], adapter, seeds=[long.sample], max_tokens=60, stop=(stop,))],
        )["alone", 0]
        ended = found["stop", long.sample]
        count = len(ended.token_ids)
        assert (ended.finish_reason, count) == ("stop", slow_end_of(tiny.tokenizer, long.token_ids, [stop]))
        assert ended.token_ids == long.token_ids[:count]
        assert ended.logprobs == long.logprobs[:count]
        assert ended.text == long.text[: long.text.find(stop)]
        assert (alone.token_ids, alone.logprobs, alone.text) == (ended.token_ids, ended.logprobs, ended.text)
        others = [one for one in free.values() if stop not in one.text]
        assert others
        for one in others:
            same = found["stop", one.sample]
            assert (same.token_ids, same.logprobs, same.text, same.finish_reason) == (
                one.token_ids,
                one.logprobs,
                one.text,
                one.finish_reason,
            )

    def test_a_stop_string_of_the_prompt_ends_nothing(
        self, tiny: BaseModel, sampler: Sampler, adapter: Any
    ) -> None:
        prompt = tiny.tokenizer.encode("say STOP", add_special_tokens=False)
        free = sample(sampler, [group("free", prompt, adapter, seeds=range(8), max_tokens=20)])
        first = {one.text[:1] for one in free.values()}
        stop = ("STOP", *("P" + text for text in first if text))
        found = sample(sampler, [group("stop", prompt, adapter, seeds=range(8), max_tokens=20, stop=stop)])
        for (_, number), one in free.items():
            assert found["stop", number].token_ids == one.token_ids

    def test_a_stop_string_at_the_limit_is_a_stop(
        self, tiny: BaseModel, sampler: Sampler, adapter: Any
    ) -> None:
        free = sample(sampler, [group("free", [5], adapter, seeds=range(32), max_tokens=12)])
        one = next(
            one for one in free.values() if slow_end_of(tiny.tokenizer, one.token_ids, [last(one)]) == 12
        )
        assert one.finish_reason == "length"
        found = sample(
            sampler, [group("stop", [5], adapter, seeds=[one.sample], max_tokens=12, stop=(last(one),))]
        )["stop", 0]
        assert (found.finish_reason, found.token_ids) == ("stop", one.token_ids)
        assert found.text == one.text[:-1]


def last(sample: FinishedSample) -> str:
    """The last character, and nothing like it where it is none."""
    return "nothing" if sample.text[-1:] in ("", "\ufffd") else sample.text[-1]

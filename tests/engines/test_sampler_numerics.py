"""What the sampler reports against plain transformers and PEFT, sequence by sequence."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from pathlib import Path

import pytest
import torch
from marlaas.engines import base_model
from marlaas.engines.base_model import BaseModel
from marlaas.engines.chat import prompt_ids
from marlaas.engines.lora import initial_adapter, target_layers
from marlaas.engines.sampler import GroupRequest, Sampler
from marlaas.schemas.dataset import Message
from marlaas.schemas.job_spec import LoraSpec
from marlaas.tests.engines.sampling import (
    PlainPolicy,
    finish,
    group,
    load,
    sample,
    save_adapter,
    write_adapter,
)
from transformers import AutoConfig, AutoModelForCausalLM

SPECS = (
    LoraSpec(rank=4, alpha=8.0),
    LoraSpec(rank=16, alpha=4.0, targets=("q_proj", "v_proj")),
    LoraSpec(rank=3, alpha=9.0, targets=("gate_proj", "down_proj", "o_proj")),
)


def mixed_groups(
    sampler: Sampler, adapters: list[tuple[Path, LoraSpec]], vocabulary: int
) -> list[GroupRequest]:
    """Prompts of 1 to 29 tokens, three temperatures and every adapter, in turn."""
    loaded = [load(sampler, path, lora) for path, lora in adapters]
    return [
        group(
            f"r{index}",
            [(7 * index + 13 * place) % vocabulary for place in range(1 + 4 * index)],
            loaded[index % len(loaded)],
            seeds=[10 * index, 10 * index + 1, 10 * index + 2],
            temperature=(1.0, 0.6, 0.0, 1.7)[index % 4],
            max_tokens=3 + 2 * index,
        )
        for index in range(8)
    ]


def test_logprobs_of_mixed_lengths_and_revisions_equal_a_full_forward_pass(
    tiny_double: BaseModel, tmp_path: Path
) -> None:
    """CASES 49 and 56."""
    adapters = [
        (write_adapter(tmp_path, tiny_double, lora, seed, 0.3), lora) for seed, lora in enumerate(SPECS)
    ]
    sampler = Sampler(tiny_double, slots=16, context=64)
    groups = mixed_groups(sampler, adapters, 259)
    found = sample(sampler, groups)
    references = [PlainPolicy(tiny_double, path, lora) for path, lora in adapters]
    for index, request in enumerate(groups):
        for number in range(3):
            differences = references[index % 3].differences(request, found[request.request, number])
            assert differences.max() < 1e-9


def test_smollm2_logprobs_equal_a_full_forward_pass(smollm2: BaseModel, tmp_path: Path) -> None:
    specs = (LoraSpec(), LoraSpec(rank=8, alpha=16.0, targets=("q_proj", "v_proj")))
    adapters = [(write_adapter(tmp_path, smollm2, lora, seed, 0.02), lora) for seed, lora in enumerate(specs)]
    sampler = Sampler(smollm2, slots=16, context=64)
    groups = [
        group(
            question,
            prompt_ids(smollm2.tokenizer, [Message(role="user", content=question)]),
            load(sampler, *adapters[index % 2]),
            seeds=[1, 2],
            temperature=(0.6, 1.0)[index // 2],
            max_tokens=8,
        )
        for index, question in enumerate(
            ["What is 3 + 4?", "Hi", "Name three colours of the sky, please.", "2+2"]
        )
    ]
    found = sample(sampler, groups)
    references = [PlainPolicy(smollm2, path, lora) for path, lora in adapters]
    differences = torch.cat(
        [
            references[index % 2].differences(request, found[request.request, number])
            for index, request in enumerate(groups)
            for number in range(2)
        ]
    )
    assert differences.max() < 2e-3
    assert differences.mean() < 1e-4


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_model_families(family: str, tiny: BaseModel, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=259,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        attention_bias=True,
        sliding_window=None,
        tie_word_embeddings=False,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    base = base_model.load(tmp_path, dtype=torch.float64)
    lora = LoraSpec(rank=4)
    path = write_adapter(tmp_path, base, lora, 0)
    sampler = Sampler(base, slots=16, context=64)
    reference = PlainPolicy(base, path, lora)
    for request in mixed_groups(sampler, [(path, lora)], 259):
        sampler.add(request)
        found = finish(sampler)
        assert reference.differences(request, found[request.request, 0]).max() < 1e-9


def test_version_zero_samples_the_base_model(tiny_double: BaseModel, tmp_path: Path) -> None:
    lora = LoraSpec()
    path = save_adapter(tmp_path, initial_adapter(target_layers(tiny_double.model, lora), lora, 0))
    sampler = Sampler(tiny_double, slots=16, context=64)
    request = group("r", [5, 6, 7], load(sampler, path, lora), max_tokens=20)
    found = sample(sampler, [request])["r", 0]
    with torch.no_grad():
        logits = tiny_double.model(input_ids=torch.tensor([[5, 6, 7, *found.token_ids]])).logits[0, 2:-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(found.token_ids)[:, None])[:, 0]
    assert torch.allclose(expected, torch.tensor(found.logprobs, dtype=torch.float64), rtol=0, atol=1e-9)


def test_alpha_scales_an_adapter_whose_file_is_in_memory(tiny_double: BaseModel, tmp_path: Path) -> None:
    weak, strong = LoraSpec(rank=4, alpha=4.0), LoraSpec(rank=4, alpha=16.0)
    path = write_adapter(tmp_path, tiny_double, weak, 0)
    sampler = Sampler(tiny_double, slots=16, context=64)
    requests = [group(name, [5, 6], load(sampler, path, lora)) for name, lora in (("w", weak), ("s", strong))]
    found = sample(sampler, requests)
    for request, lora in zip(requests, (weak, strong), strict=True):
        differences = PlainPolicy(tiny_double, path, lora).differences(request, found[request.request, 0])
        assert differences.max() < 1e-9


def test_greedy_decoding_takes_the_most_likely_token(tiny_double: BaseModel, tmp_path: Path) -> None:
    lora = LoraSpec(rank=4)
    path = write_adapter(tmp_path, tiny_double, lora, 0)
    sampler = Sampler(tiny_double, slots=16, context=64)
    request = group("r", [5, 6, 7], load(sampler, path, lora), temperature=0.0, max_tokens=20, seeds=[1, 2])
    found = sample(sampler, [request])
    assert found["r", 0].token_ids == found["r", 1].token_ids
    logits = PlainPolicy(tiny_double, path, lora).logits([5, 6, 7], found["r", 0].token_ids)
    assert logits.argmax(-1).tolist() == found["r", 0].token_ids


def test_tokens_follow_the_distribution(tiny: BaseModel, tmp_path: Path) -> None:
    """First and second tokens against exact probabilities, by chi-square."""
    lora = LoraSpec(rank=4)
    sampler = Sampler(tiny, slots=64, context=32)
    path = write_adapter(tmp_path, tiny, lora, 0, 0.3)
    count, temperature = 4000, 1.3
    adapter = load(sampler, path, lora)
    request = group("r", [9, 8], adapter, seeds=range(count), temperature=temperature, max_tokens=2)
    found = sample(sampler, [request])
    plain = PlainPolicy(tiny, path, lora)
    first = torch.softmax(plain.logits([9, 8], [0])[0] / temperature, -1)
    following = torch.stack(
        [torch.softmax(plain.logits([9, 8], [token, 0])[1] / temperature, -1) for token in range(len(first))]
    )
    following[list(tiny.stop_ids)] = 0
    for place, expected in ((0, first), (1, first @ following)):
        drawn = [one.token_ids[place] for one in found.values() if len(one.token_ids) > place]
        seen = torch.bincount(torch.tensor(drawn), minlength=len(expected))
        statistic = ((seen - count * expected) ** 2 / (count * expected)).sum()
        freedom = len(expected) - 1
        assert abs(statistic - freedom) < 4 * (2 * freedom) ** 0.5

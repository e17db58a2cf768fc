"""What the sampler does with requests, slots, limits, failures and adapter files."""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import gc
import shutil
from pathlib import Path

import psutil
import pytest
import torch
from marlaas.engines import base_model
from marlaas.engines.base_model import BaseModel, UnusableModel
from marlaas.engines.batched_lora import AdapterWeights
from marlaas.engines.chat import completion_text
from marlaas.engines.lora import initial_adapter, target_layers, tensor_names
from marlaas.engines.sampler import Sampler
from marlaas.schemas.job_spec import LoraSpec
from marlaas.tests.engines.sampling import finish, group, load, sample, save_adapter, write_adapter
from transformers import AutoConfig, AutoModelForCausalLM

LORA = LoraSpec(rank=4)


@pytest.fixture
def sampler(tiny: BaseModel) -> Sampler:
    return Sampler(tiny, slots=16, context=64)


@pytest.fixture
def adapter(sampler: Sampler, tiny: BaseModel, tmp_path: Path) -> AdapterWeights:
    return load(sampler, write_adapter(tmp_path, tiny, LORA, 0), LORA)


def layers(base: BaseModel) -> list[str]:
    return list(target_layers(base.model, LORA))


def test_a_stop_token_ends_a_sample_and_is_kept(
    tiny: BaseModel, sampler: Sampler, adapter: AdapterWeights
) -> None:
    """CASES 64."""
    found = sample(sampler, [group("r", [5], adapter, seeds=range(200), max_tokens=30)])
    stopped = [one for one in found.values() if one.finish_reason == "stop"]
    assert 0 < len(stopped) < 200
    for one in stopped:
        assert one.token_ids[-1] in tiny.stop_ids
        assert not tiny.stop_ids & set(one.token_ids[:-1])
        assert len(one.logprobs) == len(one.token_ids)
        assert one.logprobs[-1] < 0
    for one in found.values():
        if one.finish_reason == "length":
            assert len(one.token_ids) == 30
            assert not tiny.stop_ids & set(one.token_ids)


def test_a_stop_token_at_the_limit_counts_as_stop(
    tiny: BaseModel, sampler: Sampler, adapter: AdapterWeights
) -> None:
    found = sample(sampler, [group("r", [5], adapter, seeds=range(2000), max_tokens=1)])
    ends = {one.finish_reason: one.token_ids[0] for one in found.values()}
    assert ends["stop"] in tiny.stop_ids
    assert ends["length"] not in tiny.stop_ids


def test_more_samples_than_slots_and_slots_are_used_again_at_once(
    sampler: Sampler, adapter: AdapterWeights
) -> None:
    """Two groups of 16 with limits 2 and 20 in 16 slots need 1 + 19 passes, not more."""
    sampler.add(group("short", [5, 6], adapter, seeds=range(16), max_tokens=2))
    sampler.add(group("long", [5, 6], adapter, seeds=range(16), max_tokens=20))
    steps = 0
    finished: list[str] = []
    while not sampler.idle:
        finished += [one.request for one in sampler.step()]
        steps += 1
    assert finished == ["short"] * 16 + ["long"] * 16
    assert steps == 20


def test_groups_start_in_the_order_of_their_requests(sampler: Sampler, adapter: AdapterWeights) -> None:
    for name in ("b", "a", "c"):
        sampler.add(group(name, [5, 6], adapter, seeds=range(10), max_tokens=4))
    order: list[str] = []
    while not sampler.idle:
        order += [one.request for one in sampler.step()]
    assert order == ["b"] * 10 + ["a"] * 10 + ["c"] * 10


def test_a_prompt_runs_once_for_all_samples_of_its_group(
    sampler: Sampler, adapter: AdapterWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[int] = []
    real = sampler._decoder.prefill

    def counting(prompt_ids: list[int], weights: AdapterWeights) -> object:
        prompts.append(len(prompt_ids))
        return real(prompt_ids, weights)

    monkeypatch.setattr(sampler._decoder, "prefill", counting)
    assert len(sample(sampler, [group("r", [5, 6, 7], adapter, seeds=range(40))])) == 40
    assert prompts == [3]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"max_tokens": 62}, "3 prompt tokens and max_tokens 62 exceed the context of 64"),
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"seeds": []}, "0 seeds"),
        ({"prompt_ids": []}, "0 prompt tokens"),
        ({"prompt_ids": [5, 259]}, "prompt token 259 is not in the vocabulary of 259"),
        ({"prompt_ids": [-1]}, "prompt token -1 is not in the vocabulary"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"request": "first"}, "a request with this id is in flight"),
    ],
)
def test_a_request_that_cannot_be_sampled_is_refused(
    sampler: Sampler, adapter: AdapterWeights, change: dict[str, object], problem: str
) -> None:
    sampler.add(group("first", [5], adapter))
    arguments = {"request": "new", "prompt_ids": [5, 6, 7], "adapter": adapter, **change}
    with pytest.raises(ValueError, match=problem):
        sampler.add(group(**arguments))  # pyright: ignore[reportArgumentType]
    assert {one.request for one in finish(sampler).values()} == {"first"}


def test_the_longest_sequence_that_fits(sampler: Sampler, adapter: AdapterWeights) -> None:
    found = sample(sampler, [group("r", [5, 6, 7], adapter, seeds=range(20), max_tokens=61)])
    assert max(len(one.token_ids) for one in found.values()) == 61


def test_cancel_frees_slots_and_drops_what_waits(sampler: Sampler, adapter: AdapterWeights) -> None:
    sampler.add(group("gone", [5, 6], adapter, seeds=range(30), max_tokens=40))
    sampler.add(group("stays", [7, 8], adapter, seeds=range(4), max_tokens=5))
    sampler.add(group("also gone", [7, 8], adapter, seeds=range(4), max_tokens=5))
    sampler.step()
    sampler.cancel("gone")
    sampler.cancel("also gone")
    found = finish(sampler)
    assert {one.request for one in found.values()} == {"stays"}
    assert {key: one.logprobs for key, one in found.items()} == {
        key: one.logprobs
        for key, one in sample(
            sampler, [group("stays", [7, 8], adapter, seeds=range(4), max_tokens=5)]
        ).items()
    }


def test_logits_that_are_not_finite_fail_their_sample_only(
    tiny: BaseModel, sampler: Sampler, adapter: AdapterWeights, tmp_path: Path
) -> None:
    """CASES 55.

    The huge adapter's weights are finite, its products are not. Its slots serve again afterwards."""
    huge = load(sampler, write_adapter(tmp_path, tiny, LORA, 1, 1e36), LORA)
    good = group("good", [5, 6, 7], adapter, seeds=range(6), max_tokens=10)
    expected = sample(sampler, [good])
    sampler.add(group("bad", [5, 6, 7], huge, seeds=range(3)))
    found = sample(sampler, [good])
    for number in range(3):
        failed = found.pop(("bad", number))
        assert failed.finish_reason == "failed"
        assert failed.failure is not None
        assert "not finite" in failed.failure
        assert failed.token_ids == failed.logprobs == []
    assert found == expected


def test_a_slot_that_held_values_that_are_not_finite_serves_again(
    sampler: Sampler, adapter: AdapterWeights
) -> None:
    good = group("good", [5, 6, 7], adapter, seeds=range(16), max_tokens=10)
    expected = sample(sampler, [good])
    with torch.inference_mode():
        for keys, values in sampler._decoder.cache._states:
            keys.fill_(torch.nan)
            values.fill_(torch.inf)
    assert sample(sampler, [good]) == expected


def test_bytes_of_a_cut_character_stay_what_was_sampled(
    tiny: BaseModel, sampler: Sampler, adapter: AdapterWeights
) -> None:
    """CASES 68 and 59."""
    first_byte = tiny.tokenizer.encode("🙂", add_special_tokens=False)[0]
    found = sample(sampler, [group("r", [5], adapter, seeds=range(3000), max_tokens=1)])
    cut = [one.token_ids for one in found.values() if one.token_ids == [first_byte]]
    assert cut
    assert completion_text(tiny.tokenizer, cut[0]) == "\ufffd"


def test_an_adapter_file_is_read_once(tiny: BaseModel, sampler: Sampler, tmp_path: Path) -> None:
    """CASES 29: Not at every step."""
    path = write_adapter(tmp_path, tiny, LORA, 0)
    first = load(sampler, path, LORA)
    path.unlink()
    sampler.add(group("r", [5], first, max_tokens=12))
    for _ in range(10):
        assert load(sampler, path, LORA) is first
        sampler.step()


def test_adapters_are_told_apart_by_digest(tiny: BaseModel, sampler: Sampler, tmp_path: Path) -> None:
    """CASES 47 and 124: two files one after the other at one path: the second is another adapter."""
    path = tmp_path / "adapter"
    found: list[list[float]] = []
    for seed in range(2):
        shutil.copy(write_adapter(tmp_path, tiny, LORA, seed), path)
        weights = sampler.load_adapter(f"digest {seed}", path, LORA)
        found.append(sample(sampler, [group("r", [5, 6], weights)])["r", 0].logprobs)
    assert found[0] != found[1]


def test_adapters_in_use_are_kept_and_others_dropped(tiny: BaseModel, tmp_path: Path) -> None:
    """CASES 37: Until the last request ends."""
    sampler = Sampler(tiny, slots=16, context=64, adapters=2)
    paths = [write_adapter(tmp_path, tiny, LORA, seed) for seed in range(4)]
    used = load(sampler, paths[0], LORA)
    sampler.add(group("r", [5, 6], used, max_tokens=3))
    for path in paths[1:]:
        load(sampler, path, LORA)
    for path in paths[:3]:
        path.unlink()
    assert load(sampler, paths[0], LORA) is used
    load(sampler, paths[3], LORA)
    for path in paths[1:3]:
        with pytest.raises(UnusableModel, match="can't be read"):
            load(sampler, path, LORA)
    assert len(finish(sampler)) == 1


def test_renamed_tensors_are_refused_by_name(tiny: BaseModel, sampler: Sampler, tmp_path: Path) -> None:
    """CASES 31: An adapter that fits nothing is no adapter."""
    tensors = initial_adapter(target_layers(tiny.model, LORA), LORA, 0)
    path = save_adapter(tmp_path, {f"base_model.{name}": tensor for name, tensor in tensors.items()})
    name = tensor_names(layers(tiny)[0])[0]
    with pytest.raises(UnusableModel, match="does not fit") as refused:
        load(sampler, path, LORA)
    assert f"missing {name}" in str(refused.value)
    assert f"unknown base_model.{name}" in str(refused.value)


@pytest.mark.parametrize(
    "spec",
    [LoraSpec(rank=8), LoraSpec(rank=4, targets=("q_proj", "v_proj")), LoraSpec(rank=4, targets=("absent",))],
)
def test_an_adapter_of_another_spec_is_refused(
    tiny: BaseModel, sampler: Sampler, tmp_path: Path, spec: LoraSpec
) -> None:
    path = write_adapter(tmp_path, tiny, LORA, 0)
    with pytest.raises(UnusableModel, match=r"does not fit|no linear layer named absent"):
        load(sampler, path, spec)


def test_an_adapter_with_values_that_are_not_finite_is_refused(
    tiny: BaseModel, sampler: Sampler, tmp_path: Path
) -> None:
    tensors = initial_adapter(target_layers(tiny.model, LORA), LORA, 0)
    broken = tensor_names(layers(tiny)[3])[1]
    tensors[broken][0, 0] = torch.inf
    with pytest.raises(UnusableModel, match="not finite") as refused:
        load(sampler, save_adapter(tmp_path, tensors), LORA)
    assert broken in str(refused.value)


def test_a_model_whose_angles_depend_on_the_batch_is_refused(tiny: BaseModel, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(tiny.folder)
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UnusableModel, match="rope type 'dynamic'"):
        Sampler(base_model.load(tmp_path), slots=16, context=64)


def test_the_base_model_is_left_as_it_is(tiny: BaseModel, sampler: Sampler, adapter: AdapterWeights) -> None:
    """CASES 44."""
    before = tiny.model(input_ids=torch.tensor([[5, 6, 7]])).logits
    sample(sampler, [group("r", [5, 6, 7], adapter)])
    assert torch.equal(tiny.model(input_ids=torch.tensor([[5, 6, 7]])).logits, before)
    assert isinstance(tiny.model.get_submodule(layers(tiny)[0]), torch.nn.Linear)


def test_memory_stays_flat(tiny: BaseModel, sampler: Sampler, tmp_path: Path) -> None:
    """CASES 89."""
    paths = [write_adapter(tmp_path, tiny, LORA, seed) for seed in range(12)]
    process = psutil.Process()

    def work(rounds: int, prefix: str) -> tuple[int, int]:
        for number in range(rounds):
            weights = load(sampler, paths[number % len(paths)], LORA)
            sample(sampler, [group(f"{prefix}{number}", [5, 6, 7], weights, seeds=range(20), max_tokens=6)])
        gc.collect()
        tensors = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
        return tensors, process.memory_info().rss

    tensors, resident = work(24, "warm-up")
    later_tensors, later_resident = work(48, "later")  # more than 300 steps
    assert later_tensors == tensors
    assert later_resident - resident < 8 * 2**20

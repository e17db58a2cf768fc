"""A sample's tokens and log-probabilities are its own, to the bit, whatever shares the batch with it."""
# pyright: reportPrivateUsage=false

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from marlaas.engines.base_model import BaseModel
from marlaas.engines.batched_decoder import BatchedDecoder
from marlaas.engines.batched_lora import AdapterWeights
from marlaas.engines.sampler import GroupRequest, Sampler
from marlaas.schemas.job_spec import LoraSpec
from marlaas.tests.engines.sampling import Samples, finish, group, load, sample, write_adapter

SPECS = (LoraSpec(rank=4), LoraSpec(rank=16), LoraSpec(rank=3, targets=("q_proj", "down_proj")))


@pytest.fixture
def threads_restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def make_adapters(base: BaseModel, folder: Path) -> list[tuple[Path, LoraSpec]]:
    return [(write_adapter(folder, base, lora, seed, 0.05), lora) for seed, lora in enumerate(SPECS)]


def load_all(sampler: Sampler, adapters: list[tuple[Path, LoraSpec]]) -> list[AdapterWeights]:
    return [load(sampler, path, lora) for path, lora in adapters]


def busy_groups(adapters: list[AdapterWeights], *, groups: int, samples: int) -> list[GroupRequest]:
    """Of every length, temperature and adapter, with limits that end samples at different times."""
    return [
        group(
            f"r{index}",
            [3 + (7 * index + 13 * place) % 200 for place in range(1 + (5 * index) % 31)],
            adapters[index % len(adapters)],
            seeds=[100 * index + number for number in range(samples)],
            temperature=(1.0, 0.6, 0.0)[index % 3],
            max_tokens=1 + (4 * index) % 23,
        )
        for index in range(groups)
    ]


def one_at_a_time(sampler: Sampler, groups: list[GroupRequest]) -> Samples:
    """Every sample alone in the engine."""
    found: Samples = {}
    for one in groups:
        for number, seed in enumerate(one.seeds):
            alone = group(
                one.request,
                one.prompt_ids,
                one.adapter,
                seeds=[seed],
                temperature=one.temperature,
                max_tokens=one.max_tokens,
            )
            (finished,) = sample(sampler, [alone]).values()
            found[one.request, number] = finished
    return found


def same(left: Samples, right: Samples) -> bool:
    """Equal token ids and equal floats; a float equals itself only when its bits do (none is NaN or 0)."""
    return {key: (one.token_ids, one.logprobs, one.finish_reason) for key, one in left.items()} == {
        key: (one.token_ids, one.logprobs, one.finish_reason) for key, one in right.items()
    }


def test_alone_and_in_a_full_batch(tiny: BaseModel, tmp_path: Path) -> None:
    """CASES 67."""
    sampler = Sampler(tiny, slots=32, context=64)
    groups = busy_groups(load_all(sampler, make_adapters(tiny, tmp_path)), groups=16, samples=5)
    together = sample(sampler, groups)
    assert len(together) == 80
    assert same(together, one_at_a_time(sampler, groups))


def test_any_order_and_any_time_of_admission(tiny: BaseModel, tmp_path: Path) -> None:
    """So also any slot, and after any earlier occupant of it."""
    sampler = Sampler(tiny, slots=32, context=64)
    groups = busy_groups(load_all(sampler, make_adapters(tiny, tmp_path)), groups=16, samples=5)
    together = sample(sampler, groups)
    for seed in range(3):
        shuffled = random.Random(seed).sample(groups, len(groups))
        found: Samples = {}
        for one in shuffled:
            sampler.add(one)
            for _ in range(seed):
                found |= {(end.request, end.sample): end for end in sampler.step()}
        assert same(found | finish(sampler), together)


def test_a_sampler_without_exact_smaller_shapes_gives_the_same(
    tiny: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a processor where the number of rows changes bits: all slots run, other adapters' rows masked."""
    sampler = Sampler(tiny, slots=32, context=64)
    groups = busy_groups(load_all(sampler, make_adapters(tiny, tmp_path)), groups=16, samples=5)
    together = sample(sampler, groups)
    assert len(sampler._decoder._row_counts) > 1

    def never(decoder: BatchedDecoder, adapter: AdapterWeights) -> bool:
        return False

    monkeypatch.setattr(BatchedDecoder, "_can_be_cut", never)
    assert same(sample(sampler, groups), together)
    alone = groups[3]
    assert same(
        sample(sampler, [alone]), {key: one for key, one in together.items() if key[0] == alone.request}
    )


def test_number_of_slots_and_context_change_nothing_here(tiny: BaseModel, tmp_path: Path) -> None:
    """Not promised in general: it holds where smaller shapes are exact, as on this kind of processor."""
    adapters = make_adapters(tiny, tmp_path)
    found: list[Samples] = []
    for slots, context in ((16, 64), (48, 96)):
        sampler = Sampler(tiny, slots=slots, context=context)
        found.append(sample(sampler, busy_groups(load_all(sampler, adapters), groups=8, samples=3)))
    assert same(*found)


def test_a_new_sampler_repeats_the_bytes(tiny: BaseModel, tmp_path: Path) -> None:
    adapters = make_adapters(tiny, tmp_path)
    runs: list[Samples] = []
    for _ in range(2):
        sampler = Sampler(tiny, slots=32, context=64)
        runs.append(sample(sampler, busy_groups(load_all(sampler, adapters), groups=8, samples=5)))
    assert same(*runs)


@pytest.mark.usefixtures("threads_restored")
def test_smollm2_alone_in_a_full_batch_and_on_two_threads(smollm2: BaseModel, tmp_path: Path) -> None:
    """The shapes of a real model: fewer rows, fewer places and more threads must not change a bit."""
    adapters = make_adapters(smollm2, tmp_path)
    torch.set_num_threads(1)
    sampler = Sampler(smollm2, slots=32, context=64)
    groups = [
        group(
            f"r{index}",
            range(100, 103 + 13 * index),
            weights,
            seeds=range(8 * index, 11 * index + 4),
            temperature=(1.0, 0.0, 0.6)[index],
            max_tokens=3 + 2 * index,
        )
        for index, weights in enumerate(load_all(sampler, adapters))
    ]
    together = sample(sampler, groups)
    assert same(
        one_at_a_time(sampler, groups[:1]), {key: together[key] for key in together if key[0] == "r0"}
    )
    torch.set_num_threads(2)
    assert same(sample(sampler, groups[1:]), {key: together[key] for key in together if key[0] != "r0"})

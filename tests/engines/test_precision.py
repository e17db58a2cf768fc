"""A bfloat16 base model with a float32 adapter: against float32, and what stays float32."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marlaas.engines import base_model
from marlaas.engines.base_model import BaseModel
from marlaas.engines.sampler import Sampler
from marlaas.engines.trainer import Trainer
from marlaas.schemas.batch import Batch
from marlaas.tests.engines.sampling import group, load, sample, write_adapter
from marlaas.tests.engines.trainer_bench import SPEC, Bench, Revision, batch_number
from marlaas.tests.engines.training_batches import Sample, make_batch
from safetensors.torch import load_file

ROUNDING = 2.0**-8
"""Of a bfloat16 number, relative."""


@pytest.fixture(scope="module")
def half(tiny: BaseModel) -> BaseModel:
    return base_model.load(tiny.folder, dtype=torch.bfloat16)


def trained(base: BaseModel, folder: Path, batch: Batch) -> tuple[Revision, Any]:
    folder.mkdir()
    bench = Bench(Trainer(base), folder)
    return bench.step(bench.start(), batch)


def test_adapter_and_moments_stay_float32(half: BaseModel, tmp_path: Path) -> None:
    """Not bfloat16 numbers in float32's clothes either: some have bits that bfloat16 does not have."""
    written, _ = trained(half, tmp_path / "half", batch_number(0))
    for path in (written.adapter, written.optimizer):
        tensors = {name: t for name, t in load_file(path).items() if "lora" in name}
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
        for name, tensor in tensors.items():
            if tensor.any():
                assert not torch.equal(tensor, tensor.bfloat16().float()), name


def test_losses_and_gradients_are_near_those_in_float32(
    tiny: BaseModel, half: BaseModel, tmp_path: Path
) -> None:
    batch = batch_number(0)
    one, exact = trained(tiny, tmp_path / "single", batch)
    two, found = trained(half, tmp_path / "half", batch)
    assert found.loss == pytest.approx(exact.loss, rel=0.05, abs=4 * ROUNDING)
    assert found.entropy == pytest.approx(exact.entropy, rel=ROUNDING)
    assert found.grad_norm == pytest.approx(exact.grad_norm, rel=0.05)
    moments, expected = (
        torch.cat(
            [t.flatten() for n, t in sorted(load_file(r.optimizer).items()) if n.startswith("exp_avg.")]
        )
        for r in (two, one)
    )
    cosine = torch.nn.functional.cosine_similarity(moments, expected, dim=0)
    assert float(cosine) > 0.995


def test_a_small_step_is_not_rounded_away(half: BaseModel, tmp_path: Path) -> None:
    """Adapters in bfloat16 would stay as they are: a relative change below 2^-9 is no change there."""
    bench = Bench(Trainer(half), tmp_path)
    slow = SPEC.model_copy(update={"optimizer": SPEC.optimizer.model_copy(update={"learning_rate": 1e-6})})
    start = bench.start(slow)
    written, _ = bench.step(start, batch_number(0), slow)
    changed = [
        name
        for name, tensor in start.tensors.items()
        if "lora_B" in name and not torch.equal(written.tensors[name], tensor)
    ]
    assert changed
    second, _ = bench.step(written, batch_number(1), slow)
    moved = sum(int((second.tensors[n] != t).sum()) for n, t in written.tensors.items())
    assert moved > 0.9 * sum(t.numel() for t in written.tensors.values())


def test_sampler_and_trainer_agree(half: BaseModel, tmp_path: Path) -> None:
    """CASES 40: the float32 adapter is used as it is on both sides; both round logits to bfloat16."""
    sampler = Sampler(half, slots=16, context=64)
    path = write_adapter(tmp_path, half, SPEC.lora, 1)
    adapter = load(sampler, path, SPEC.lora)
    assert all(p.a.dtype == p.b.dtype == torch.float32 for p in adapter.products.values())
    prompts = [[5, 6, 7], [9] * 9]
    requests = [group(str(n), p, adapter, seeds=range(4), max_tokens=16) for n, p in enumerate(prompts)]
    found = sample(sampler, requests)
    batch = make_batch(
        [(p, [Sample(found[str(n), i].token_ids, float(i)) for i in range(4)]) for n, p in enumerate(prompts)]
    )
    logprobs = np.zeros(len(batch.mask), np.float32)
    logprobs[batch.mask == 1] = [
        value for n in range(2) for i in range(4) for value in found[str(n), i].logprobs
    ]
    bench = Bench(Trainer(half), tmp_path)
    _, metrics = bench.step(replace_adapter(bench.start(), path), replace(batch, logprobs=logprobs))
    assert 0 < metrics.logprob_gap_mean < 2 * ROUNDING
    assert metrics.logprob_gap_max < 16 * ROUNDING


def replace_adapter(revision: Revision, path: Path) -> Revision:
    revision.adapter.write_bytes(path.read_bytes())
    return revision


def test_rows_do_not_depend_on_their_neighbours(half: BaseModel, tmp_path: Path) -> None:
    sampler = Sampler(half, slots=16, context=64)
    one, two = (load(sampler, write_adapter(tmp_path, half, SPEC.lora, seed), SPEC.lora) for seed in (1, 2))
    alone = sample(sampler, [group("a", [5, 6, 7], one, seeds=[3], max_tokens=12)])["a", 0]
    crowd = [group(f"n{n}", [8 + n] * (n + 1), (one, two)[n % 2], seeds=range(2)) for n in range(6)]
    together = sample(sampler, [*crowd, group("a", [5, 6, 7], one, seeds=[3], max_tokens=12)])["a", 0]
    assert (alone.token_ids, alone.logprobs) == (together.token_ids, together.logprobs)

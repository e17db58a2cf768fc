"""Several updates in a step, their learning rates, and what they are held against."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marlaas.engines import base_model
from marlaas.engines.base_model import BaseModel, UnusableModel
from marlaas.engines.schedule import learning_rate
from marlaas.engines.trainer import Trainer
from marlaas.engines.update_steps import mini_batches
from marlaas.schemas.batch import Batch
from marlaas.tests.engines.plain_peft import plain_logprobs, with_adapter
from marlaas.tests.engines.slow_objective import slow_objective
from marlaas.tests.engines.trainer_bench import Bench, batch_number
from marlaas.tests.engines.training_batches import make_spec


def test_mini_batches_and_epochs_equal_adamw_on_their_losses(tiny_double: BaseModel, tmp_path: Path) -> None:
    """Ratios are against the log-probabilities before the first update; the rate has a warm-up."""
    spec = make_spec(
        lora={"rank": 4},
        steps=3,
        sampling={"groups_per_step": 6, "samples_per_group": 4, "max_tokens": 16},
        objective={"name": "dapo", "old": "trainer", "clip_low": 0.01, "clip_high": 0.01},
        optimizer={
            "learning_rate": 0.005,
            "epsilon": 1e-3,
            "mini_batches": 3,
            "epochs": 2,
            "schedule": "linear",
            "warmup_steps": 1,
            "final_share": 0.1,
        },
    )
    bench = Bench(Trainer(tiny_double), tmp_path)
    start = bench.start(spec)
    peft = with_adapter(base_model.load(tiny_double.folder, dtype=torch.float64).model, spec, start.tensors)
    parameters = [p for p in peft.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(parameters, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.0)
    revision, clipped = start, 0.0
    for version, rates in enumerate(
        [
            [0.005 * (u + 1) / 6 for u in range(6)],
            [0.005 * (0.1 + 0.9 * (1 - u / 12)) for u in range(6)],
        ]
    ):
        batch = batch_number(version, groups=6)
        revision, metrics = bench.step(revision, batch, spec, version)
        assert metrics.updates == 6
        assert metrics.learning_rate == pytest.approx(rates[-1])
        clipped += metrics.clipped_share
        with torch.no_grad():
            old = plain_logprobs(peft, batch)
        for rate, sequences in zip(rates, mini_batches(spec, batch, version), strict=True):
            adamw.zero_grad()
            new = plain_logprobs(peft, batch)
            slow_objective(spec, only(batch, sequences), new, new, old).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            adamw.param_groups[0]["lr"] = rate
            adamw.step()
    assert clipped > 0
    expected = {name.replace(".default", ""): p for name, p in peft.named_parameters() if p.requires_grad}
    for name, tensor in revision.tensors.items():
        np.testing.assert_allclose(tensor.numpy(), expected[name].detach().numpy(), rtol=1e-4, atol=1e-6)


def only(batch: Batch, sequences: np.ndarray[Any, Any]) -> Batch:
    """The batch with every other sequence counting for nothing."""
    kept = np.zeros_like(batch.valid)
    kept[sequences] = 1
    return replace(batch, valid=batch.valid * kept)


def test_mini_batches_are_whole_groups_each_once_an_epoch_in_an_order_of_the_seed() -> None:
    batch = batch_number(0, groups=7)
    spec = make_spec(
        sampling={"groups_per_step": 7, "samples_per_group": 4}, optimizer={"mini_batches": 3, "epochs": 2}
    )
    found = [set(batch.group[some].tolist()) for some in mini_batches(spec, batch, 5)]
    assert [len(some) for some in found] == [3, 2, 2] * 2
    assert set.union(*found[:3]) == set.union(*found[3:]) == set(range(7))
    assert found[:3] != found[3:]
    again = [set(batch.group[some].tolist()) for some in mini_batches(spec, batch, 5)]
    assert found == again
    whole = [some.tolist() for some in mini_batches(make_spec(), batch, 5)]
    assert whole == [list(range(28))]


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", [0.5, 1, 1, 0.892, 0.6, 0.308, 0.2]),
    ],
)
def test_learning_rates(schedule: str, rates: list[float]) -> None:
    """CASES 98.

    Six steps of one update, two of them warm-up, down to a fifth; the last figure is after the end."""
    spec = make_spec(
        optimizer={"learning_rate": 1.0, "schedule": schedule, "warmup_steps": 2, "final_share": 0.2}
    )
    found = [learning_rate(spec.optimizer, updates, 6) for updates in range(7)]
    cosine = 0.2 + 0.8 * (1 + np.cos(np.pi / 4)) / 2
    expected = [cosine if rate == 0.892 else 1.2 - cosine if rate == 0.308 else rate for rate in rates]
    assert found == pytest.approx(expected)


def test_an_update_that_makes_a_weight_infinite_is_not_written(bench: Bench) -> None:
    start = bench.start()
    spec = make_spec(lora={"rank": 4}, optimizer={"learning_rate": 1e39})
    after, metrics = bench.step(start, batch_number(0), spec)
    assert metrics.skip_reason == "a learning rate of 1e+39 makes a weight of the adapter infinite"
    assert after.digests == start.digests
    assert bench.step(start, batch_number(0))[1].skipped is False


def test_a_penalty_against_the_start_is_one_against_version_0(bench: Bench) -> None:
    """After a step, the start is another policy than the trained one."""
    spec = make_spec(lora={"rank": 4}, objective={"kl": {"coefficient": 0.5, "reference": "start"}})
    start = bench.start(spec)
    revision, _ = bench.step(start, batch_number(0))
    out = [bench.fresh() for _ in range(3)]
    args = (batch_number(1), 1, revision.adapter, revision.optimizer)
    against_start = bench.trainer.train(spec, *args, out[0], start.adapter)
    against_itself = bench.trainer.train(spec, *args, out[1], revision.adapter)
    base = make_spec(lora={"rank": 4}, objective={"kl": {"coefficient": 0.5}})
    against_base = bench.trainer.train(base, *args, out[2])
    assert against_itself.kl == pytest.approx(0, abs=1e-9)
    assert against_start.kl is not None
    assert against_start.kl > 1e-6
    assert against_start.kl == against_base.kl  # version 0 is the base model
    with pytest.raises(UnusableModel, match="version 0's adapter is not given"):
        bench.trainer.train(spec, *args, bench.fresh())

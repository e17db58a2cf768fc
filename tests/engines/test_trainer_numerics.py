"""Gradients of packed training against plain PEFT, one sequence at a time."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from marlaas.engines import base_model
from marlaas.engines.base_model import BaseModel
from marlaas.engines.learning_signal import PolicyTokens
from marlaas.engines.packing import pack
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec
from marlaas.schemas.objective import AdvantageName, ObjectiveName
from marlaas.tests.engines.peft_policy import Policy, near_the_policy, precise_model
from marlaas.tests.engines.slow_objective import slow_objective
from marlaas.tests.engines.training_batches import Sample, make_batch, make_spec, random_batch


@pytest.fixture(scope="module")
def precise(tiny: BaseModel) -> Policy:
    return Policy.on(precise_model(tiny.folder))


def reference(policy: Policy, spec: JobSpec, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient by `slow_objective`, from a forward pass per sequence."""
    temperature = spec.sampling.temperature
    new = policy.logprobs(batch, temperature)
    with policy.peft.disable_adapter(), torch.no_grad():
        base = policy.logprobs(batch, temperature)
    loss = slow_objective(spec, batch, new, base)
    loss.backward()
    return loss.item(), policy.gradients()


def odd_batch() -> Batch:
    """What a real step contains: prompts of several lengths, failures, empty, truncated, equal rewards."""
    return make_batch(
        [
            ([5, 6, 7, 8], [Sample([9, 10, 2], 1.0), Sample([11, 2], 0.0), Sample([12, 13, 14], 0.5)]),
            (list(range(20, 33)), [Sample([40, 41, 2], 1.0), Sample([42], None), Sample([43, 44], 0.25)]),
            ([5], [Sample([6] * 12, 0.0, truncated=True), Sample([7, 2], 1.0), Sample([], 0.0)]),
            ([5, 6], [Sample([9, 9], 1.0), Sample([8, 2], 1.0), Sample([7], 1.0)]),
            ([9, 8, 7], [Sample([50, 51], None), Sample([52], None), Sample([53], 1.0)]),
            ([3] * 6, [Sample([60, 61, 62, 63, 64], 1.0, mask=[1, 1, 0, 0, 1]), Sample([65, 2], 0.0)]),
        ]
    )


@pytest.mark.parametrize("name", ["grpo", "dr_grpo"])
@pytest.mark.parametrize("budget", [1, 40, 4096])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_float64_gradients_equal_the_reference(
    precise: Policy, name: str, budget: int, temperature: float
) -> None:
    objective = {"name": name, "clip_low": 0.1, "clip_high": 0.28}
    compare_with_the_reference(precise, objective, budget=budget, temperature=temperature)


TRAINER = {"old": "trainer"}


@pytest.mark.parametrize(
    "objective",
    [
        *({"name": name} for name in get_args(ObjectiveName)),
        *({"advantage": name} for name in get_args(AdvantageName)),
        *({"ratio": name} for name in ("token", "sequence", "product")),
        *({"aggregation": name} for name in ("sequence-mean", "token-mean", "constant", "sum")),
        {"dual_clip": 1.2, "clip_low": 0.01},
        {"mask_truncated": True},
        {"overlong": {"buffer_tokens": 10, "penalty": 0.7}},
        *(
            {"kl": {"coefficient": 0.3, "estimator": estimator, "place": place}}
            for estimator in ("k1", "k2", "k3")
            for place in ("loss", "reward")
        ),
        {"name": "reinforce_pp", "kl": {"coefficient": 0.3, "place": "reward"}},
        {"name": "gspo", "kl": {"coefficient": 0.3}, "aggregation": "token-mean"},
        TRAINER,
        {**TRAINER, "name": "gspo"},
        {**TRAINER, "correction": {"kind": "token-truncate", "high": 1.05}},
        {**TRAINER, "correction": {"kind": "token-mask", "low": 0.9, "high": 1.2}},
        {**TRAINER, "correction": {"kind": "sequence-truncate", "high": 1.05}},
        {**TRAINER, "correction": {"kind": "sequence-mask", "low": 0.8, "high": 1.3}},
        {
            **TRAINER,
            "name": "dapo",
            "correction": {"kind": "token-mask", "low": 0.9, "high": 1.2},
            "kl": {"coefficient": 0.1, "estimator": "k2"},
            "overlong": {"buffer_tokens": 8},
        },
    ],
    ids=str,
)
def test_every_option_equals_the_reference(precise: Policy, objective: dict[str, Any]) -> None:
    compare_with_the_reference(precise, objective, budget=40, temperature=0.8)


def compare_with_the_reference(
    policy: Policy, objective: dict[str, Any], *, budget: int, temperature: float
) -> None:
    spec = make_spec(
        objective=objective,
        sampling={"groups_per_step": 6, "samples_per_group": 3, "max_tokens": 12, "temperature": temperature},
        optimizer={"micro_batch_tokens": budget},
    )
    batch = near_the_policy(policy, odd_batch(), temperature)
    loss, gradients = reference(policy, spec, batch)

    tokens, found = policy.train(spec, batch)

    assert tokens.loss == pytest.approx(loss, rel=1e-9, abs=1e-9)
    largest = max(float(g.abs().max()) for g in gradients.values())
    assert largest > 1e-4
    for key, gradient in gradients.items():
        np.testing.assert_allclose(found[key].numpy(), gradient.numpy(), rtol=0, atol=1e-10 * largest)


def split_differences(policy: Policy, batch: Batch, budgets: list[int]) -> list[float]:
    """For each budget but the first, the largest difference of a gradient, over the largest gradient."""
    runs = [policy.train(make_spec(optimizer={"micro_batch_tokens": budget}), batch)[1] for budget in budgets]
    largest = max(float(g.abs().max()) for g in runs[0].values())
    return [max(float((run[key] - runs[0][key]).abs().max()) for key in run) / largest for run in runs[1:]]


ROW = 16
"""Tokens in each of the eight rows of `eight_rows`: 7 of the prompt, 4 of each completion, padded."""
SPLITS = [8 * ROW, 4 * ROW, ROW]
"""Budgets that give one micro-batch of 8 rows, two of 4 and eight of 1."""
ALONE = 1
"""A budget that gives every sequence a micro-batch of its own, so that no prompt is shared."""


def eight_rows(vocabulary: int) -> Batch:
    return random_batch(2, groups=8, samples=2, prompt=(7, 7), completion=(5, 5), vocabulary=vocabulary)


def test_the_splits_are_what_they_are_called() -> None:
    layouts = [pack(eight_rows(259), range(16), budget) for budget in [*SPLITS, ALONE]]
    assert [[len(micro.token_ids) for micro in layout] for layout in layouts] == [
        [8],
        [4] * 2,
        [1] * 8,
        [1] * 16,
    ]


def test_micro_batch_splits_give_equal_gradients_in_float64(precise: Policy) -> None:
    batch = near_the_policy(precise, eight_rows(259), 1.0)
    assert max(split_differences(precise, batch, [*SPLITS, ALONE])) < 1e-10


def test_micro_batch_splits_give_equal_gradients_in_float32(tiny: BaseModel) -> None:
    policy = Policy.on(base_model.load(tiny.folder).model)
    batch = near_the_policy(policy, eight_rows(259), 1.0)
    assert max(split_differences(policy, batch, [*SPLITS, ALONE])) < 1e-5


def test_what_has_no_advantage_is_not_computed(precise: Policy) -> None:
    """CASES 85: an empty completion, among others."""
    batch = near_the_policy(precise, odd_batch(), 1.0)
    tokens, _ = precise.train(make_spec(), batch)
    # Trained: all of group 0 but the middle reward, 2 of group 1, 2 of group 2 (one is empty), 2 of group 5.
    sequence = PolicyTokens.of(batch, mask_truncated=False).sequence
    assert set(sequence[tokens.tokens].tolist()) == {0, 1, 3, 5, 6, 7, 15, 16}


class TestSmolLM2:
    """The same on a real model in float32."""

    @pytest.fixture(scope="class")
    def policy(self, smollm2_folder: Path) -> Policy:
        return Policy.on(base_model.load(smollm2_folder).model)

    @pytest.fixture(scope="class")
    def batch(self, policy: Policy) -> Batch:
        batch = random_batch(4, groups=3, samples=3, prompt=(10, 30), completion=(1, 14), vocabulary=49_000)
        return near_the_policy(policy, batch, 0.8, noise=0.0)

    def test_logprobs_equal_a_plain_forward_pass(self, policy: Policy, batch: Batch) -> None:
        """CASES 49."""
        sampling = {"groups_per_step": 3, "samples_per_group": 3, "temperature": 0.8}
        tokens, _ = policy.train(make_spec(sampling=sampling), batch)
        places = PolicyTokens.of(batch, mask_truncated=False).places
        gap = np.abs(tokens.logprobs - batch.logprobs[places[tokens.tokens]])
        assert len(gap) == batch.mask.sum()
        assert gap.max() < 2e-3
        assert gap.mean() < 1e-4

    def test_micro_batch_splits_give_equal_gradients(self, policy: Policy) -> None:
        batch = near_the_policy(policy, eight_rows(49_000), 1.0)
        assert max(split_differences(policy, batch, [*SPLITS, ALONE])) < 1e-5

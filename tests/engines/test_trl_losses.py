"""Losses and gradients against TRL 1.16 itself, from completions and rewards to the adapter's gradient.

Where TRL divides by something else on purpose, the case names the scale between the two.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marlaas.engines import base_model
from marlaas.engines.base_model import BaseModel
from marlaas.schemas.batch import Batch
from marlaas.tests.engines.peft_policy import Policy, near_the_policy, precise_model
from marlaas.tests.engines.training_batches import Sample, make_batch, make_spec
from marlaas.tests.engines.trl_trainers import TrlPolicy

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")

EPSILON_HIGH = {"epsilon_high": 0.28}
UNSCALED = {"scale_rewards": "none"}
PLAIN_KL = {"beta": 0.3, "use_bias_correction_kl": False}
CENTRED = {"advantage": "group-centred"}
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}


def batch_of(*, gaps: bool = True, failure: bool = False) -> Batch:
    """Prompts of several lengths and rewards that float32 holds exactly. Token 2 stops."""
    gap = [1, 1, 0, 0, 1, 1] if gaps else None
    lost = None if failure else 0.75
    return make_batch(
        [
            ([5, 6, 7, 8], [Sample([9, 10, 2], 1.0), Sample([11, 2], 0.0), CUT]),
            (list(range(20, 33)), [Sample([40, 41, 2], 1.0), Sample([42, 2], 0.5), Sample([2], 0.25)]),
            ([5], [Sample([6] * 12, 0.0, truncated=True), Sample([7, 2], 1.0), Sample([8, 9, 2], 0.0)]),
            (
                [3] * 6,
                [Sample([60, 61, 62, 63, 64, 2], 1.0, gap), Sample([65, 2], 0.0), Sample([66, 2], lost)],
            ),
        ]
    )


CUT = Sample([12, 13, 14], 0.5, truncated=True)
SEQUENCES = 12
CUT_OFF = 2


class Comparison:
    """The system and TRL on one batch, in one precision."""

    def __init__(self, tiny: BaseModel, dtype: torch.dtype, scratch: Path) -> None:
        self._tiny, self._dtype, self._scratch = tiny, dtype, scratch
        self._policy = Policy.on(self._model())

    def _model(self) -> Any:
        if self._dtype == torch.float64:
            return precise_model(self._tiny.folder)
        return base_model.load(self._tiny.folder).model

    def __call__(
        self,
        objective: dict[str, Any],
        options: dict[str, Any],
        batch: Batch,
        scale: Callable[[Any], float] = lambda signal: 1.0,
    ) -> None:
        """Fails unless TRL's loss and gradient are the system's times the scale.

        Args:
            scale: from the update's signal.
        """
        spec = make_spec(
            objective=objective,
            sampling={"groups_per_step": 4, "samples_per_group": 3, "max_tokens": 12, "temperature": 0.8},
            optimizer={"epochs": 2},  # so that the proximal policy is not the one that is trained
        )
        batch = near_the_policy(self._policy, batch, 0.8)
        trl = TrlPolicy(self._tiny, self._model(), self._policy, spec, batch, options, self._scratch)
        start, inputs = self._policy.start(spec, batch), trl.score()
        with self._policy.moved():
            theirs, their_gradients = trl.loss(inputs)
            tokens, gradients = self._policy.train(spec, batch, start)
        factor = scale(self._policy.signal(spec, batch, start))
        bound = BOUNDS[self._dtype]
        largest = max(float(gradient.abs().max()) for gradient in their_gradients.values())
        assert largest > 1e-4
        assert tokens.loss * factor == pytest.approx(theirs, rel=bound, abs=bound)
        assert gradients.keys() == their_gradients.keys()
        for name, gradient in gradients.items():
            found, expected = gradient.numpy() * factor, their_gradients[name].numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=bound * largest, err_msg=name)


@pytest.fixture(scope="module", params=BOUNDS, ids=str)
def compare(tiny: BaseModel, request: pytest.FixtureRequest, tmp_path_factory: Any) -> Comparison:
    return Comparison(tiny, request.param, tmp_path_factory.mktemp("trl"))


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        (CENTRED, {"loss_type": "grpo", **UNSCALED}),
        ({**CENTRED, "clip_low": 0.05, "clip_high": 0.28}, {"epsilon": 0.05, **EPSILON_HIGH, **UNSCALED}),
        ({**CENTRED, "aggregation": "token-mean"}, {"loss_type": "bnpo", **UNSCALED}),
        ({"name": "dr_grpo"}, {"loss_type": "dr_grpo", **UNSCALED}),
        (
            {"name": "dapo", **CENTRED},
            {"loss_type": "dapo", **EPSILON_HIGH, "mask_truncated_completions": True, **UNSCALED},
        ),
        (
            {"name": "gspo", **CENTRED},
            {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4, **UNSCALED},
        ),
        ({"name": "cispo", **CENTRED}, {"loss_type": "cispo", "epsilon_high": 5.0, **UNSCALED}),
        (
            {**CENTRED, "clip_high": 0.02, "dual_clip": 1.03},
            {"epsilon_high": 0.02, "delta": 1.03, **UNSCALED},
        ),
        ({**CENTRED, "kl": {"coefficient": 0.3}}, {**PLAIN_KL, **UNSCALED}),
        (
            {"name": "dapo", **CENTRED, "kl": {"coefficient": 0.3}, "mask_truncated": False},
            {"loss_type": "dapo", **EPSILON_HIGH, **PLAIN_KL, **UNSCALED},
        ),
    ],
    ids=str,
)
def test_equal_to_grpo_trainer(
    compare: Comparison, objective: dict[str, Any], options: dict[str, Any]
) -> None:
    """CASES 70: with dapo's `mask_truncated`, what is masked is in no denominator.

    TRL's default for `loss_type` is dapo; where an entry names none it is grpo. TRL's default also weighs the
    KL term with the importance ratio (`use_bias_correction_kl`), which nothing here does.
    """
    compare(objective, {"loss_type": "grpo", **options}, batch_of())


@pytest.mark.parametrize(
    ("kind", "bounds", "penalty"),
    [
        ("token-truncate", {"high": 1.1}, {}),
        ("token-truncate", {"high": 1.1}, {"kl": {"coefficient": 0.3}}),
        ("sequence-truncate", {"high": 1.1}, {}),
        ("token-mask", {"low": 0.9, "high": 1.1}, {}),
        ("sequence-mask", {"low": 0.8, "high": 1.2}, {}),
    ],
    ids=str,
)
def test_equal_to_the_correction_for_another_sampler(
    compare: Comparison, kind: str, bounds: dict[str, float], penalty: dict[str, Any]
) -> None:
    """CASES 53.

    The tokens that a correction masks are in TRL's denominator, which is of all tokens, and in none here;
    so TRL's loss is the smaller one, by the share of tokens that are left. (Its KL term has them too, so with
    masks and a penalty there is no one scale.)"""
    correction = {"kind": kind, **bounds}
    prefix = "vllm_importance_sampling"
    theirs = {f"{prefix}_clip_{'min' if bound == 'low' else 'max'}": v for bound, v in bounds.items()}
    compare(
        {"name": "dapo", **CENTRED, "mask_truncated": False, "old": "trainer", "correction": correction}
        | penalty,
        {"loss_type": "dapo", **EPSILON_HIGH, **UNSCALED, f"{prefix}_mode": kind.replace("-", "_"), **theirs}
        | (PLAIN_KL if penalty else {}),
        batch_of(),
        scale=lambda signal: share_below_one(signal.counted) if kind.endswith("mask") else 1.0,
    )


def share_below_one(counted: Any) -> float:
    share = float(counted.mean())
    assert 0.2 < share < 1
    return share


@pytest.mark.parametrize("kl", [None, 0.3])
def test_equal_to_rloo_trainer(compare: Comparison, kl: float | None) -> None:
    """TRL's penalty is k1, taken off the reward."""
    penalty = {"kl": {"coefficient": kl, "estimator": "k1", "place": "reward"}} if kl else {}
    compare(
        {"name": "rloo", **penalty},
        {"beta": kl or 0.0, "normalize_advantages": False},
        batch_of(gaps=False),
    )


def test_masked_completions_count_as_sequences_in_trl(compare: Comparison) -> None:
    """GRPO's mean over sequences counts, in TRL, those that truncation masks; here only those that train."""
    compare(
        {**CENTRED, "mask_truncated": True},
        {"loss_type": "grpo", "mask_truncated_completions": True, **UNSCALED},
        batch_of(),
        scale=lambda signal: (SEQUENCES - CUT_OFF) / SEQUENCES,
    )


def test_failed_samples_count_as_sequences_in_trl(compare: Comparison) -> None:
    """Likewise a sample without a reward, whose advantage is 0 in both (CASES 73)."""
    compare(
        CENTRED,
        {"loss_type": "grpo", **UNSCALED},
        batch_of(failure=True),
        scale=lambda signal: (SEQUENCES - 1) / SEQUENCES,
    )


def test_trl_adds_more_to_the_deviation(compare: Comparison) -> None:
    """1e-4 in TRL and 1e-6 here. In every group the rewards are 0, 1/2 and 1, whose deviation is 1/2."""
    rewards = [1.0, 0.0, 0.5]
    batch = make_batch(
        [([5, 6 + n], [Sample([9 + n, 2], rewards[(n + i) % 3]) for i in range(3)]) for n in range(4)]
    )
    compare(
        {"name": "grpo"},
        {"loss_type": "grpo", "scale_rewards": "group"},
        batch,
        scale=lambda signal: (0.5 + 1e-6) / (0.5 + 1e-4),
    )

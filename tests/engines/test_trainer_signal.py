"""Which steps happen, what counts in them, and what they report."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from marlaas.engines.base_model import BaseModel
from marlaas.engines.learning_signal import PolicyTokens, StartLogprobs, find_signal
from marlaas.schemas.batch import Batch
from marlaas.tests.engines.trainer_bench import Bench, batch_number
from marlaas.tests.engines.training_batches import Sample, make_batch, make_spec

# --- steps that do not happen


def without_reward(batch: Batch) -> Batch:
    return replace(batch, valid=np.zeros_like(batch.valid))


def without_variance(batch: Batch) -> Batch:
    return replace(batch, rewards=np.full_like(batch.rewards, 0.7))


def without_tokens(batch: Batch) -> Batch:
    return replace(batch, mask=np.zeros_like(batch.mask))


def with_logprob(value: float) -> Callable[[Batch], Batch]:
    def change(batch: Batch) -> Batch:
        logprobs = batch.logprobs.copy()
        logprobs[np.flatnonzero(batch.mask)[0]] = value
        return replace(batch, logprobs=logprobs)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_reward, "no sample has a reward"),
        (without_variance, "every advantage is 0"),
        (without_tokens, "the policy produced no token"),
        (with_logprob(np.inf), "the sampler's log-probability of a token of sequence 0 is inf"),
        (with_logprob(-np.inf), "the sampler's log-probability of a token of sequence 0 is -inf"),
        (with_logprob(np.nan), "the sampler's log-probability of a token of sequence 0 is nan"),
    ],
)
def test_a_batch_without_a_usable_signal_skips_the_step(
    bench: Bench, change: Callable[[Batch], Batch], reason: str
) -> None:
    """CASES 71."""
    revision, _ = bench.step(bench.start(), batch_number(0))
    after, metrics = bench.step(revision, change(batch_number(1)), version=1)
    assert (metrics.skipped, metrics.skip_reason) == (True, reason)
    assert (metrics.loss, metrics.grad_norm, metrics.ratio_mean) == (0.0, 0.0, 0.0)
    assert after.digests == revision.digests


@pytest.mark.parametrize(
    ("reward", "reason"), [(0.0, "the loss is inf"), (2.0, "the norm of the gradient is nan")]
)
def test_a_ratio_that_overflows_skips_the_step(bench: Bench, reward: float, reason: str) -> None:
    """A finite log-probability that no policy can reach: exp(new - behaviour) is infinite."""
    revision, _ = bench.step(bench.start(), batch_number(0))
    batch = with_logprob(-1e4)(batch_number(1))
    rewards = batch.rewards.copy()
    rewards[0] = reward  # below and above all others
    after, metrics = bench.step(revision, replace(batch, rewards=rewards), version=1)
    assert metrics.skip_reason == reason
    assert after.digests == revision.digests


def test_after_a_step_that_was_not_finite_the_next_is_as_if_it_had_not_been(bench: Bench) -> None:
    """CASES 95."""
    start = bench.start()
    expected, _ = bench.step(start, batch_number(0))
    batch = batch_number(1)
    skipped, metrics = bench.step(start, replace(with_logprob(-1e4)(batch), rewards=1 - batch.rewards))
    assert metrics.skipped
    assert bench.step(skipped, batch_number(0))[0].digests == expected.digests


# --- what counts


def test_a_failed_sample_leaves_the_step_as_if_it_had_not_been_drawn(bench: Bench) -> None:
    """CASES 106: No training row, and no part of its group."""
    start, prompt = bench.start(), [3, 4, 5]
    samples = [Sample([10, 11, 2], 1.0), Sample([12, 13], 0.0), Sample([14, 2], 0.5)]
    failed = Sample([15, 16, 17, 18], None)
    other = ([6, 7], [Sample([8, 2], 1.0), Sample([9, 2], 0.0)])
    without, _ = bench.step(start, make_batch([(prompt, samples), other]))
    with_failure, metrics = bench.step(
        start, make_batch([(prompt, [samples[0], failed, *samples[1:]]), other])
    )
    assert with_failure.digests == without.digests
    assert (metrics.failed_samples, metrics.failed_groups) == (1, 0)


def test_a_group_without_variance_dilutes_the_step_and_a_failed_one_does_not(bench: Bench) -> None:
    start = bench.start()
    signal = ([3, 4, 5], [Sample([10, 11, 2], 1.0), Sample([12, 13], 0.0)])
    solved = ([6, 7], [Sample([8, 2], 1.0), Sample([9, 2], 1.0)])
    failed = ([6, 7], [Sample([8, 2], 1.0), Sample([9, 2], None)])
    norms = [
        bench.step(start, make_batch(groups))[1].grad_norm
        for groups in ([signal], [signal, solved], [signal, failed])
    ]
    assert norms[1] == pytest.approx(norms[0] / 2, rel=1e-5)
    assert norms[2] == norms[0]


def test_metrics_count_what_is_in_the_batch(bench: Bench) -> None:
    batch = make_batch(
        [
            ([3, 4, 5], [Sample([10, 11, 2], 1.0), Sample([12] * 9, 0.0, truncated=True), Sample([2], None)]),
            ([6, 7], [Sample([8, 2], 1.0), Sample([9, 2], 1.0), Sample([], 1.0)]),
            ([6, 7], [Sample([8, 2], None), Sample([9, 2], None), Sample([9, 2], 0.5)]),
        ],
        version=4,
    )
    _, metrics = bench.step(bench.start(), batch, version=6)
    assert metrics.reward_mean == pytest.approx(0.8)
    assert metrics.reward_std == pytest.approx(0.4)
    assert (metrics.groups, metrics.failed_groups, metrics.samples, metrics.failed_samples) == (3, 1, 9, 4)
    assert (metrics.prompt_tokens, metrics.completion_tokens) == (3 * 3 + 6 * 2, 13 + 4 + 6)
    assert metrics.truncated_share == pytest.approx(1 / 9)
    assert metrics.zero_variance_share == pytest.approx(1 / 2)
    assert metrics.staleness_max == 2
    assert not metrics.skipped
    assert metrics.skip_reason is None


def test_metrics_of_the_update_are_over_the_trained_tokens(bench: Bench, tiny: BaseModel) -> None:
    """Version 0 is the base model, so its plain forward pass gives the expected log-probabilities."""
    batch = batch_number(7)
    spec = make_spec(lora={"rank": 4}, objective={"clip_low": 0.1, "clip_high": 0.05})
    _, metrics = bench.step(bench.start(spec), batch, spec)

    ratios: list[float] = []
    gaps: list[float] = []
    clipped = 0
    tokens = PolicyTokens.of(batch, mask_truncated=False)
    advantages = find_signal(spec, batch, tokens, StartLogprobs()).advantages
    of_sequence = dict(zip(tokens.sequence.tolist(), advantages.tolist(), strict=True))
    for i in range(len(batch.valid)):
        ids = torch.from_numpy(batch.token_ids[batch.offsets[i] : batch.offsets[i + 1]].astype(np.int64))
        with torch.no_grad():
            logprobs = torch.log_softmax(tiny.model(input_ids=ids[None]).logits[0], -1)
        for t in range(1, len(ids)):
            place = batch.offsets[i] + t
            if batch.mask[place]:
                gap = float(logprobs[t - 1, ids[t]]) - float(batch.logprobs[place])
                ratio = np.exp(gap)
                gaps.append(abs(gap))
                ratios.append(ratio)
                clipped += bool(ratio > 1.05 if of_sequence[i] > 0 else ratio < 0.9)
    assert metrics.ratio_mean == pytest.approx(np.mean(ratios), rel=1e-5)
    assert metrics.logprob_gap_mean == pytest.approx(np.mean(gaps), abs=1e-5)
    assert metrics.logprob_gap_max == pytest.approx(max(gaps), abs=1e-5)
    assert metrics.clipped_share == clipped / len(gaps)
    assert 0 < metrics.clipped_share < 1
    assert metrics.zero_variance_share == 0.0


def test_micro_batches_change_the_step_by_rounding_only(bench: Bench) -> None:
    start, batch = bench.start(), batch_number(0, groups=6)
    norms = [
        bench.step(start, batch, make_spec(lora={"rank": 4}, optimizer={"micro_batch_tokens": budget}))[
            1
        ].grad_norm
        for budget in (4096, 60, 1)
    ]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)

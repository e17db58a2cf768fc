"""Packed rows: every token where it would be alone, every budget kept, one layout for one input."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from dataclasses import replace

import numpy as np
import pytest
import torch
from marlaas.engines.base_model import BaseModel
from marlaas.engines.gradients import compute_logprobs
from marlaas.engines.packing import MicroBatch, attention_mask, pack
from marlaas.schemas.batch import Batch
from marlaas.tests.engines.training_batches import Sample, make_batch, random_batch


def history_of(micro: MicroBatch, row: int, column: int) -> list[tuple[int, int]]:
    """(position, token) of everything that a place attends to, in order of position."""
    mask = attention_mask(torch.from_numpy(micro.segments))[row, 0, column].numpy()
    seen = zip(micro.positions[row][mask].tolist(), micro.token_ids[row][mask].tolist(), strict=True)
    return sorted(seen)


def check_layout(batch: Batch, sequences: list[int], micro_batches: list[MicroBatch]) -> None:
    """Every policy token is predicted once, by a place that sees exactly the tokens before it."""
    targets = np.concatenate([micro.targets for micro in micro_batches])
    expected = [
        place
        for sequence in sequences
        for place in range(batch.offsets[sequence], batch.offsets[sequence + 1])
        if batch.mask[place]
    ]
    assert sorted(targets.tolist()) == expected
    for micro in micro_batches:
        for predictor, target in zip(micro.predictors.tolist(), micro.targets.tolist(), strict=True):
            sequence = int(np.searchsorted(batch.offsets, target, side="right")) - 1
            before = batch.token_ids[batch.offsets[sequence] : target].tolist()
            row, column = divmod(predictor, micro.token_ids.shape[1])
            assert history_of(micro, row, column) == list(enumerate(before))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", [1, 25, 60, 100_000])
def test_every_token_is_predicted_from_its_own_history(seed: int, budget: int) -> None:
    batch = random_batch(seed, groups=3, samples=4, prompt=(1, 12), completion=(1, 15), vocabulary=100)
    sequences = list(range(12))
    check_layout(batch, sequences, pack(batch, sequences, budget))


def test_only_the_given_sequences_are_laid_out() -> None:
    batch = random_batch(0, groups=2, samples=3, prompt=(5, 9), completion=(3, 8), vocabulary=100)
    check_layout(batch, [1, 2, 5], pack(batch, [1, 2, 5], 1000))


def test_a_mask_with_gaps_keeps_the_tokens_between_as_context() -> None:
    """A tool's answer between two turns is read and not trained; what follows the last turn is cut."""
    turns = Sample([11, 12, 13, 14, 15, 16], 1.0, mask=[1, 1, 0, 0, 1, 0])
    batch = make_batch([([1, 2, 3], [turns, Sample([21], 0.0)])])
    micro_batches = pack(batch, [0, 1], 1000)
    check_layout(batch, [0, 1], micro_batches)
    assert 15 not in micro_batches[0].token_ids  # the last trained token predicts nothing
    assert 16 not in micro_batches[0].token_ids


def test_samples_of_a_group_share_their_prompt() -> None:
    batch = make_batch([(list(range(3, 13)), [Sample([20, 21, 22], 1.0), Sample([30, 31], 0.0)])])
    (micro,) = pack(batch, [0, 1], 1000)
    assert micro.token_ids.tolist() == [[*range(3, 13), 20, 21, 30, 0, 0, 0]]
    assert micro.positions.tolist() == [[*range(10), 10, 11, 10, 0, 0, 0]]
    assert micro.predictors.tolist() == [9, 10, 11, 9, 12]


def test_equal_prompts_of_different_groups_are_rows_of_their_own() -> None:
    batch = make_batch([([1, 2], [Sample([5, 6], 1.0), Sample([7], 0.0)])] * 2)
    (micro,) = pack(batch, [0, 1, 2, 3], 1000)
    assert micro.token_ids.tolist() == [[1, 2, 5, *[0] * 13]] * 2


def test_samples_of_a_group_with_other_prompts_are_not_mixed() -> None:
    first = make_batch([([1, 2, 3], [Sample([5, 6], 1.0), Sample([7, 8], 0.0)])])
    changed = first.token_ids.copy()
    changed[int(first.offsets[1])] = 9
    batch = replace(first, token_ids=changed)
    check_layout(batch, [0, 1], pack(batch, [0, 1], 1000))


@pytest.mark.parametrize("budget", [32, 64, 100, 333])
def test_micro_batches_keep_the_budget_padding_counted(budget: int) -> None:
    batch = random_batch(5, groups=6, samples=5, prompt=(3, 20), completion=(1, 9), vocabulary=100)
    for micro in pack(batch, range(30), budget):
        assert micro.token_ids.size <= budget


def test_a_sequence_over_the_budget_gets_a_micro_batch_of_its_own() -> None:
    batch = make_batch(
        [([1] * 20, [Sample([2] * 30, 1.0), Sample([3] * 2, 0.0)]), ([4] * 3, [Sample([5] * 2, 1.0)])]
    )
    micro_batches = pack(batch, [0, 1, 2], 25)
    check_layout(batch, [0, 1, 2], micro_batches)
    assert [micro.token_ids.shape for micro in micro_batches] == [(1, 64), (1, 32), (1, 16)]


def test_long_completions_of_a_short_prompt_do_not_share_a_row() -> None:
    """Attention over the whole row would cost more than the few prompt tokens that sharing saves."""
    batch = make_batch([([1] * 4, [Sample([2] * 500, 1.0), Sample([3] * 500, 0.0)])])
    (micro,) = pack(batch, [0, 1], 100_000)
    assert micro.token_ids.shape == (2, 512)


def test_the_layout_is_the_same_every_time() -> None:
    batch = random_batch(3, groups=4, samples=4, prompt=(5, 9), completion=(3, 8), vocabulary=100)
    for once, again in zip(pack(batch, range(16), 90), pack(batch, range(16), 90), strict=True):
        for name, value in vars(once).items():
            np.testing.assert_array_equal(value, getattr(again, name))


def test_a_sequence_has_the_same_bits_whatever_the_others_in_its_row_hold(tiny: BaseModel) -> None:
    """CASES 67: the rows differ in one completion, and that completion's log-probabilities alone differ."""
    prompt, first, second = [5, 6, 7, 8, 9, 10], [20, 21, 22, 23], [30, 31, 32]
    batches = [
        make_batch([(prompt, [Sample(first, 1.0), Sample(other, 0.0), Sample([40, 41], 0.0)])])
        for other in (second, [250, 3, 99])
    ]
    found: list[list[float]] = []
    for batch in batches:
        (micro,) = pack(batch, [0, 1, 2], 1000)
        assert len(micro.token_ids) == 1
        places, logprobs = compute_logprobs(tiny.model, [micro], batch.token_ids, 1.0)
        found.append(logprobs[np.argsort(places)].tolist())
    one, two = found
    assert one[:4] == two[:4]
    assert one[7:] == two[7:]
    assert all(a != b for a, b in zip(one[4:7], two[4:7], strict=True))


def test_padding_sees_itself_and_is_seen_by_no_token() -> None:
    batch = random_batch(3, groups=2, samples=2, prompt=(5, 9), completion=(3, 12), vocabulary=100)
    (micro,) = pack(batch, range(4), 1000)
    mask = attention_mask(torch.from_numpy(micro.segments))[:, 0].numpy()
    padding = micro.segments < 0
    assert padding.any()
    for row in range(2):
        assert mask[row][padding[row]].any(axis=1).all()
        assert not mask[row][~padding[row]][:, padding[row]].any()


def test_a_sequence_without_a_prompt_is_refused_with_its_number() -> None:
    batch = make_batch([([], [Sample([5, 6], 1.0)])])
    with pytest.raises(ValueError, match="sequence 0 of the batch starts with a policy token"):
        pack(batch, [0], 100)


def test_a_sequence_without_a_policy_token_is_refused_with_its_number() -> None:
    batch = make_batch([([1, 2], [Sample([5], 1.0), Sample([], 0.0)])])
    with pytest.raises(ValueError, match="sequence 1 of the batch has no policy token"):
        pack(batch, [0, 1], 100)

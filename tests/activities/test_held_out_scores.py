"""pass@k against its definition, and figures of prompts whose samples fail."""

from itertools import combinations

import pytest
from marlaas.activities.held_out_scores import held_out_scores, pass_at
from marlaas.schemas.trajectory import ScoredGroup, ScoredSample


def group(*rewards: float | None) -> ScoredGroup:
    samples = tuple(
        ScoredSample(sample=n, stream_sequence=n + 1, reward=one, failure="broke" if one is None else None)
        for n, one in enumerate(rewards)
    )
    return ScoredGroup(group="g", prompt_index=0, status="ok", samples=samples)


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_choices_with_a_right_one(samples: int) -> None:
    for right in range(samples + 1):
        outcomes = [n < right for n in range(samples)]
        for k in range(1, samples + 1):
            choices = [any(choice) for choice in combinations(outcomes, k)]
            assert pass_at(samples, right, k) == pytest.approx(sum(choices) / len(choices), abs=1e-15)


def test_the_figures_of_three_prompts() -> None:
    sampled = [group(1.0, 0.5, None, 2.0, 0.0), group(0.0, 0.25, None, None, 0.0), group(*[1.0] * 5)]
    scores = held_out_scores(sampled, [group(0.5), group(None), group(1.0)])
    assert (scores.prompts, scores.accuracy, scores.greedy_accuracy) == (3, 7 / 15, 1 / 3)
    assert scores.reward_mean == pytest.approx(8.75 / 12)
    # Of the first prompt 2 of 5 are right: 7 of the 10 pairs and all fours have one.
    assert scores.pass_at == pytest.approx({1: 7 / 15, 2: 1.7 / 3, 4: 2 / 3})


@pytest.mark.parametrize(("samples", "powers"), [(1, [1]), (2, [1, 2]), (7, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_powers_of_two_go_up_to_the_samples(samples: int, powers: list[int]) -> None:
    scores = held_out_scores([group(*[None] * samples)], [group(0.0)])
    assert scores.pass_at == dict.fromkeys(powers, 0.0)
    assert scores.reward_mean is None

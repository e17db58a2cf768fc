"""Turns of a mixture's environments, and the prompts that they come to."""

import random
from collections import Counter

import pytest
from marlaas.schemas.contract import BlobRef
from marlaas.schemas.dataset import DatasetPart, DatasetRef
from marlaas.schemas.mixing import mixed
from marlaas.schemas.seeds import prompt_at, refill_seed

WEIGHTS = [(1,), (3, 1), (1, 1, 1), (7, 2, 1), (1000, 1), (6, 4), (5, 3, 3, 2, 1, 1, 1)]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_shares_are_exact_over_any_window_and_near_at_any_position(weights: tuple[int, ...]) -> None:
    total = sum(weights)
    turns = [mixed(weights, position) for position in range(3 * total)]
    given = Counter[int]()
    for position, (which, before) in enumerate(turns):
        assert before == given[which]
        given[which] += 1
        for one, weight in enumerate(weights):
            assert abs(given[one] * total - (position + 1) * weight) < total
    for start in range(2 * total):
        window = Counter(which for which, _ in turns[start : start + total])
        assert [window[one] for one in range(len(weights))] == list(weights)


def test_random_weights_too() -> None:
    generator = random.Random(0)
    for _ in range(100):
        weights = tuple(generator.randint(1, 30) for _ in range(generator.randint(1, 8)))
        test_shares_are_exact_over_any_window_and_near_at_any_position(weights)


def ref(**counts: tuple[int, int]) -> DatasetRef:
    """Of environments by (rows, weight)."""
    first, parts = 0, list[DatasetPart]()
    for name, (count, weight) in counts.items():
        parts.append(DatasetPart(name=name, weight=weight, first=first, count=count, held_out=0))
        first += count
    blob = BlobRef(digest="0" * 64, size=1)
    return DatasetRef(blob=blob, train=first, held_out=0, parts=tuple(parts))


def test_every_environment_has_epochs_of_its_own() -> None:
    """CASES 23: each prompt once in each epoch of its environment, in another order."""
    dataset = ref(sums=(6, 3), words=(4, 1))
    prompts = [dataset.prompt(5, position) for position in range(48)]
    assert all((prompt >= 6) == (mixed((3, 1), position)[0] == 1) for position, prompt in enumerate(prompts))
    sums, words = [one for one in prompts if one < 6], [one for one in prompts if one >= 6]
    assert len(sums) == 36
    assert all(sorted(sums[start : start + 6]) == list(range(6)) for start in range(0, 36, 6))
    assert all(sorted(words[start : start + 4]) == [6, 7, 8, 9] for start in range(0, 12, 4))
    assert sums[:6] != sums[6:12]
    assert prompts == [dataset.prompt(5, position) for position in range(48)]
    assert prompts != [dataset.prompt(refill_seed(5), position) for position in range(48)]


def test_an_order_does_not_depend_on_the_other_environments() -> None:
    alone = [ref(sums=(50, 2)).prompt(1, position) for position in range(50)]
    beside = [ref(sums=(50, 2), words=(9, 1)).prompt(1, position) for position in range(75)]
    assert [one for one in beside if one < 50] == alone
    assert [ref(words=(50, 1)).prompt(1, position) for position in range(50)] != alone


def test_one_environment_has_the_order_that_it_always_had() -> None:
    dataset = ref(only=(30, 1)).model_copy(update={"parts": ()})
    assert [dataset.prompt(9, position) for position in range(90)] == [
        prompt_at(9, position, 30) for position in range(90)
    ]
    assert "parts" not in dataset.model_dump()

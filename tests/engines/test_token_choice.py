"""Drawing tokens from logits, against float64 arithmetic written out."""
# pyright: reportUnknownMemberType=false

import math

import pytest
import torch
from marlaas.engines.token_choice import choose
from marlaas.schemas.seeds import uniform


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocabulary)
    return 4 * torch.randn(rows, vocabulary, generator=generator, dtype=dtype)


def expected_token(logits: torch.Tensor, temperature: float, u: float) -> int:
    cumulative = torch.softmax(logits.double() / temperature, -1).cumsum(-1)
    return int((cumulative <= u * cumulative[-1]).sum())


@pytest.mark.parametrize("vocabulary", [1, 2, 127, 128, 129, 259, 1000, 5000])
def test_the_cumulative_distribution_is_inverted(vocabulary: int) -> None:
    logits = logits_of(300, vocabulary, torch.float64)
    uniforms = [uniform(7, row) for row in range(300)]
    temperatures = [(0.5, 1.0, 2.0)[row % 3] for row in range(300)]
    choices = choose(logits.clone(), temperatures, uniforms)
    for row, choice in enumerate(choices):
        assert choice is not None
        assert choice.token == expected_token(logits[row], temperatures[row], uniforms[row])
        expected = torch.log_softmax(logits[row] / temperatures[row], -1)[choice.token]
        assert choice.logprob == pytest.approx(float(expected), abs=1e-12)


def test_float32_logits() -> None:
    logits = logits_of(500, 49152)
    uniforms = [uniform(8, row) for row in range(500)]
    choices = choose(logits.clone(), [1.0] * 500, uniforms)
    tokens = [choice.token if choice else -1 for choice in choices]
    expected = [expected_token(row, 1.0, u) for row, u in zip(logits, uniforms, strict=True)]
    assert sum(a != b for a, b in zip(tokens, expected, strict=True)) <= 1  # a number at a boundary
    for row, choice in enumerate(choices):
        assert choice is not None
        exact = torch.log_softmax(logits[row].double(), -1)[choice.token]
        assert choice.logprob == pytest.approx(float(exact), abs=2e-6)
        assert choice.logprob == torch.tensor(choice.logprob, dtype=torch.float32).item()


def test_rows_do_not_touch_one_another() -> None:
    logits = logits_of(64, 1000)
    uniforms = [uniform(9, row) for row in range(64)]
    temperatures = [(1.0, 0.7, 0.0)[row % 3] for row in range(64)]
    together = choose(logits.clone(), temperatures, uniforms)
    alone = [
        choose(logits[row : row + 1].clone(), temperatures[row : row + 1], uniforms[row : row + 1])[0]
        for row in range(64)
    ]
    assert together == alone


@pytest.mark.parametrize("u", [0.0, 1.0 - 2.0**-53])
def test_tokens_without_probability_are_never_drawn(u: float) -> None:
    logits = torch.full((1, 700), -torch.inf)
    logits[0, 300:320] = torch.linspace(-3, 3, 20)
    (choice,) = choose(logits, [1.0], [u])
    assert choice is not None
    assert choice.token == (300 if u == 0 else 319)
    assert math.isfinite(choice.logprob)


def test_greedy_takes_the_lowest_of_equals_and_reports_temperature_one() -> None:
    logits = torch.tensor([[1.0, 5.0, 2.0, 5.0, 5.0]])
    (choice,) = choose(logits.clone(), [0.0], [0.99])
    assert choice is not None
    assert choice.token == 1
    assert choice.logprob == pytest.approx(float(torch.log_softmax(logits, -1)[0, 1]), abs=1e-6)


def test_a_very_low_temperature_is_greedy() -> None:
    logits = logits_of(1, 1000)
    (choice,) = choose(logits.clone(), [1e-38], [0.5])
    assert choice is not None
    assert choice.token == int(logits.argmax())
    assert choice.logprob == 0.0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_row_that_is_not_finite_gives_no_choice(value: float, temperature: float) -> None:
    """CASES 55."""
    logits = logits_of(3, 259)
    expected = choose(logits.clone(), [temperature] * 3, [0.3] * 3)
    logits[1, 17] = value
    found = choose(logits, [temperature] * 3, [0.3] * 3)
    assert found[1] is None
    assert [found[0], found[2]] == [expected[0], expected[2]]


def test_a_row_without_any_possible_token_gives_no_choice() -> None:
    assert choose(torch.full((1, 259), -torch.inf), [1.0], [0.3]) == [None]


def test_half_precision_is_drawn_in_float32() -> None:
    logits = logits_of(20, 259).bfloat16()
    uniforms = [uniform(10, row) for row in range(20)]
    assert choose(logits.clone(), [1.0] * 20, uniforms) == choose(logits.float(), [1.0] * 20, uniforms)

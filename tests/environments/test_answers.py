"""What is taken for a completion's answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marlaas.environments.answers import extract_answer


@pytest.mark.parametrize(
    ("completion", "number"),
    [
        ("42", "42"),
        ("17 + 25 = 42", "42"),
        ("the answer is 42.", "42"),
        ("12.5.", "12.5"),
        ("42!", "42"),
        ("**42**", "42"),
        (r"\boxed{-5}", "-5"),
        ("$-5$", "-5"),
        ("007", "007"),
        # signs
        ("-5", "-5"),
        ("= -5", "-5"),
        ("=-5", "-5"),
        ("3*-5", "-5"),
        ("3--5", "-5"),
        ("3 -5", "-5"),
        ("(-7)", "-7"),
        ("\u22127", "-7"),
        ("+5", "5"),
        ("3-5", "5"),
        ("3\u22125", "5"),
        ("3 - 5", "5"),
        ("GPT-4", "4"),
        ("(x)-5", "5"),
        ("50%-60%", "60"),
        ("2024-01-05", "05"),
        ("5 -", "5"),
        # separators of thousands, and lists
        ("1,234", "1234"),
        ("-1,234,567.89", "-1234567.89"),
        ("1,234,", "1234"),
        ("1,2", "2"),
        ("12,34", "34"),
        ("-1,2", "2"),
        ("1,2345", "2345"),
        ("1234,567", "567"),
        ("0,123", "123"),
        ("(1, 2, -3)", "-3"),
        ("12,345,67", "67"),
        # points and exponents
        ("3.14.", "3.14"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("3..5", "5"),
        ("1.2.3", "3"),
        ("2.5e-3", "2.5e-3"),
        ("1E5.", "1E5"),
        ("3 eggs", "3"),
        ("1e5x", "5"),
        # units, fractions, words
        ("50%", "50"),
        ("2nd", "2"),
        ("1/2", "2"),
        ("x2", "2"),
        ("first 3,\nthen 4\n\n", "4"),
        # none
        ("", None),
        ("no number", None),
        ("-", None),
        ("...", None),
        ("\uff11\u0662", None),
    ],
)
def test_last_number(completion: str, number: str | None) -> None:
    assert extract_answer(completion, "last-number") == number


@given(st.text(), st.integers(), st.sampled_from(["", ".", "\n", " apples", ")", ", I think."]))
def test_a_number_at_the_end_is_found_whatever_stands_before(before: str, number: int, after: str) -> None:
    assert extract_answer(f"{before} {number}{after}", "last-number") == str(number)


@given(st.integers(min_value=-(10**12), max_value=10**12))
def test_thousands_separators_change_no_number(number: int) -> None:
    assert extract_answer(f"that makes {number:,}.", "last-number") == str(number)


def test_last_number_takes_time_linear_in_the_text() -> None:
    """Quadratic time would be hours here."""
    assert extract_answer("1" + ",234" * 10**6 + ",5", "last-number") == "5"


@pytest.mark.parametrize(
    ("completion", "line"),
    [
        ("one\ntwo", "two"),
        ("one\n two \r\n\n  \n", "two"),
        ("", None),
        (" \n ", None),
        ("a\u2028b", "a\u2028b"),
    ],
)
def test_last_line(completion: str, line: str | None) -> None:
    assert extract_answer(completion, "last-line") == line


def test_raw_is_the_completion() -> None:
    assert extract_answer(" a\n", "raw") == " a\n"
    assert extract_answer("", "raw") == ""

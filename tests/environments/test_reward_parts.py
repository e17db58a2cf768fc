"""Parts of a reward that need no server, and the sum that they make."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.environments.reward import InvalidReward, NoReward, Part, Reward, WeightedReward
from marlaas.environments.scoring import Scorer, load_scorer, reward_code
from marlaas.schemas.dataset import Message, Row
from marlaas.schemas.environment import Environment, JsonlEnvironment
from pydantic import TypeAdapter

NAN = float("nan")


def row(**fields: Any) -> Row:
    return Row(source="line 1", messages=(Message(role="user", content="?"),), fields=fields)


def environment(*parts: dict[str, Any]) -> JsonlEnvironment:
    content = {"kind": "jsonl", "path": "unused", "reward": parts}
    return TypeAdapter[Any](Environment).validate_python(content)


def scorer(*parts: dict[str, Any]) -> Scorer:
    return load_scorer(environment(*parts))


def summed(value: object) -> WeightedReward:
    return WeightedReward([Part(lambda row, completion: value)])


@pytest.mark.parametrize(
    ("part", "field", "completion", "value"),
    [
        ({"kind": "exact"}, "Paris", " Paris\n", 1.0),
        ({"kind": "exact"}, "Paris", "paris", 0.0),
        ({"kind": "exact"}, " Paris ", "Paris", 1.0),
        ({"kind": "exact"}, 42, "42", 1.0),
        ({"kind": "exact"}, 42, "042", 0.0),
        ({"kind": "exact"}, None, "None", None),
        ({"kind": "exact", "answer": "last-line"}, "Paris", "It is\nParis\n", 1.0),
        ({"kind": "exact", "answer": "last-number"}, "42", "so 42.", 1.0),
        ({"kind": "exact", "answer": "last-number"}, "42", "none", 0.0),
        ({"kind": "numeric"}, 1234, "it is 1,234", 1.0),
        ({"kind": "numeric"}, "so #### 1,234", "1234.0", 1.0),
        ({"kind": "numeric"}, 0.1, "0.1", 1.0),
        ({"kind": "numeric"}, 3, "3.1", 0.0),
        ({"kind": "numeric", "tolerance": 0.25}, 3, "3.25", 1.0),
        ({"kind": "numeric", "tolerance": 0.25}, 3, "3.26", 0.0),
        ({"kind": "numeric"}, 3, "1e999", 0.0),
        ({"kind": "numeric"}, 3, "none", 0.0),
        ({"kind": "numeric"}, None, "3", None),
    ],
)
def test_answers_are_compared_with_the_rows(
    part: dict[str, Any], field: object, completion: str, value: float | None
) -> None:
    always = {"kind": "format", "pattern": ""}
    reward = scorer({**part, "field": "answer"}, always)(row(answer=field), completion)
    assert reward == Reward((value or 0.0) + 1.0, {part["kind"]: value, "format": 1.0})


@pytest.mark.parametrize(
    ("part", "completion", "value"),
    [
        ({"kind": "format", "pattern": r"(?s)\A<a>.*</a>\Z"}, "<a>\n</a>", 1.0),
        ({"kind": "format", "pattern": r"(?s)\A<a>.*</a>\Z"}, "<a>\n</a> ", 0.0),
        ({"kind": "format", "pattern": "b"}, "abc", 1.0),
        ({"kind": "length", "max": 3}, "a b c", 1.0),
        ({"kind": "length", "max": 3}, "a b c d", 0.0),
        ({"kind": "length", "max": 3, "margin": 4}, "a b c d", 0.75),
        ({"kind": "length", "max": 3, "margin": 1}, "a b c d e", 0.0),
        ({"kind": "length", "min": 2, "max": 2, "margin": 2}, "a", 0.5),
        ({"kind": "length", "min": 2}, "a b " * 99, 1.0),
        ({"kind": "length", "min": 2}, "a", 0.0),
        ({"kind": "length", "min": 2, "unit": "characters"}, "äb", 1.0),
        ({"kind": "length", "max": 2, "unit": "characters"}, "a b", 0.0),
    ],
)
def test_form_is_judged_by_the_completion_alone(part: dict[str, Any], completion: str, value: float) -> None:
    assert scorer(part)(row(), completion) == Reward(value, {part["kind"]: value})


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        ("exact", {"answr": "1"}, "line 1 has no field 'answer'; its fields are answr"),
        ("exact", {}, "line 1 has no field 'answer'; its fields are none"),
        ("exact", {"answer": [1]}, r"the field 'answer' holds \[1\]; text or a number is needed"),
        ("numeric", {"answer": True}, "the field 'answer' holds True; text or a number is needed"),
        ("numeric", {"answer": "one"}, "the field 'answer' holds 'one', which has no number in it"),
        ("numeric", {"answer": "1e999"}, "which has no number in it"),
        ("math-verify", {"answer": ""}, "holds '', in which math-verify finds no expression"),
    ],
)
def test_a_row_without_an_answer_is_a_failure_and_not_a_wrong_answer(
    kind: str, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidReward, match=text):
        scorer({"kind": kind, "field": "answer"})(row(**fields), "1")


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (0.5, Reward(0.5)),
        ({"a": 0.5}, Reward(0.5, {"a": 0.5})),
        ({"a": 0.5, "b": None, "c": True}, Reward(1.5, {"a": 0.5, "b": None, "c": 1.0})),
        ({"a": 0}, Reward(0.0, {"a": 0.0})),
    ],
)
def test_a_function_may_return_a_number_or_named_parts(value: object, reward: Reward) -> None:
    assert summed(value)(row(), "") == reward


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (None, NoReward, "no reward applies to the sample: the reward function returned None"),
        ({"a": None, "b": None}, NoReward, "no reward applies to the sample: a, b are None"),
        (NAN, InvalidReward, "the reward function returned nan; it has to be a finite number"),
        ({"a": NAN}, InvalidReward, "the reward function returned 'a': nan; it has to be a finite number"),
        ({"a": "1"}, InvalidReward, "the reward function returned 'a': '1'; it has to be a number or None"),
        ({"a": {"b": 1}}, InvalidReward, "has to be a number or None"),
        ([1.0], InvalidReward, "has to be a number or None"),
        ({}, InvalidReward, "a dictionary of 0; it has to have 1 to 32 names"),
        ({f"p{n}": 1 for n in range(33)}, InvalidReward, "a dictionary of 33"),
        ({"a b": 1}, InvalidReward, "a part named 'a b'; a name is 1 to 64 of letters, digits"),
        ({"a\n": 1}, InvalidReward, r"a part named 'a\\n'"),
        ({1: 1}, InvalidReward, "a part named 1; a name is"),
        ({"a": 1e100, "b": 1e100}, InvalidReward, r"the sum of the parts is 2e\+100; it has to be a finite"),
    ],
)
def test_what_is_no_reward_is_told(value: object, error: type[Exception], text: str) -> None:
    """CASES 73: None and NaN end with their sample, as failures."""
    with pytest.raises(error, match=text):
        summed(value)(row(), "")


def test_weights_are_of_parts_and_of_the_names_in_them() -> None:
    parts = [
        Part(lambda row, completion: 1.0, "right"),
        Part(lambda row, completion: {"a": 1.0, "b": 1.0, "c": None}, "style", 0.5, {"a": 4.0, "c": 100.0}),
        Part(lambda row, completion: None, "other", 100.0),
        Part(lambda row, completion: 2.0, "cost", -0.25),
    ]
    assert WeightedReward(parts)(row(), "") == Reward(
        1.0 + 0.5 * 4 + 0.5 - 0.5,
        {"right": 1.0, "style.a": 1.0, "style.b": 1.0, "style.c": None, "other": None, "cost": 2.0},
    )


def test_a_part_that_raises_takes_the_sum_with_it() -> None:
    def broken(row: Row, completion: str) -> float:
        raise ConnectionError("down")

    parts = [Part(lambda row, completion: 1.0, "right"), Part(broken, "style")]
    with pytest.raises(ConnectionError, match="down"):
        WeightedReward(parts)(row(), "")


@pytest.mark.parametrize(
    ("answer", "completion", "value"),
    [
        (r"\frac{1}{2}", "The answer is 0.5", 1.0),
        (r"\frac{1}{2}", r"so \boxed{\frac{2}{4}}.", 1.0),
        (r"\frac{1}{2}", "The answer is 2", 0.0),
        (r"$x^2+1$", "$1+x^2$", 1.0),
        ("x^2+1", "$x^2$", 0.0),
        (7, "it is $7$", 1.0),
        (7, "", 0.0),
        (7, "no idea", 0.0),
        ("(1, 2)", r"$(1,2)$", 1.0),
        ("(1, 2)", "$2$", 0.0),
    ],
)
def test_mathematics_is_compared_as_such(answer: object, completion: str, value: float) -> None:
    part = {"kind": "math-verify", "field": "answer", "name": "right"}
    assert scorer(part)(row(answer=answer), completion) == Reward(value, {"right": value})
    with pytest.raises(NoReward):
        scorer(part)(row(answer=None), completion)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(InvalidEnvironment, match=r"pip install 'marlaas\[math\]'") as caught:
        scorer({"kind": "format", "pattern": ""}, {"kind": "math-verify", "field": "answer"})
    assert caught.value.path == "environment.reward.1.kind"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("first_reward", "second_reward"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(
            "async def reward(completion, **_):\n    return {'a': 1.0, 'b': None}\n"
        )
    yield tmp_path
    for name in ("first_reward", "second_reward"):
        sys.modules.pop(name, None)


def test_functions_are_parts_and_the_code_of_all_of_them_counts(modules: Path) -> None:
    named = [{"kind": "function", "function": f"{name}_reward:reward"} for name in ("first", "second")]
    both = environment({**named[0], "name": "x", "weights": {"a": 3}}, {**named[1], "name": "y"})
    assert load_scorer(both)(row(), "") == Reward(4.0, {"x.a": 1.0, "x.b": None, "y.a": 1.0, "y.b": None})
    began = reward_code(both)
    assert began is not None
    (modules / "second_reward.py").write_text("def reward(completion, **_): return 0\n")
    assert reward_code(both) not in (began, None)
    assert reward_code(environment({"kind": "format", "pattern": ""})) is None


def test_a_function_that_cannot_be_loaded_is_named_by_its_place(modules: Path) -> None:
    with pytest.raises(InvalidEnvironment, match="importing it failed: ModuleNotFoundError") as caught:
        scorer({"kind": "format", "pattern": ""}, {"kind": "function", "function": "no_such_module:f"})
    assert caught.value.path == "environment.reward.1.function"

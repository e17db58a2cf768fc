"""Rewards in a spec: which parts there are, and how what is wrong in one is told."""

from typing import Any

import pytest
from marlaas.schemas.environment import JsonlEnvironment
from marlaas.schemas.job_spec import InvalidJobSpec, JobSpec, parse_job_spec
from marlaas.schemas.rewards import reward_functions, token_variables

EXACT = {"kind": "exact", "field": "answer"}
JUDGE = {"kind": "judge", "url": "http://127.0.0.1/v1", "model": "m", "prompt": "{completion}"}
HTTP = {"kind": "http", "url": "https://rewards.example/score"}
ALL = [
    EXACT,
    {"kind": "numeric", "field": "answer", "tolerance": 0.5},
    {"kind": "math-verify", "field": "answer"},
    {"kind": "format", "pattern": "^a", "weight": -0.5, "name": "shape"},
    {"kind": "length", "max": 3},
    {"kind": "function", "function": "rewards:score", "weights": {"a": 2}},
    {**HTTP, "token_variable": "MARLAAS_REWARD_A"},
    {**JUDGE, "token_variable": "MARLAAS_REWARD_B", "options": {"max_tokens": 3}},
]


def spec(reward: Any) -> JobSpec:
    return parse_job_spec(
        {
            "tenant": "acme",
            "job": "sums",
            "model": "tiny",
            "steps": 10,
            "environment": {"kind": "jsonl", "path": "rows.jsonl", "reward": reward},
            "sampling": {"groups_per_step": 4, "samples_per_group": 4},
        }
    )


def test_every_kind_travels_and_has_a_name_and_a_weight() -> None:
    job = spec(ALL)
    assert JobSpec.model_validate_json(job.model_dump_json()) == job
    assert isinstance(job.environment, JsonlEnvironment)
    reward = job.environment.reward
    assert not isinstance(reward, str)
    assert [part.label for part in reward] == [
        "exact",
        "numeric",
        "math-verify",
        "shape",
        "length",
        "function",
        "http",
        "judge",
    ]
    assert [part.weight for part in reward] == [1.0, 1.0, 1.0, -0.5, 1.0, 1.0, 1.0, 1.0]
    assert reward_functions(reward) == ("rewards:score",)
    assert token_variables(reward) == ("MARLAAS_REWARD_A", "MARLAAS_REWARD_B")


def test_a_function_alone_stays_the_text_that_it_was() -> None:
    job = spec("rewards:exact")
    assert job.model_dump(mode="json")["environment"]["reward"] == "rewards:exact"
    assert isinstance(job.environment, JsonlEnvironment)
    reward = job.environment.reward
    assert (reward_functions(reward), token_variables(reward)) == (("rewards:exact",), ())


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (3, "environment.reward is 3: should be module:function, or a list of parts that have a kind each"),
        (None, "environment.reward is null: should be module:function, or a list"),
        ("nope", "environment.reward: is 'nope'; write module:function"),
        ([], "environment.reward: has 0 parts; give 1 to 32"),
        ([EXACT] * 33, "environment.reward: has 33 parts; give 1 to 32"),
        (["rewards:exact"], 'environment.reward.0 is "rewards:exact": '),
        ([{"field": "a"}], "environment.reward.0.kind is missing"),
        (
            [{"kind": "exactly", "field": "a"}],
            "environment.reward.0.kind is \"exactly\": should be one of 'exact', 'numeric', 'math-verify', "
            "'format', 'length', 'function', 'http', 'judge'",
        ),
        ([EXACT, {**EXACT, "weight": 2}], "environment.reward: has two parts named exact; give each a name"),
        ([EXACT, {**JUDGE, "name": "exact"}], "environment.reward: has two parts named exact"),
        (
            [{**EXACT, "weight": float("nan")}],
            "environment.reward.0.weight is NaN: should be a finite number",
        ),
        ([{**EXACT, "weight": float("inf")}], "environment.reward.0.weight is Infinity: should be a finite"),
        ([{**EXACT, "weight": "1"}], 'environment.reward.0.weight is "1": should be a valid number'),
        ([{**EXACT, "name": "a/b"}], 'environment.reward.0.name is "a/b": '),
        ([{**EXACT, "feild": "x"}], "environment.reward.0.feild is not a known field; did you mean field?"),
        ([EXACT, {"kind": "numeric"}], "environment.reward.1.field is missing"),
        (
            [{"kind": "format", "pattern": "("}],
            "environment.reward.0.pattern: is '(', which is no regular expression of Python: missing )",
        ),
        ([{"kind": "length"}], "environment.reward.0: has neither min nor max"),
        ([{"kind": "length", "min": 3, "max": 2}], "environment.reward.0: min is 3 and max 2"),
        (
            [{"kind": "function", "function": "nope"}],
            "environment.reward.0.function: is 'nope'; write module:function",
        ),
        (
            [{"kind": "function", "function": "a:b", "weights": {"c": "d"}}],
            'environment.reward.0.weights.c is "d": should be a valid number',
        ),
        ([{**HTTP, "url": "ftp://x"}], "environment.reward.0.url: is 'ftp://x'; write an address"),
        ([{**HTTP, "url": "http://"}], "environment.reward.0.url: is 'http://'; write an address"),
        ([{**HTTP, "url": "http://a:99999"}], "environment.reward.0.url: is 'http://a:99999'; write"),
        ([{**HTTP, "url": "http://me:pw@a/"}], "environment.reward.0.url: has a user or password in it"),
        ([{**HTTP, "token_variable": "AWS_SECRET"}], 'environment.reward.0.token_variable is "AWS_SECRET": '),
        ([{**HTTP, "timeout_seconds": 0}], "environment.reward.0.timeout_seconds is 0: "),
        ([{**JUDGE, "prompt": "{prompt}"}], "environment.reward.0: prompt has no {completion}"),
        ([{**JUDGE, "low": 1, "high": 1}], "environment.reward.0: low is 1.0 and high 1.0"),
        ([{**JUDGE, "options": {"model": "b"}}], "environment.reward.0: options sets model"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(reward: Any, said: str) -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        spec(reward)
    _, line = str(caught.value).splitlines()
    assert line.startswith(f"  {said}")
    assert "pw" not in line

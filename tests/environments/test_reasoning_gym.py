"""Tasks of reasoning-gym as environments."""

import random
import subprocess
import sys
from typing import Any

import pytest
from marlaas.environments.datasets import build_dataset
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.environments.reasoning_gym import TaskScorer, task_rows
from marlaas.environments.stored_entry import decode_entry, encode_entry
from marlaas.schemas.dataset import Dataset
from marlaas.schemas.environment import ReasoningGymEnvironment
from marlaas.schemas.job_spec import EvaluationSpec, JobSpec, SamplingSpec

ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def task(name: str = "chain_sum", **fields: Any) -> ReasoningGymEnvironment:
    return ReasoningGymEnvironment(kind="reasoning-gym", task=name, **fields)


def spec(environment: ReasoningGymEnvironment, held_out: int = 0, seed: int = 0) -> JobSpec:
    return JobSpec(
        tenant="acme",
        job="sums",
        model="tiny",
        steps=1,
        seed=seed,
        environment=environment,
        sampling=SamplingSpec(groups_per_step=1, samples_per_group=2),
        evaluation=EvaluationSpec(prompts=held_out),
    )


def test_chain_sum_of_one_digit_has_200_questions() -> None:
    rows = task_rows(task(options=ONE_DIGIT, pool=2000))
    assert len(rows) == len({row.messages for row in rows}) == 200
    assert len(task_rows(task(options=ONE_DIGIT, pool=1000))) == 199


def test_rows_carry_system_question_and_suffix() -> None:
    [row, *_] = task_rows(task(options=ONE_DIGIT, pool=2, system="Be brief.", suffix=" Number only."))
    assert [message.role for message in row.messages] == ["system", "user"]
    question = decode_entry(row.fields["entry"])["question"]
    assert row.messages[1].content == question + " Number only."
    assert row.source == "entry 0"


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("{right}", 1.0),
        ("17 minus something is {right}.", 1.0),
        ("{right}.0", 1.0),
        ("{wrong}", 0.0),
        ("{right} or {wrong}", 0.0),
        ("no number", 0.0),
        ("", 0.0),
    ],
)
def test_only_the_right_number_scores_one(completion: str, score: float) -> None:
    environment = task(options=ONE_DIGIT, pool=500, answer="last-number")
    scorer = TaskScorer(environment)
    for row in task_rows(environment):
        right = decode_entry(row.fields["entry"])["answer"]
        text = completion.format(right=right, wrong=int(right) + 37)
        assert scorer(row, text) == pytest.approx(score) or score == 0.0
        assert (scorer(row, text) == 1.0) == (score == 1.0)


def test_a_wrong_number_never_scores_one_but_may_score_something() -> None:
    environment = task(options=ONE_DIGIT, pool=500, answer="last-number")
    scorer = TaskScorer(environment)
    rows = task_rows(environment)
    for row in rows:
        right = int(decode_entry(row.fields["entry"])["answer"])
        for number in range(-30, 31):
            assert (scorer(row, str(number)) == 1.0) == (number == right)
    five = next(row for row in rows if decode_entry(row.fields["entry"])["answer"] == "5")
    assert scorer(five, "15") == 0.5
    assert scorer(five, "-5") == 0.5


def test_raw_completions_score_as_the_task_says() -> None:
    environment = task(options=ONE_DIGIT, pool=2)
    [row, *_] = task_rows(environment)
    right = decode_entry(row.fields["entry"])["answer"]
    assert TaskScorer(environment)(row, right) == 1.0
    assert TaskScorer(environment)(row, f"The answer is {right}") < 1.0


# arc_agi and rearc score tuples and lists differently; graph_color and codeio have integer keys;
# prime_factorization's scorer raises on text; list_functions draws from the global generator.
@pytest.mark.parametrize(
    "name",
    ["basic_arithmetic", "rearc", "codeio", "graph_color", "prime_factorization", "list_functions", "sudoku"],
)
def test_stored_rows_score_as_fresh_entries_do(name: str) -> None:
    environment = task(name, pool=5)
    dataset = build_dataset(spec(environment))
    assert Dataset.model_validate_json(dataset.model_dump_json()) == dataset
    scorer = TaskScorer(environment)
    for row in Dataset.model_validate_json(dataset.model_dump_json()).train:
        entry = decode_entry(row.fields["entry"])
        if entry["answer"] is not None:
            assert scorer(row, entry["answer"]) == 1.0
        assert 0 <= scorer(row, "zzz") < 0.2


def test_a_build_leaves_the_global_generator_alone_and_repeats_itself() -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    first = task_rows(task("list_functions", pool=20))
    assert random.random() == expected
    assert task_rows(task("list_functions", pool=20)) == first
    assert task_rows(task("list_functions", pool=20, data_seed=9)) != first


def test_held_out_questions_are_disjoint_and_shared_by_all_seeds() -> None:
    environment = task(options=ONE_DIGIT, pool=1000)
    dataset = build_dataset(spec(environment, 64, seed=1))
    held_out = [row.messages for row in dataset.held_out]
    assert len(set(held_out)) == 64
    assert not set(held_out) & {row.messages for row in dataset.train}
    assert len(dataset.train) == 199 - 64
    assert build_dataset(spec(environment, 64, seed=2)) == dataset
    numbers = [int(row.source.split()[1]) for row in dataset.held_out]
    assert max(numbers) > 64


def test_too_few_questions() -> None:
    with pytest.raises(InvalidEnvironment, match=r"evaluation\.prompts: is 199; .* 1000 has 199 distinct"):
        build_dataset(spec(task(options=ONE_DIGIT, pool=1000), 199))


@pytest.mark.parametrize(
    ("environment", "path", "problem"),
    [
        (
            task("chain_sun"),
            "environment.task",
            r"named 'chain_sun'; did you mean .*'chain_sum'.*there are ab, ",
        ),
        (task("xyzzy!"), "environment.task", "no task is named 'xyzzy!'; there are ab, acre, "),
        (
            task(options={"min_term": 2}),
            "environment.options",
            "chain_sum has no option 'min_term'; did you mean 'min_terms'.* there are allow_negation, ",
        ),
        (task(options={"seed": 2}), "environment.options", "has 'seed', which environment.data_seed sets"),
        (task(options={"size": 2}), "environment.options", "has 'size', which environment.pool sets"),
        (
            task(options={"min_terms": 5, "max_terms": 2}),
            "environment.options",
            r"are {'min_terms': 5, 'max_terms': 2}; chain_sum refuses them: max_terms must be >= min_terms",
        ),
        (
            task(options={"min_terms": "two"}),
            "environment.options",
            "refuses them: .*not supported",
        ),
        (task(options={"min_terms": None}), "environment.options", "chain_sum refuses them"),
        (task(options={"min_digits": 1.5}), "environment.options", "cannot generate entry 0"),
    ],
)
def test_wrong_tasks_and_options_are_refused_by_name(
    environment: ReasoningGymEnvironment, path: str, problem: str
) -> None:
    with pytest.raises(InvalidEnvironment, match=problem) as caught:
        build_dataset(spec(environment))
    assert caught.value.path == path
    again = InvalidEnvironment.parse(str(caught.value))
    assert (again.path, again.problem) == (caught.value.path, caught.value.problem)


@pytest.mark.parametrize(
    "entry",
    [
        {"answer": (1, [2, (3,)], {"a": ()})},
        {"metadata": {1: "a", (2, 3): "b", None: {"~tuple": [1]}, "~pairs": [], False: 1.5}},
        {"~tuple": 1},
        {"text": "\x00\ud800 é", "numbers": [2**80, 1e-320, -0.0, True, None]},
    ],
)
def test_entries_come_back_as_they_were(entry: dict[str, Any]) -> None:
    decoded = decode_entry(encode_entry(entry))
    assert decoded == entry
    assert repr(decoded) == repr(entry)


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", 1j, float("nan")])
def test_entries_that_cannot_be_kept_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"JSON"):
        encode_entry({"metadata": value})


def test_importing_environments_needs_no_torch_and_no_tasks() -> None:
    code = (
        "import sys, marlaas.environments.datasets, marlaas.environments.scoring;"
        "assert not {'torch', 'reasoning_gym', 'temporalio', 'nats', 'minio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

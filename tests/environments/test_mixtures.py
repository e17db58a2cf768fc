"""Datasets of several environments."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from marlaas.environments.datasets import build_dataset
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.schemas.dataset import Dataset
from marlaas.schemas.job_spec import InvalidJobSpec, JobSpec, parse_job_spec


def rows(folder: Path, name: str, prompts: list[str]) -> dict[str, Any]:
    path = folder / f"{name}.jsonl"
    path.write_text(
        "\n".join(json.dumps({"prompt": one, "of": name, "id": n}) for n, one in enumerate(prompts))
    )
    return {"kind": "jsonl", "path": str(path), "reward": f"rewards:{name}"}


def mixture(*of: dict[str, Any], prompts: int = 0) -> JobSpec:
    return parse_job_spec(
        {
            "tenant": "acme",
            "job": "mixed",
            "model": "tiny",
            "steps": 1,
            "environment": {"kind": "mixture", "of": list(of)},
            "sampling": {"groups_per_step": 1, "samples_per_group": 2},
            "evaluation": {"prompts": prompts},
        }
    )


def test_rows_say_their_environment_and_held_out_ones_are_split_by_weight(tmp_path: Path) -> None:
    sums = rows(tmp_path, "sums", [f"sum {n}" for n in range(30)])
    words = rows(tmp_path, "words", [f"word {n}" for n in range(20)])
    spec = mixture(
        {"name": "s", "weight": 3, "environment": sums}, {"name": "w", "environment": words}, prompts=8
    )
    dataset = Dataset.model_validate_json(build_dataset(spec).model_dump_json())
    assert [(row.environment, row.fields["of"]) for row in dataset.train] == (
        [("s", "sums")] * 24 + [("w", "words")] * 18
    )
    assert [row.environment for row in dataset.held_out] == ["s"] * 6 + ["w"] * 2
    alone = parse_job_spec(spec.model_dump(mode="json") | {"environment": sums, "evaluation": {"prompts": 6}})
    same = [row.model_copy(update={"environment": "s"}) for row in build_dataset(alone).held_out]
    assert list(dataset.held_out[:6]) == same
    assert dataset.train[0].place.startswith("s: line ")


def test_no_prompt_is_on_both_sides_of_any_environment(tmp_path: Path) -> None:
    prompts = [f"question {n}" for n in range(20)]
    one, other = rows(tmp_path, "one", prompts), rows(tmp_path, "other", [*prompts[::-1], "more", "again"])
    dataset = build_dataset(
        mixture({"name": "a", "environment": one}, {"name": "b", "environment": other}, prompts=9)
    )
    held_out = {row.messages for row in dataset.held_out}
    assert Counter(row.environment for row in dataset.held_out) == {"a": 5, "b": 4}
    assert not held_out & {row.messages for row in dataset.train}


def test_faults_name_the_environment(tmp_path: Path) -> None:
    good = {"name": "good", "environment": rows(tmp_path, "good", ["a", "b"])}
    bad = {"name": "bad", "environment": rows(tmp_path, "bad", ["a", ""])}
    with pytest.raises(InvalidEnvironment, match=r"environment\.of\.1\.environment\.path: .*line 2: prompt"):
        build_dataset(mixture(good, bad))
    few = mixture({**good, "weight": 9}, {"name": "x", "environment": good["environment"]}, prompts=3)
    with pytest.raises(InvalidEnvironment, match=r"is 3, of which good gets 3; .* 2 distinct prompts"):
        build_dataset(few)
    [held_out] = build_dataset(mixture(good, prompts=1)).held_out
    one = {"name": "one", "environment": rows(tmp_path, "one", [held_out.messages[0].content])}
    with pytest.raises(InvalidEnvironment, match="every prompt of one is held out in another environment"):
        build_dataset(mixture({**good, "weight": 9}, one, prompts=1))


WRONG: list[tuple[list[dict[str, Any]], str]] = [
    ([], "environment.of is .* should have at least 1 item"),
    ([{"name": "a", "environment": {"kind": "mixture", "of": []}}], r"of\.0\.environment: is a mixture in a"),
    ([{"name": "A", "environment": None}], r"environment\.of\.0\.name is \"A\""),
    ([{"name": "a", "weight": 0.5, "environment": None}], r"environment\.of\.0\.weight is 0\.5"),
    ([{"name": "a", "weight": 0, "environment": None}], r"environment\.of\.0\.weight is 0"),
    (
        [{"name": "a", "environment": {"kind": "parquet", "path": "x"}}],
        r"of\.0\.environment\.reward is missing",
    ),
]


@pytest.mark.parametrize(("of", "problem"), WRONG)
def test_a_wrong_mixture_is_refused(of: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(InvalidJobSpec, match=problem):
        mixture(*of)


def test_names_differ(tmp_path: Path) -> None:
    one = {"name": "a", "environment": rows(tmp_path, "a", ["a"])}
    with pytest.raises(InvalidJobSpec, match="environment: of has a name twice: a, a"):
        mixture(one, one)

"""Fields of the job spec: what is refused, and what a field that is added later must leave as it was."""

import json
from typing import Any, get_args

import pytest
from marlaas.schemas.dataset import Message, Row
from marlaas.schemas.environment import JsonlEnvironment
from marlaas.schemas.job_spec import InvalidJobSpec, JobSpec, parse_job_spec
from marlaas.schemas.objective import ObjectiveName, ObjectiveSpec
from pydantic import ValidationError

SPEC: dict[str, Any] = {
    "tenant": "acme",
    "job": "sums",
    "model": "tiny",
    "steps": 10,
    "environment": {"kind": "reasoning-gym", "task": "chain_sum"},
    "sampling": {"groups_per_step": 4, "samples_per_group": 4, "max_tokens": 16},
}
SINCE = "58991754e7e7dc45bbf5200f4e672f0392fb1ea2aabcdd933bca9b990bc88646"
"""The digest of SPEC in manifests of November 2026."""


def test_a_spec_that_uses_no_new_field_keeps_its_digest() -> None:
    """A job that began before the field existed commits its next version under the digest of its last."""
    spec = parse_job_spec(SPEC)
    assert spec.digest == SINCE
    assert not {"stop", "precision", "gradient_checkpointing", "best"} & set(
        spec.model_dump_json().split('"')
    )


@pytest.mark.parametrize("name", get_args(ObjectiveName))
@pytest.mark.parametrize("limit", [None, 0.0, 0.5, 1.0])
def test_an_objective_is_read_as_it_was_written(name: str, limit: float | None) -> None:
    """Workers read specs that another process wrote: what is left out has to come back as it was."""
    given = {"name": name} if limit is None else {"name": name, "refill_limit": limit}
    try:
        spec = ObjectiveSpec.model_validate(given)
    except ValidationError:
        assert limit
        assert not ObjectiveSpec.model_validate({"name": name}).compares_samples
        return
    assert ObjectiveSpec.model_validate_json(spec.model_dump_json()) == spec


def test_neither_do_rows_and_their_environment_change() -> None:
    """The text of a row is what seeds its reward."""
    environment = JsonlEnvironment(kind="jsonl", path="x", reward="a:b")
    assert environment.model_dump_json() == '{"kind":"jsonl","path":"x","reward":"a:b"}'
    row = Row(source="line 1", messages=(Message(role="user", content="x"),), fields={})
    assert list(json.loads(row.model_dump_json())) == ["source", "messages", "fields"]


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bfloat16"},
        {"optimizer": {"gradient_checkpointing": True}},
        {"start": {"adapter": "/adapters/sums"}},
        {"start": {"job": "acme/before", "version": 3}},
        {"sampling": {**SPEC["sampling"], "stop": ["\n\n"]}},
    ],
    ids=str,
)
def test_a_new_field_changes_the_digest_and_travels(changes: dict[str, Any]) -> None:
    spec = parse_job_spec({**SPEC, **changes})
    assert spec.digest != SINCE
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ([""], r"sampling\.stop\.0"),
        (["x" * 65], r"sampling\.stop\.0"),
        (["x"] * 17, r"sampling\.stop"),
        ("x", r"sampling\.stop"),
    ],
)
def test_stop_strings_that_are_refused(stop: Any, said: str) -> None:
    with pytest.raises(InvalidJobSpec, match=said):
        parse_job_spec({**SPEC, "sampling": {**SPEC["sampling"], "stop": stop}})


def test_as_many_and_as_long_stop_strings_as_allowed() -> None:
    stop = ["x" * 64] * 16
    spec = parse_job_spec({**SPEC, "sampling": {**SPEC["sampling"], "stop": stop}})
    assert spec.sampling.stop == tuple(stop)


@pytest.mark.parametrize("field", ["top_p", "top_k", "min_p"])
def test_sampling_from_a_part_of_the_distribution_is_not_offered(field: str) -> None:
    """CASES 50: its log-probabilities would be those of another policy than the trainer's."""
    with pytest.raises(InvalidJobSpec, match=rf"sampling\.{field}"):
        parse_job_spec({**SPEC, "sampling": {**SPEC["sampling"], field: 0.9}})


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ({}, "start: has nothing: give either adapter, or job and version"),
        ({"job": "acme/before"}, "start: has job: give either"),
        ({"adapter": "/a", "version": 1}, "start: has adapter, version: give either"),
        ({"job": "acme/before", "version": -1}, r"start\.version is -1"),
        ({"job": "other/before", "version": 1}, "start.job is 'other/before': a job of tenant acme"),
        ({"job": "acme/x/y", "version": 1}, "start.job is 'acme/x/y': write tenant/job"),
        ({"job": "before", "version": 1}, "start.job is 'before': write tenant/job"),
    ],
    ids=str,
)
def test_starts_that_are_refused(start: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJobSpec, match=said):
        parse_job_spec({**SPEC, "start": start})

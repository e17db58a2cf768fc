"""Job files: what is read, and what is refused with which words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marlaas.jobs.errors import InvalidJobFile
from marlaas.jobs.job_file import read_job_file
from marlaas.schemas.job_spec import InvalidJobSpec, parse_job_spec

Spec = Callable[..., dict[str, Any]]


def written(folder: Path, text: str, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_plain_scalars_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = "a: 5e-4\nb: no\nc: 1:30\nd: 010\ne: 2026-01-01\nf: .5\ng: ~\nh: true\ni: '12'\nj: -3\nk:\n"
    assert read_job_file(written(tmp_path, text)) == {
        "a": 5e-4,
        "b": "no",
        "c": "1:30",
        "d": 10,
        "e": "2026-01-01",
        "f": 0.5,
        "g": None,
        "h": True,
        "i": "12",
        "j": -3,
        "k": None,
    }


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("job.yaml", "a: 1\nb:\n  c: 1\n  c: 2\n", "line 4, column 3: c is given twice"),
        ("job.yaml", "a: [1\nb: 2", "line 2, column 2"),
        ("job.yaml", "1: 2", "line 1, column 1: the key 1 is not text"),
        ("job.yaml", "a: !!python/object:os.system 1", "line 1, column 4"),
        ("job.yaml", "a: \x01", "not YAML"),
        ("job.json", '{"a": 1,\n "a": 2}', "a is given twice"),
        ("job.json", '{"a": 1,\n b}', "line 2, column 2"),
        ("job.yaml", f"a: {'9' * 5000}", "line 1, column 4: this is no int"),
        ("job.yaml", "a: !!int abc", "line 1, column 4: this is no int"),
        ("job.yaml", "a: !!float abc", "line 1, column 4: this is no float"),
        ("job.yaml", "a: !!bool maybe", "line 1, column 4: this is no bool"),
        ("job.yaml", "a: !!timestamp 2020-13-45", "line 1, column 4: this is no timestamp"),
        ("job.yaml", "a: !!timestamp x", "line 1, column 4: this is no timestamp"),
        ("job.yaml", "a: " + "[" * 3000 + "]" * 3000, "lie in one another"),
        ("job.yaml", "a: &x [1]\nb: [*x, *x]", "line 2, column 5: *x is an alias"),
        ("job.json", f'{{"a": {"9" * 5000}}}', "4300 digits"),
        ("job.json", '{"a": ' + "[" * 100_000, "lie in one another"),
        ("job.toml", "a = 1", "*.yaml, *.yml or *.json"),
    ],
)
def test_unreadable_files_are_refused_with_the_place(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    path = written(tmp_path, text, name)
    with pytest.raises(InvalidJobFile) as caught:
        read_job_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)


def test_a_missing_file_and_one_of_other_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobFile, match="no such file"):
        read_job_file(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    with pytest.raises(InvalidJobFile, match="UTF-8"):
        read_job_file(tmp_path / "latin.yaml")


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    path = written(
        tmp_path / "jobs", "model: ../tiny\nenvironment: {kind: jsonl, path: rows.jsonl, reward: a:b}"
    )
    content = read_job_file(path)
    assert content["model"] == str(tmp_path / "tiny")
    assert content["environment"]["path"] == str(tmp_path / "jobs" / "rows.jsonl")
    hub = read_job_file(written(tmp_path, "model: org/name"))
    assert hub["model"] == "org/name"


def test_so_do_the_paths_of_a_mixture(tmp_path: Path) -> None:
    rows = "{name: a, environment: {kind: parquet, path: data/rows.parquet, reward: a:b}}"
    task = "{name: b, environment: {kind: reasoning-gym, task: chain_sum}}"
    path = written(tmp_path, f"environment: {{kind: mixture, of: [{rows}, {task}, 3]}}")
    content = read_job_file(path)
    assert content["environment"]["of"] == [
        {
            "name": "a",
            "environment": {
                "kind": "parquet",
                "path": str(tmp_path / "data" / "rows.parquet"),
                "reward": "a:b",
            },
        },
        {"name": "b", "environment": {"kind": "reasoning-gym", "task": "chain_sum"}},
        3,
    ]


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"tenant": "Acme_1"}, ["tenant is \"Acme_1\": should be a DNS label: 1 to 55 of a-z, 0-9 and '-'"]),
        ({"tenant": "a" * 56}, ['tenant is "' + "a" * 56 + '": should be a DNS label: 1 to 55 of a-z']),
        (
            {"environment": {"kind": "reasoning-gym", "task": "x", "options": {"a": [float("nan")]}}},
            ["environment: options are {'a': [nan]}; numbers in them have to be finite"],
        ),
        ({"durability": {"give_up_hours": 1e-9}}, ["durability.give_up_hours is 1e-09: should be greater"]),
        ({"step": 3}, ["step is not a known field; did you mean steps?"]),
        ({"zzz": 3}, ["zzz is not a known field; the fields here are format, tenant, job"]),
        ({"steps": "x"}, ['steps is "x": should be a valid integer']),
        ({"steps": True}, ["steps is true: should be a valid integer"]),
        (
            {"objective": {"name": "ppo"}},
            ["objective: ppo needs a value model (a critic), which is not offered"],
        ),
        (
            {"objective": {"name": "trpo"}},
            ["objective.name is \"trpo\": should be 'grpo', 'dr_grpo', 'dapo'"],
        ),
        (
            {"objective": {"name": "importance_sampling", "clip_low": 0.1}},
            ["objective: clip_low has no effect with clip: none"],
        ),
        (
            {"objective": {"name": "cispo", "dual_clip": 3.0}},
            ["objective: dual_clip belongs to clip: ppo, and clip is cispo"],
        ),
        (
            {"objective": {"correction": {"kind": "token-mask"}}},
            ["objective: correction needs old: trainer; with old: sampler the ratio already is against"],
        ),
        (
            {"objective": {"old": "trainer", "correction": {"kind": "token-truncate", "low": 0.5}}},
            ["objective: correction.low has no effect with correction.kind token-truncate"],
        ),
        (
            {"objective": {"kl": {"coefficient": 0.1, "estimator": "k4"}}},
            ["objective.kl.estimator is \"k4\": should be 'k1', 'k2' or 'k3'"],
        ),
        (
            {"sampling": {"groups_per_step": 2, "samples_per_group": 1}},
            ["sampling.samples_per_group is 1: grpo compares the samples of a prompt and needs at least 2"],
        ),
        ({"optimizer": {"mini_batches": 99}}, ["optimizer.mini_batches is 99, and a mini-batch holds whole"]),
        ({"optimizer": {"warmup_steps": 10**6}}, ["optimizer.warmup_steps is 1000000: at most steps"]),
        (
            {"objective": {"overlong": {"buffer_tokens": 10**6}}},
            ["objective.overlong.buffer_tokens is 1000000"],
        ),
        ({"environment": {"kind": "gym"}}, ['environment.kind is "gym": should be one of']),
        ({"environment": {"task": "x"}}, ["environment.kind is missing"]),
        (
            {"environment": {"kind": "jsonl", "path": "", "rewards": "a:b"}},
            [
                'environment.path is "": String should have at least 1 character',
                "environment.reward is missing",
                "environment.rewards is not a known field; did you mean reward?",
            ],
        ),
        (
            {"environment": {"kind": "jsonl", "path": "x", "reward": "nope"}},
            ["environment.reward: is 'nope'; write module:function"],
        ),
        ({"format": 2}, ["JobSpec has format 2; this version of marlaas reads format 1"]),
        ({"lora": {"targets": ["q", "q"]}}, ["lora.targets names a layer twice: q"]),
    ],
)
def test_every_wrong_field_is_named_with_what_is_allowed(
    spec: Spec, changes: dict[str, Any], lines: list[str]
) -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        parse_job_spec(spec(**changes))
    head, *found = str(caught.value).splitlines()
    assert head == "the job spec is not valid:"
    assert len(found) == len(lines)
    for line, expected in zip(found, lines, strict=True):
        assert line.startswith(f"  {expected}")


def test_missing_fields_are_named(spec: Spec) -> None:
    content = spec()
    del content["steps"], content["sampling"]["groups_per_step"]
    with pytest.raises(InvalidJobSpec, match=r"  steps is missing\n  sampling.groups_per_step is missing"):
        parse_job_spec(content)


def test_an_adapter_to_start_from_is_relative_to_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "start: {adapter: adapters/sums}")
    assert read_job_file(path)["start"] == {"adapter": str(tmp_path / "adapters" / "sums")}
    path = written(tmp_path, "start: {job: acme/sums, version: 3}")
    assert read_job_file(path)["start"] == {"job": "acme/sums", "version": 3}

"""Parquet files and saved Hugging Face datasets, as their own libraries write them."""
# pyarrow and datasets are hardly typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportCallIssue=false, reportArgumentType=false

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from marlaas.environments.arrow_rows import read_parquet, read_saved
from marlaas.environments.datasets import build_dataset
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.schemas.dataset import Dataset, Row
from marlaas.schemas.job_spec import parse_job_spec

Values = list[dict[str, Any]]
Read = Callable[[Values], list[Row]]


def parquet(path: Path, table: Any, **options: Any) -> str:
    pq.write_table(table, path / "rows.parquet", **options)
    return str(path / "rows.parquet")


@pytest.fixture(params=["parquet", "huggingface"])
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Read:
    """Writes rows with the format's own library, and reads them back."""

    def from_parquet(rows: Values) -> list[Row]:
        return read_parquet(parquet(tmp_path, pa.Table.from_pylist(rows), row_group_size=2))

    def from_folder(rows: Values) -> list[Row]:
        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved", num_shards=min(2, len(rows)))
        return read_saved(str(tmp_path / "saved"))

    return from_parquet if request.param == "parquet" else from_folder


def test_rows_keep_their_order_prompts_and_columns(read: Read) -> None:
    rows: Values = [
        {"prompt": f"question {n} 🙂", "n": n, "x": 0.1 + n, "right": n % 2 == 0, "tags": ["a"] * n}
        for n in range(5)
    ]
    found = read(rows)
    assert [row.messages[0].content for row in found] == [row["prompt"] for row in rows]
    assert [{"prompt": row.messages[0].content, **row.fields} for row in found] == rows
    assert [row.source for row in found] == [f"row index {n}" for n in range(5)]


def test_arguments_of_different_shapes_gain_no_null_keys(read: Read) -> None:
    """CASES 91: as far as Arrow can tell; JSON text and the nulls of whole columns come back unchanged."""
    text = '{"x": null, "y": [1, {}]}'
    prompt = [{"role": "user", "content": "hi"}]
    found = read(
        [
            {"messages": prompt, "args": {"a": 1}, "text": text, "answer": None},
            {"messages": prompt, "args": {"b": {"c": "x"}}, "text": "b", "answer": "4"},
            {"messages": [{"role": "system", "content": "s", "name": "n"}, *prompt][1:], "args": {"b": {}}},
        ]
    )
    assert [row.fields for row in found] == [
        {"args": {"a": 1}, "text": text, "answer": None},
        {"args": {"b": {"c": "x"}}, "text": "b", "answer": "4"},
        {"args": {"b": {}}, "text": None, "answer": None},
    ]


def test_a_column_of_json_comes_back_unchanged_with_its_nulls(tmp_path: Path) -> None:
    values: list[Any] = [{"a": 1}, {"b": None, "c": [1, "x", {}]}, None, "text"]
    features = datasets.Features({"prompt": datasets.Value("string"), "args": datasets.Json()})
    table = {"prompt": ["a", "b", "c", "d"], "args": values}
    datasets.Dataset.from_dict(table, features=features).save_to_disk(tmp_path / "saved")
    assert [row.fields["args"] for row in read_saved(str(tmp_path / "saved"))] == values


def test_a_job_reads_them_whole(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([{"question": f"{n}?", "n": n} for n in range(10)])
    environment = {"kind": "parquet", "path": parquet(tmp_path, rows), "reward": "rewards:exact"}
    spec = parse_job_spec(
        {
            "tenant": "acme",
            "job": "sums",
            "model": "tiny",
            "steps": 1,
            "environment": environment | {"prompt_field": "question"},
            "sampling": {"groups_per_step": 1, "samples_per_group": 2},
            "evaluation": {"prompts": 3},
        }
    )
    dataset = Dataset.model_validate_json(build_dataset(spec).model_dump_json())
    assert len(dataset.held_out) == 3
    assert sorted(row.fields["n"] for row in (*dataset.train, *dataset.held_out)) == list(range(10))


def test_wrong_rows_are_told_by_their_index(read: Read) -> None:
    contents = ["a", " ", None, "b", "c"]
    rows: Values = [{"prompt": one, "id": f"q{n}"} for n, one in enumerate(contents)]
    rows[4]["id"] = "q0"
    with pytest.raises(InvalidEnvironment) as caught:
        read(rows)
    told = caught.value.problem.split("\n  ")
    assert told[0].endswith("' has 3 wrong rows:")
    assert [line.partition(";")[0] for line in told[1:]] == [
        "row index 1: prompt is empty",
        "row index 2: prompt is null",
        "row index 4: has the id 'q0', which row index 0 has too",
    ]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"x": pa.array([datetime.date(2026, 1, 1)])}, r"the column 'x' has type date32\[day\], which JSON"),
        ({"x": [[{"y": b"bytes"}]]}, "the column 'x' has type binary"),
        ({"x": [float("nan")]}, "row index 0: x cannot be stored"),
        ({"completion": ["x"]}, "has a field 'completion'"),
        ({"x": pa.array([b"\xff"]).view(pa.binary()).cast(pa.binary()).view(pa.string())}, "is not UTF-8"),
        (
            {"x": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{"]))},
            "row index 0: x is not the JSON",
        ),
    ],
)
def test_values_that_json_lacks_are_refused(tmp_path: Path, columns: dict[str, Any], problem: str) -> None:
    path = parquet(tmp_path, pa.table({"prompt": ["a"], **columns}))
    with pytest.raises(InvalidEnvironment, match=problem):
        read_parquet(path)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path, pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["prompt", "prompt"]))
    with pytest.raises(InvalidEnvironment, match="the column 'prompt' twice"):
        read_parquet(path)


@pytest.mark.parametrize("cut", [0, 0.5, 0.99])
def test_a_damaged_file_is_refused(tmp_path: Path, cut: float) -> None:
    path = Path(parquet(tmp_path, pa.table({"prompt": ["a"] * 1000})))
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data))])
    with pytest.raises(InvalidEnvironment, match=r"rows\.parquet' is not a Parquet file, or damaged"):
        read_parquet(str(path))


def test_splits_are_chosen_by_name(tmp_path: Path) -> None:
    parts = {name: datasets.Dataset.from_dict({"prompt": [name]}) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "both")
    datasets.DatasetDict(train=parts["train"]).save_to_disk(tmp_path / "one")
    both, one, single = (str(tmp_path / name) for name in ("both", "one", "both/test"))
    contents = [
        read_saved(path, split)[0].messages[0].content
        for path, split in [(both, "test"), (both, "train"), (one, None), (single, None)]
    ]
    assert contents == ["test", "train", "train", "test"]
    for path, split, problem in [
        (both, None, "is not given; '.*both' has the splits train, test"),
        (both, "dev", "is 'dev'; '.*both' has the splits train, test"),
        (single, "train", "is 'train'; '.*both/test' has None alone"),
    ]:
        with pytest.raises(InvalidEnvironment, match=f"environment.split: {problem}"):
            read_saved(path, split)


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidEnvironment, match="is no folder that save_to_disk of `datasets` wrote"):
        read_saved(str(tmp_path))
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(InvalidEnvironment, match=r"state\.json' is damaged: it has no '_data_files'"):
        read_saved(str(tmp_path))
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "none.arrow"}]}))
    with pytest.raises(InvalidEnvironment, match=r"none\.arrow' cannot be read: .*No such file"):
        read_saved(str(tmp_path))


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for reader in (read_parquet, read_saved):
        with pytest.raises(InvalidEnvironment, match=r"lacks the package: pip install 'marlaas\[data\]'"):
            reader("unused")

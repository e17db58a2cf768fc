"""Prompts from columns: Parquet files, and folders that `save_to_disk` of Hugging Face `datasets` wrote.

Such a folder holds streams of Arrow's IPC format, which pyarrow reads alone.
"""

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from ..schemas.dataset import Row
from .invalid import InvalidEnvironment
from .row_check import PATH, WrongRow, checked_rows
from .source_file import read_source

_BATCH = 1000
_Convert = Callable[[Any], object]


def read_parquet(path: str, prompt_field: str | None = None) -> list[Row]:
    """The rows of a file, in its order; their places count from 0, as pandas does.

    A null in a struct is left out: Arrow does not tell it from a field that the row never had. One that is
    the whole value of a column, or in a list, stays.

    Raises:
        InvalidEnvironment: when the file cannot be read, a column has a type that JSON lacks, or rows are
            wrong; it names them.
        OSError: when reading failed for a reason that may pass.
    """
    arrow, parquet = _library("pyarrow", "parquet"), _library("pyarrow.parquet", "parquet")
    data = read_source(path)

    def batches() -> Iterator[Any]:
        yield from parquet.ParquetFile(arrow.BufferReader(data)).iter_batches(_BATCH, use_threads=False)

    return checked_rows(path, _rows(arrow, path, batches(), "a Parquet file"), prompt_field)


def read_saved(path: str, split: str | None = None, prompt_field: str | None = None) -> list[Row]:
    """The rows of a split of a folder, in its order; else as `read_parquet`."""
    arrow = _library("pyarrow", "huggingface")
    files = _files(Path(path), split)

    def batches() -> Iterator[Any]:
        for file in files:
            stream = arrow.ipc.open_stream(arrow.BufferReader(read_source(file)))
            for batch in stream:
                yield from (batch.slice(start, _BATCH) for start in range(0, batch.num_rows, _BATCH))

    return checked_rows(path, _rows(arrow, path, batches(), "a saved dataset"), prompt_field)


def _library(name: str, kind: str) -> Any:
    try:
        return import_module(name)
    except ImportError as fault:
        raise InvalidEnvironment(
            "environment.kind", f"is {kind!r}; this worker lacks the package: pip install 'marlaas[data]'"
        ) from fault


def _files(folder: Path, split: str | None) -> list[str]:
    """The files of a split, in the order of their rows."""
    if (folder / "dataset_dict.json").exists():
        splits = cast(list[str], _document(folder / "dataset_dict.json", "splits"))
        if split is None and len(splits) == 1:
            split = splits[0]
        if split not in splits:
            asked = "is not given" if split is None else f"is {split!r}"
            raise InvalidEnvironment(
                "environment.split", f"{asked}; {str(folder)!r} has the splits {', '.join(splits)}"
            )
        folder, split = folder / split, None
    if not (folder / "state.json").exists():
        raise InvalidEnvironment(
            PATH,
            f"{str(folder)!r} is no folder that save_to_disk of `datasets` wrote: it has no state.json "
            "and no dataset_dict.json",
        )
    if split is not None and split != (only := _document(folder / "state.json", "_split")):
        raise InvalidEnvironment("environment.split", f"is {split!r}; {str(folder)!r} has {only} alone")
    return [str(folder / one["filename"]) for one in _document(folder / "state.json", "_data_files")]


def _document(path: Path, field: str) -> Any:
    try:
        return json.loads(read_source(str(path)))[field]
    except (ValueError, KeyError, TypeError) as fault:
        raise InvalidEnvironment(PATH, f"{str(path)!r} is damaged: it has no {field!r}") from fault


def _rows(arrow: Any, path: str, batches: Iterator[Any], what: str) -> Iterator[tuple[str, object]]:
    """Places and values. Whatever fails here is in memory already, so it is the file's fault."""
    number = 0
    while True:
        try:
            batch = next(batches, None)
            values = list[object]() if batch is None else _values(batch, _columns(arrow, batch.schema))
        except (MemoryError, InvalidEnvironment):
            raise
        except (arrow.lib.ArrowException, OSError) as fault:
            raise InvalidEnvironment(
                PATH, f"{path!r} is not {what}, or damaged: {str(fault)[:200]}"
            ) from fault
        if batch is None:
            return
        for value in values:
            yield f"row index {number}", value
            number += 1


def _values(batch: Any, columns: dict[str, _Convert]) -> list[object]:
    try:
        return [_value(row, columns) for row in batch.to_pylist()]
    except UnicodeDecodeError:
        return [_decoded(batch.slice(index, 1), columns) for index in range(batch.num_rows)]


def _decoded(row: Any, columns: dict[str, _Convert]) -> object:
    try:
        return _value(row.to_pylist()[0], columns)
    except UnicodeDecodeError:
        return WrongRow("has text that is not UTF-8")


def _value(row: dict[str, Any], columns: dict[str, _Convert]) -> object:
    try:
        return {name: convert(row[name]) for name, convert in columns.items()}
    except WrongRow as fault:
        return fault


def _columns(arrow: Any, schema: Any) -> dict[str, _Convert]:
    names = cast(list[str], schema.names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidEnvironment(PATH, f"has the column {twice[0]!r} twice; names of columns have to differ")
    return {name: _converter(arrow, name, schema.field(name).type) for name in names}


def _converter(arrow: Any, column: str, kind: Any) -> _Convert:
    """How values of an Arrow type become JSON's."""
    types = arrow.types
    if isinstance(kind, arrow.JsonType):  # how `datasets` stores objects that have no common schema
        return lambda text: None if text is None else _json(column, text)
    if types.is_struct(kind):
        fields = {one.name: _converter(arrow, column, one.type) for one in kind}
        return lambda value: (
            value and {name: fields[name](one) for name, one in value.items() if one is not None}
        )
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(is_list(kind) for is_list in lists):
        inner = _converter(arrow, column, kind.value_type)
        return lambda value: value and [inner(one) for one in value]
    if types.is_dictionary(kind):
        return _converter(arrow, column, kind.value_type)
    plain = (types.is_string, types.is_large_string, types.is_string_view, types.is_boolean)
    if any(is_plain(kind) for is_plain in (*plain, types.is_integer, types.is_floating, types.is_null)):
        return lambda value: value
    raise InvalidEnvironment(
        PATH,
        f"the column {column!r} has type {kind}, which JSON lacks: make it text or numbers, or leave it out",
    )


def _json(column: str, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise WrongRow(f"{column} is not the JSON that its column's type says: {fault}") from fault

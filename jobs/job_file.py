"""Job files: YAML or JSON on disk, to the mapping that `parse_job_spec` checks."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import yaml

from .errors import InvalidJobFile

_CORE_SCALARS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)
"""The core schema of YAML 1.2 (section 10.3), in the order of precedence."""


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.2's plain scalars, where 5e-4 is a number and `no` is a word, and refuses a key
    that is given twice."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own way; filled below

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        # PyYAML takes a leading zero for octal.
        return int(node.value)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = cast(object, self.construct_object(key_node, deep=True))  # pyright: ignore[reportUnknownMemberType]
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key!r} is not text", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
for _tag, _pattern, _first in _CORE_SCALARS:
    _Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
        _tag, re.compile(f"^(?:{_pattern})$"), _first
    )


def read_job_file(path: Path) -> Any:
    """The content of a job file, with what it names relative to itself made absolute.

    That is `environment.path` of a JSONL environment, and a `model` that begins with `./` or `../`.

    Raises:
        InvalidJobFile: when it cannot be read, is not YAML or JSON, or gives a key twice.
    """
    if path.suffix not in _READERS:
        raise InvalidJobFile(f"{path}: a job file is named *.yaml, *.yml or *.json")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidJobFile(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJobFile(f"{path}: cannot be read as UTF-8 text: {error}") from error
    return _resolved(_READERS[path.suffix](path, text), path.absolute().parent)


def _read_yaml(path: Path, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise InvalidJobFile(f"{path}:{place} {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InvalidJobFile(f"{path}: not YAML: {error}") from None


def _read_json(path: Path, text: str) -> Any:
    def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key, value in pairs:
            if key in content:
                raise InvalidJobFile(f"{path}: {key} is given twice")
            content[key] = value
        return content

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise InvalidJobFile(f"{path}: line {error.lineno}, column {error.colno}: {error.msg}") from None


_READERS = {".yaml": _read_yaml, ".yml": _read_yaml, ".json": _read_json}


def _resolved(content: Any, folder: Path) -> Any:
    if not isinstance(content, dict):
        return content
    spec = cast(dict[str, Any], content)
    model, environment = spec.get("model"), spec.get("environment")
    if isinstance(model, str) and model.startswith(("./", "../")):
        spec = {**spec, "model": str((folder / model).resolve())}
    if isinstance(environment, dict):
        fields = cast(dict[str, Any], environment)
        if isinstance(path := fields.get("path"), str):
            spec = {**spec, "environment": {**fields, "path": str((folder / path).resolve())}}
    return spec

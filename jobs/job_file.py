"""Job files: YAML or JSON on disk, to the mapping that `parse_job_spec` checks."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import yaml

from ..schemas.job_spec import InvalidJobSpec, JobSpec, parse_job_spec
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

_TOO_DEEP = "lists or mappings lie in one another deeper than a job spec has levels"


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.2's plain scalars, where 5e-4 is a number and `no` is a word.

    A key that is given twice is refused. So are aliases: a job file has no use for them, and a few lines
    of them can stand for more than fits into memory.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own way; filled below

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        # PyYAML takes a leading zero for octal.
        return int(node.value)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):  # pyright: ignore[reportUnknownMemberType]
            event = cast(yaml.AliasEvent, self.peek_event())  # pyright: ignore[reportUnknownMemberType]
            raise yaml.MarkedYAMLError(
                problem=f"*{event.anchor} is an alias, which a job file may not have: write it out",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return cast(object, super().construct_object(node, deep))  # pyright: ignore[reportUnknownMemberType]
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            # What PyYAML's constructors raise for a text that does not fit its tag.
            raise yaml.constructor.ConstructorError(
                problem=f"this is no {node.tag.rpartition(':')[2]}: {error}", problem_mark=node.start_mark
            ) from error

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

    That is the `path` of an environment, in a mixture too, `start.adapter`, and a `model` that begins with
    `./` or `../`.

    Raises:
        InvalidJobFile: when it cannot be read, is not YAML or JSON, or gives a key twice.
    """
    if path.suffix not in _READERS:
        raise InvalidJobFile(f"{path}: a job file is named *.yaml, *.yml or *.json")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InvalidJobFile(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJobFile(f"{path}: cannot be read as UTF-8 text: {error}") from error
    return _resolved(_READERS[path.suffix](path, text), path.absolute().parent)


def checked_job_file(path: Path) -> JobSpec:
    """The spec in a job file.

    Raises:
        InvalidJobFile: as `read_job_file`.
        InvalidJobSpec: naming the file and every wrong field.
    """
    try:
        return parse_job_spec(read_job_file(path))
    except InvalidJobSpec as error:
        raise InvalidJobSpec(f"{path}: {error}") from None


def _read_yaml(path: Path, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise InvalidJobFile(f"{path}:{place} {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InvalidJobFile(f"{path}: not YAML: {error}") from None
    except RecursionError:
        raise InvalidJobFile(f"{path}: {_TOO_DEEP}") from None


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
    except ValueError as error:  # a number with thousands of digits
        raise InvalidJobFile(f"{path}: {error}") from None
    except RecursionError:
        raise InvalidJobFile(f"{path}: {_TOO_DEEP}") from None


_READERS = {".yaml": _read_yaml, ".yml": _read_yaml, ".json": _read_json}


def _resolved(content: Any, folder: Path) -> Any:
    if not isinstance(content, dict):
        return content
    spec = cast(dict[str, Any], content)
    model, environment = spec.get("model"), spec.get("environment")
    if isinstance(model, str) and model.startswith(("./", "../")):
        spec = _absolute(spec, "model", folder)
    if "environment" in spec:
        spec = {**spec, "environment": _environment(environment, folder)}
    if isinstance(start := spec.get("start"), dict):
        spec = {**spec, "start": _absolute(cast(dict[str, Any], start), "adapter", folder)}
    return spec


def _absolute(fields: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """The fields with the path in one of them absolute."""
    path = fields.get(name)
    return {**fields, name: str((folder / path).resolve())} if isinstance(path, str) else fields


def _environment(content: Any, folder: Path) -> Any:
    if not isinstance(content, dict):
        return content
    fields = _absolute(cast(dict[str, Any], content), "path", folder)
    if isinstance(mixed := fields.get("of"), list):
        fields = {**fields, "of": [_mixed(one, folder) for one in cast(list[Any], mixed)]}
    return fields


def _mixed(content: Any, folder: Path) -> Any:
    if not isinstance(content, dict) or "environment" not in content:
        return cast(object, content)
    fields = cast(dict[str, Any], content)
    return {**fields, "environment": _environment(fields["environment"], folder)}

"""New job files: what was chosen, with every other field in comments."""

import json
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from ..schemas.job_spec import JobSpec, parse_job_spec
from .errors import InvalidJobFile
from .spec_schema import Schema, alternatives, definition_name, job_schema

_WIDTH = 100
_WORD = re.compile(r"[A-Za-z][\w./-]*$")
_NO_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}
"""What one or another version of YAML takes for something else than a word."""


def parse_environment(text: str, reward: str | None, file: Path) -> dict[str, Any]:
    """An environment in one word: `reasoning-gym:TASK`, or `jsonl:PATH` with a reward.

    Args:
        reward: `module:function`, of a JSONL file.
        file: the job file. A relative path is made relative to its folder.

    Raises:
        InvalidJobFile: when the word has another form, or a reward is missing or too much.
    """
    kind, _, value = text.partition(":")
    if not value or kind not in ("reasoning-gym", "jsonl"):
        raise InvalidJobFile(
            f"environment is {text!r}: write reasoning-gym:TASK, for example reasoning-gym:chain_sum, or "
            "jsonl:PATH"
        )
    if (kind == "jsonl") != (reward is not None):
        needed = "needs a reward, module:function" if reward is None else "has a scorer of its own: no reward"
        raise InvalidJobFile(f"environment {text!r} {needed}")
    if kind == "reasoning-gym":
        return {"kind": kind, "task": value}
    return {"kind": kind, "path": local_path(value, file), "reward": reward}


def local_path(path: str, file: Path) -> str:
    """A path from this process's folder as a job file has it: from the file's folder, with `./` or `../`."""
    if os.path.isabs(path):
        return path
    moved = os.path.relpath(path, file.absolute().parent)
    return moved if moved.startswith("..") else f"./{moved}"


def write_job_file(file: Path, values: Mapping[str, Any]) -> JobSpec:
    """Writes a YAML job file that holds these values, and in comments every field that they leave out.

    Raises:
        InvalidJobSpec: when the values are no valid spec; nothing is written.
        InvalidJobFile: when the file exists, or its name does not end in .yaml or .yml.
    """
    if file.suffix not in (".yaml", ".yml"):
        raise InvalidJobFile(f"{file}: a new job file is named *.yaml or *.yml")
    spec = parse_job_spec(dict(values))
    text = job_file_text(values)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise InvalidJobFile(f"{file} exists and is left as it is; name another file") from None
    return spec


def job_file_text(values: Mapping[str, Any]) -> str:
    """The YAML of `write_job_file`. A line `#field: value` has the field's default."""
    schema = job_schema()
    lines = [
        "# A job of MARLaaS. Lines like `#field: value` have the defaults: take the # off to change one.",
        *_mapping(schema, values, schema["$defs"], ""),
    ]
    return "\n".join(lines) + "\n"


def _mapping(
    schema: Schema, values: Mapping[str, Any], definitions: Mapping[str, Schema], indent: str
) -> Iterator[str]:
    """Lines of a mapping's fields: those that have a value, then the others."""
    required = schema.get("required", ())
    fields = cast(dict[str, Schema], schema["properties"])
    for name in sorted(fields, key=lambda name: name not in values):
        if name == "format" or (name not in values and name in required):
            continue
        field = fields[name]
        if not indent:
            yield ""
        if name != "kind":
            yield from _comment(field["description"], f"{indent}# ")
        yield from _field(name, field, values, definitions, indent)


def _field(
    name: str,
    field: Schema,
    values: Mapping[str, Any],
    definitions: Mapping[str, Schema],
    indent: str,
) -> Iterator[str]:
    value = values.get(name)
    default = field.get("default")
    if isinstance(value, Mapping):
        yield f"{indent}{name}:"
        given = cast(Mapping[str, Any], value)
        yield from _mapping(_variant(field, given, definitions), given, definitions, indent + "  ")
    elif name in values:
        yield f"{indent}{name}: {_flow(value)}"
    elif isinstance(default, Mapping) and "$ref" in field:
        yield f"{indent}#{name}:"
        yield from _mapping(_variant(field, {}, definitions), {}, definitions, indent + "  ")
    else:
        yield f"{indent}#{name}: {_flow({} if field.get('type') == 'object' else default)}"


def _variant(field: Schema, value: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """The mapping that a value of a field is: of several, the one of its kind."""
    mappings = [definitions[definition_name(one)] for one in alternatives(field) if "$ref" in one]
    if len(mappings) == 1:
        return mappings[0]
    return next(one for one in mappings if one["properties"]["kind"]["const"] == value["kind"])


def _comment(text: str, lead: str) -> Iterator[str]:
    yield from textwrap.wrap(text, _WIDTH, initial_indent=lead, subsequent_indent=lead)


def _flow(value: Any) -> str:
    """A value as JSON, which is YAML too; a plain word goes without quotation marks."""
    if isinstance(value, str) and _WORD.match(value) and value.lower() not in _NO_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)

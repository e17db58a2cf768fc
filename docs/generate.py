"""Writes the pages here that are made from the code: `job.schema.json` and `job-spec.md`.

python docs/generate.py
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from marlaas.jobs.spec_schema import Schema, alternatives, definition_name, job_schema, schema_text
from marlaas.schemas.objective import ObjectiveName, ObjectiveSpec

FOLDER = Path(__file__).resolve().parent

_HEAD = """# The job spec

Every field of a job file. Made from the code by `python docs/generate.py`; editors that know JSON Schema
check and complete a file that begins with this line, given the path of [`job.schema.json`](job.schema.json)
from the file (`marlaas schema` prints it):

    # yaml-language-server: $schema=job.schema.json

`marlaas init` writes a job file with all of this in comments; `marlaas validate FILE --explain` shows what a
file comes to.
"""

_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "a multiple of {}",
    "minLength": "length ≥ {}",
    "maxLength": "length ≤ {}",
    "minItems": "≥ {} entries",
    "maxItems": "≤ {} entries",
    "pattern": "`{}`",
}


def pages() -> dict[str, str]:
    """The text of each page, by its name in this folder."""
    return {"job.schema.json": schema_text() + "\n", "job-spec.md": reference(job_schema())}


def reference(schema: Schema) -> str:
    """The page of all fields, a table for each mapping that a job file may have."""
    return "\n".join([_HEAD, *_Tables(schema["$defs"]).of(schema, ""), _objectives()])


class _Tables:
    """A table for each mapping, at the first place where it may stand; others link to it."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self._definitions = definitions
        self._titles: dict[str, str] = {}

    def of(self, schema: Schema, path: str) -> Iterator[str]:
        rows = ["| Field | Type | Default | Allowed | Meaning |", "|---|---|---|---|---|"]
        below: list[tuple[Schema, str]] = []
        for name, field in schema["properties"].items():
            inner = f"{path}.{name}" if path else name
            required = name in schema.get("required", ())
            before = len(self._titles)
            types = self._types(field, inner)
            new = list(self._titles.items())[before:]
            below += [(self._definitions[name], title.partition(" of kind ")[0]) for name, title in new]
            mapping = "$ref" in json.dumps(field)
            default = _default(field, required=required, mapping=mapping)
            cells = (f"`{inner}`", types, default, _allowed(field), field["description"])
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        yield f"## {_title(path, schema)}\n\n{schema['description']}\n\n" + "\n".join(rows) + "\n"
        for mapping, place in below:
            yield from self.of(mapping, place)

    def _types(self, field: Schema, path: str) -> str:
        types: list[str] = []
        said = False
        for one, in_list in _parts(field):
            types.append("list of " * (in_list and not said) + self._type(one, path + "[]" * in_list))
            said = in_list
        return " or ".join(types)

    def _type(self, one: Schema, path: str) -> str:
        if "$ref" not in one:
            return str(one.get("type", "value"))
        name = definition_name(one)
        title = self._titles.setdefault(name, _title(path, self._definitions[name]))
        return f"[{title}](#{_anchor(title)})"


def _parts(field: Schema) -> Iterator[tuple[Schema, bool]]:
    """What a field may be, each with whether it may be a list of that."""
    for one in alternatives(field):
        for part in alternatives(one["items"]) if "items" in one else [one]:
            yield part, "items" in one


def _title(path: str, mapping: Schema) -> str:
    kind = mapping["properties"].get("kind", {}).get("const")
    return (path or "Top level") + (f" of kind {kind}" if kind else "")


def _anchor(title: str) -> str:
    """What GitHub makes of a heading."""
    kept = (letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return "".join(kept).replace(" ", "-")


def _default(field: Schema, *, required: bool, mapping: bool) -> str:
    if required:
        return "required"
    if mapping and field.get("default"):
        return "see there"
    return f"`{json.dumps(field['default'], ensure_ascii=False)}`" if "default" in field else "`{}`"


def _allowed(field: Schema) -> str:
    limits: list[str] = []
    for one in (*alternatives(field), field.get("items", {})):
        values: list[Any] = one.get("enum") or ([one["const"]] if "const" in one else [])
        limits += [", ".join(f"`{value}`" for value in values)] if values else []
        limits += [text.format(one[limit]) for limit, text in _LIMITS.items() if limit in one]
    return "; ".join(limits)


def _objectives() -> str:
    """What each name of an objective sets, as a table."""
    plain = dict(ObjectiveSpec())
    rows = ["| Name | Sets |", "|---|---|"]
    for name in get_args(ObjectiveName):
        own = dict(ObjectiveSpec(name=name))
        sets = [f"`{option}: {json.dumps(value)}`" for option, value in own.items() if value != plain[option]]
        rows.append(f"| `{name}` | {', '.join(sets[1:]) or 'the defaults above'} |")
    return (
        "## Names of objectives\n\nWhat `objective.name` sets in other fields of `objective`; each can be "
        "given another value.\n\n" + "\n".join(rows) + "\n"
    )


def main() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()

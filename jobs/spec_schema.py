"""The job spec as a JSON Schema: what editors check a job file with, and what its reference is made from."""

import ast
import inspect
import json
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..schemas.job_spec import JobSpec

Schema = dict[str, Any]


def job_schema() -> Schema:
    """JSON Schema (2020-12) of a job file. Each field is described by the docstring below it.

    What no schema can say (that two fields fit one another) is left to `parse_job_spec`.
    """
    schema: Schema = JobSpec.model_json_schema()
    definitions: dict[str, Schema] = schema["$defs"]
    for model in models_of(JobSpec):
        described = schema if model is JobSpec else definitions[model.__name__]
        described["description"] = summary(model)
        texts = field_texts(model)
        for name, field in cast(dict[str, Schema], described["properties"]).items():
            field.pop("title", None)
            if name in texts:
                field["description"] = texts[name]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "MARLaaS job"}


def schema_text() -> str:
    """The schema as it is printed and kept."""
    return json.dumps(job_schema(), indent=2, ensure_ascii=False)


def alternatives(field: Schema) -> list[Schema]:
    """What a field may be: one or several, which are schemas as well."""
    return field.get("oneOf") or field.get("anyOf") or [field]


def definition_name(reference: Schema) -> str:
    """The name in `$defs` of what a `$ref` stands for."""
    return str(reference["$ref"]).rpartition("/")[2]


def summary(model: type[BaseModel]) -> str:
    """What a model's docstring says before it turns to attributes or errors, as one paragraph."""
    text = inspect.getdoc(model) or ""
    for heading in ("Attributes:", "Raises:"):
        text = text.partition(f"\n\n{heading}")[0]
    return " ".join(text.split())


def field_texts(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstrings below a model's fields, and its bases', each as one paragraph.

    Read from the source when asked for: pydantic's `use_attribute_docstrings` would read it at every
    import, in every process.
    """
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base is not BaseModel and issubclass(base, BaseModel):
            texts |= _own_texts(base)
    return texts


def _own_texts(model: type[BaseModel]) -> dict[str, str]:
    tree = ast.parse(inspect.getsource(sys.modules[model.__module__]))
    name = model.__name__.partition("[")[0]  # a generic model's parameters are no part of its source
    (body,) = [one.body for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name]
    texts: dict[str, str] = {}
    for field, below in pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split())
            case _:
                pass
    return texts


def models_of(model: type[BaseModel]) -> list[type[BaseModel]]:
    """A model and all that its fields are made of, each once, in the order of the fields."""
    found: dict[type[BaseModel], None] = {}

    def visit(annotation: Any) -> None:
        if isinstance(annotation, FieldInfo):
            visit(annotation.annotation)
        elif inspect.isclass(annotation) and issubclass(annotation, BaseModel):
            if annotation not in found:
                found[annotation] = None
                for field in annotation.model_fields.values():
                    visit(field)
        else:
            for part in get_args(annotation):
                visit(part)

    visit(model)
    return list(found)

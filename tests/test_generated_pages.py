"""The pages in docs/ that are made from the code, and the schema that editors are given."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from marlaas.docs.generate import FOLDER, pages
from marlaas.jobs.spec_schema import field_texts, job_schema, models_of
from marlaas.schemas.job_spec import JobSpec
from marlaas.schemas.objective import ObjectiveSpec
from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["job.schema.json", "job-spec.md"])
def test_a_page_is_what_the_code_makes_of_it(name: str) -> None:
    assert (FOLDER / name).read_text() == pages()[name], "run `make docs`"


@pytest.mark.parametrize("model", models_of(JobSpec), ids=lambda model: model.__name__)
def test_every_field_says_what_it_means(model: type[BaseModel]) -> None:
    assert set(field_texts(model)) >= set(model.model_fields)


def test_the_schema_describes_fields_as_their_docstrings_do() -> None:
    schema = job_schema()
    assert schema["properties"]["max_staleness"]["description"].startswith("K: training at version t")
    sampling = schema["$defs"]["SamplingSpec"]
    assert sampling["properties"]["slots"]["multipleOf"] == 16
    assert sampling["properties"]["max_tokens"]["description"].startswith("Longest completion;")
    assert sampling["additionalProperties"] is False
    assert "Raises" not in schema["description"]


def test_the_page_has_a_table_for_every_mapping_once() -> None:
    page, schema = pages()["job-spec.md"], job_schema()
    sections = [section.splitlines() for section in page.split("\n## ")[1:]]
    tables = [
        (title, tuple(line.split("`")[1].rpartition(".")[2] for line in lines if line.startswith("| `")))
        for title, *lines in sections
        if title != "Names of objectives"
    ]
    mappings = [one for one in (schema, *schema["$defs"].values()) if "properties" in one]
    assert len(mappings) > 20
    assert sorted(fields for _, fields in tables) == sorted(tuple(one["properties"]) for one in mappings)
    titles = [title for title, _ in tables]
    assert {"environment of kind mixture", "environment.reward[] of kind judge", "objective.kl"} <= set(
        titles
    )
    assert "| `environment.of[].environment` | [environment of kind reasoning-gym](" in page
    assert len(set(titles)) == len(titles)
    links = {part.partition(")")[0] for part in page.split("](#")[1:]}
    assert links
    assert links <= {
        "".join(c for c in title.lower() if c.isalnum() or c in " -").replace(" ", "-") for title in titles
    }
    assert "| `dapo` | `clip_high: 0.28`" in page


def test_marlaas_schema_prints_the_schema(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "marlaas", "schema"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == json.loads((FOLDER / "job.schema.json").read_text())


@pytest.mark.parametrize("example", ["sums.yaml", "brevity.yaml"])
def test_examples_name_the_schema_by_a_path_that_is_there(example: str) -> None:
    first = (ROOT / "examples" / example).read_text().splitlines()[0]
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert (ROOT / "examples" / named).resolve() == FOLDER / "job.schema.json"


def test_the_table_of_objectives_says_what_a_name_sets() -> None:
    page = pages()["job-spec.md"]
    row = next(line for line in page.splitlines() if line.startswith("| `gspo` |"))
    own = ObjectiveSpec(name="gspo")
    assert f'`ratio: "{own.ratio}"`, `clip_low: {own.clip_low}`, `clip_high: {own.clip_high}`' in row

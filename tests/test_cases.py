"""docs/cases.md and the tests agree on what is covered."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = re.compile(r"CASES ((?:\d+(?:, | and )?)+)")


def rows() -> dict[int, set[str]]:
    """Tests by case, as path::name."""
    lines = (ROOT / "docs" / "cases.md").read_text().splitlines()
    cells = [line.strip("|").split("|") for line in lines if re.match(r"\| \d", line)]
    return {int(cell[0]): set(re.findall(r"`(tests/[^`]+)`", cell[2])) for cell in cells}


def named() -> dict[str, set[int]]:
    """Cases by test, as docstrings of tests and of their modules name them."""
    found: dict[str, set[int]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        place = str(path.relative_to(ROOT))
        whole = numbers(ast.get_docstring(tree))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[f"{place}::{node.name}"] = whole | numbers(ast.get_docstring(node))
    return found


def numbers(docstring: str | None) -> set[int]:
    parts = CASES.findall(docstring or "")
    return {int(number) for part in parts for number in re.findall(r"\d+", part)}


def test_every_test_of_the_page_is_there_and_names_its_case() -> None:
    tests = named()
    wrong = [
        (case, test) for case, listed in rows().items() for test in listed if case not in tests.get(test, ())
    ]
    assert not wrong


def test_every_case_that_a_test_names_has_tests_on_the_page() -> None:
    page = rows()
    wrong = [(case, test) for test, cases in named().items() for case in cases if not page.get(case)]
    assert not wrong

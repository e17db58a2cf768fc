"""The layers of the package: who may import whom, and which processes are spared torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ALLOWED = {
    "schemas": set[str](),
    "storage": {"schemas"},
    "environments": {"schemas"},
    "engines": {"schemas"},
    "tracking": {"schemas"},
    "activities": {"schemas", "storage", "environments"},
    "workflows": {"schemas", "activities"},
    "workers": {"schemas", "storage", "environments", "engines", "tracking", "activities", "workflows"},
    "jobs": {"schemas", "storage", "workflows"},
    "terminal": {"schemas", "storage", "jobs", "job", "client", "workers"},
    "commands": {"schemas", "storage", "jobs", "job", "client", "workers", "terminal"},
}
"""What each package may import besides itself."""

WITHOUT_TORCH = [
    "schemas",
    "storage",
    "environments",
    "activities",
    "workflows",
    "jobs",
    "tracking",
    "client",
    "job",
    "terminal",
    "commands",
    "cli",
]


def imported_packages(path: Path) -> set[str]:
    """Names right below `marlaas` that a module of a package imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
        elif (
            isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("marlaas")
        ):
            found.add((node.module or "").removeprefix("marlaas").lstrip(".").split(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_lower_layers_only(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules
    wrong = {
        str(module.relative_to(ROOT)): extra
        for module in modules
        if (extra := imported_packages(module) - ALLOWED[package] - {package})
    }
    assert not wrong


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_control_and_reward_processes_are_spared_torch(name: str) -> None:
    package = ROOT / name
    modules = [f"marlaas.{name}"]
    if package.is_dir():
        modules += [f"marlaas.{name}.{path.stem}" for path in package.glob("*.py") if path.stem != "__init__"]
    code = (
        f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import marlaas; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd="/", capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "marlaas" in loaded
    assert not {name for name in loaded if name.startswith(("marlaas.", "pydantic", "temporalio"))}

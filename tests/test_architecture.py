"""docs/architecture.md's floors and what its rooms must never do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fedml_dapper"

FLOORS = (
    {"__version__", "errors"},
    {"files", "inputs", "metric", "process", "randomness"},
    {"secure_sum"},
    {"config"},
    {"registry"},
    {"models", "datasets"},
    {"capture"},
    {"pruning", "tasks"},
    {"methods"},
    {"fleet"},
    {"federation"},
    {"operations"},
    {"secure_grpc"},
    {"deployment"},
    {"device", "evaluation"},
    {"platform"},
    {"benches", "search", "export", "one_process"},
    {"commands"},
    {"cli", "doctor", "runs"},
    {"entry", "__main__", "__init__"},
)
"""Rooms and single modules from the ground up; each may import what is below it."""

METHODS_FLOORS = ("contract", "parts", "catalogue")
"""The same within ``methods/``."""


def imported(file: Path) -> Iterator[str]:
    """Full names of the modules that ``file`` imports, wherever in it, and of what it takes out of them."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_only_go_down() -> None:
    floor = {name: height for height, names in enumerate(FLOORS) for name in names}
    upward = [
        f"{file.relative_to(PACKAGE)} imports {module}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for module in imported(file)
        if module.startswith("fedml_dapper.")
        and (above := module.split(".")[1]) != room(file)
        and floor[above] >= floor[room(file)]
    ]
    assert upward == []


def test_only_the_platform_imports_fedml() -> None:
    rooms = {
        room(file) for file in PACKAGE.rglob("*.py") for module in imported(file) if module.split(".")[0] == "fedml"
    }
    assert rooms == {"platform"}


def test_every_method_is_in_the_catalogue_and_nothing_else() -> None:
    found = {file for file in PACKAGE.glob("methods/*/*.py") if names_a_method(file)}
    assert len(found) > 20
    assert found == set(PACKAGE.glob("methods/catalogue/*.py")) - {PACKAGE / "methods/catalogue/__init__.py"}


def test_no_method_imports_another_and_what_they_share_imports_none() -> None:
    upward = [
        f"{file.relative_to(PACKAGE)} imports {module}"
        for height, folder in enumerate(METHODS_FLOORS)
        for file in sorted(PACKAGE.glob(f"methods/{folder}/*.py"))
        for module in imported(file)
        if module.startswith("fedml_dapper.methods")
        and (above := (*module.split("."), "")[2]) not in METHODS_FLOORS[:height]
        and not (above == folder != "catalogue")
    ]
    assert upward == []


def names_a_method(file: Path) -> bool:
    """Whether a class in ``file`` gives itself the ``name`` that settings choose it by."""
    return any(
        isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "name"
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        for line in node.body
    )

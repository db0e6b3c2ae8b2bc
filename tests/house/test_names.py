"""Names say what they name: one class name once, no private imports, no vague names, no crowded folders."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_imports import FILES, ROOT

VAGUE_NAMES = {"apart", "asked", "dear", "drawn", "found", "line", "mine", "place", "places", "said", "taken", "told"}
MAX_VAGUE_NAMES = 26
"""How often a vague name may still be bound. Lower it whenever names are mended; never raise it."""
MAX_MODULES = 16
ONE_FILE_A_METHOD = "ml/embedders"


def parse(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def iterate_bound_names(tree: ast.Module) -> Iterator[str]:
    """The names that code assigns to, loops over, takes as a parameter, or gives to a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_a_class_name_is_defined_once() -> None:
    names = Counter(
        node.name
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_private_module_or_name_of_another_package_is_imported(path: Path) -> None:
    package = ".".join(path.parent.parts)
    private = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in {p.parts[0] for p in FILES}
        for alias in node.names
        if any(part.startswith("_") for part in [*node.module.split("."), alias.name])
        and not node.module.startswith(package)
    ]
    assert private == []


def test_vague_names_are_not_bound() -> None:
    bound = Counter(name for path in FILES for name in iterate_bound_names(parse(path)) if name in VAGUE_NAMES)
    assert bound.total() <= MAX_VAGUE_NAMES, bound


def test_a_folder_has_few_modules() -> None:
    modules = Counter(path.parent.as_posix() for path in FILES if path.name != "__init__.py")
    crowded = {folder: count for folder, count in modules.items() if count > MAX_MODULES}
    assert crowded.keys() <= {ONE_FILE_A_METHOD}

"""Names say what they name: one class name once, no private imports, no vague names, no crowded folders."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.house.source_files import FILES, PACKAGES, parse

VAGUE_NAMES = {"apart", "asked", "dear", "drawn", "found", "line", "mine", "place", "places", "said", "taken", "told"}
MAX_VAGUE_NAMES = 26
"""How often a vague name may still be bound. Lower it whenever names are mended; never raise it."""
MAX_MODULES = 16
ONE_FILE_A_METHOD = "ml/embedders"


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


def list_private_imports(path: Path, tree: ast.Module) -> list[str]:
    """The names with a leading underscore, or from a module with one, that a file imports from another package."""
    package = path.parent.parts
    private = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        module = tuple(node.module.split("."))
        if module[0] not in PACKAGES or module[: len(package)] == package:
            continue
        names = (alias.name for alias in node.names if any(part[0] == "_" for part in (*module, alias.name)))
        private += [f"{path}: {node.module}.{name}" for name in names]
    return private


def test_no_private_module_or_name_of_another_package_is_imported() -> None:
    assert [name for path in FILES for name in list_private_imports(path, parse(path))] == []


def test_the_check_of_private_imports_compares_whole_names_of_packages() -> None:
    tree = ast.parse("from app.faces_export import _rows\nfrom app.faces import _own\nfrom ml._hidden import name")
    private = list_private_imports(Path("app/faces/service.py"), tree)
    assert [name.split(": ")[1] for name in private] == ["app.faces_export._rows", "ml._hidden.name"]


def test_vague_names_are_not_bound() -> None:
    bound = Counter(name for path in FILES for name in iterate_bound_names(parse(path)) if name in VAGUE_NAMES)
    assert bound.total() <= MAX_VAGUE_NAMES, bound


def test_a_folder_has_few_modules() -> None:
    modules = Counter(path.parent.as_posix() for path in FILES if path.name != "__init__.py")
    crowded = {folder: count for folder, count in modules.items() if count > MAX_MODULES}
    assert crowded.keys() <= {ONE_FILE_A_METHOD}

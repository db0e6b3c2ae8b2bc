"""Names say what they name: one class name once, no private imports, no vague names, no crowded folders."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.house.source_files import FILES, PACKAGES, ROOT, files_of, list_nodes

VAGUE_NAMES = {
    "apart", "asked", "dear", "drawn", "each", "facts", "few", "found", "least", "line", "mine", "most", "place",
    "places", "said", "taken", "then", "told", "whose",
}  # fmt: skip
"""Names that do not say what a value is."""
UNITLESS_WORDS = {
    "ENOUGH", "FAINT", "FEW", "FEWEST", "LARGEST", "LEAST", "LONG", "LONGEST", "LOOK", "MOST", "OFTEN", "SPARE", "TINY",
    "TOGETHER", "TWICE", "WIDEST",
}  # fmt: skip
"""Words that replace a noun or a unit in the name of a constant: `MAX_HEADER_BYTES` has both, `LONGEST` has neither."""
BARE_ADJECTIVES = {"FAR", "NEAR", "WIDE"}
"""Words that may qualify a noun, as in `WIDE_PATCH_PIXELS`, but are not the whole name of a constant."""
ALLOWED = {
    ("ml/synthetic_faces/paint.py", "line"): "the method that draws a line, as in Pillow",
}
"""(path, name) of vague names that are kept -> the reason."""
MAX_MODULES = 16
ONE_FILE_A_METHOD, ONE_FILE_A_MIGRATION = "ml/embedders", "migrations/versions"


def iterate_bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that code assigns to, loops over, takes as a parameter, imports as, or gives to a function."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def list_private_imports(nodes: Iterable[ast.AST], package: tuple[str, ...]) -> list[str]:
    """List the imports of private names and modules that belong to another package.

    A module or package whose name begins with an underscore may be imported only inside the package that contains it,
    a private name only inside the package of its module. package: of the importing file, as `("app", "search")`
    """
    return [".".join(parts) for parts in iterate_imports(nodes) if is_private_to_others(parts, package)]


def iterate_imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names that a file imports from this repository, the imported name last."""
    for node in nodes:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (tuple(module.split(".")) for module in modules if module.split(".")[0] in PACKAGES)


def is_private_to_others(parts: tuple[str, ...], package: tuple[str, ...]) -> bool:
    """Whether a part of the import is private, and the importing package is not inside the package that contains it."""
    for depth, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            owner = parts[:depth]
            if (ROOT / Path(*owner)).with_suffix(".py").is_file():
                owner = owner[:-1]  # a private name belongs to the package of its module
            if package[: len(owner)] != owner:
                return True
    return False


def test_a_class_name_is_defined_once() -> None:
    names = Counter(
        node.name
        for path in FILES
        for node in list_nodes(path)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_private_module_or_name_of_another_package_is_imported() -> None:
    private = {str(path): list_private_imports(list_nodes(path), path.parent.parts) for path in FILES}
    assert {path: names for path, names in private.items() if names} == {}


def test_private_imports_are_recognised() -> None:
    own, parent, namesake = ("app", "search"), ("app",), ("app", "searching")
    assert list_private_imports(ast.parse("from app.search.matching import _group_faces").body, own) == []
    assert list_private_imports(ast.parse("from app.search.matching import _group_faces").body, (*own, "deeper")) == []
    assert list_private_imports(ast.parse("from app.search.matching import _group_faces").body, parent)
    assert list_private_imports(ast.parse("from app.search.matching import _group_faces").body, namesake)
    assert list_private_imports(ast.parse("from ml._native import kernels").body, ("ml", "indexes")) == []
    assert list_private_imports(ast.parse("from ml._native import kernels").body, own) == ["ml._native.kernels"]
    assert list_private_imports(ast.parse("import ml._native.kernels").body, own) == ["ml._native.kernels"]
    assert list_private_imports(ast.parse("from ml import __version__\nfrom numpy import _core").body, own) == []


def test_vague_names_are_not_bound() -> None:
    bound = {(path.as_posix(), name) for path in FILES for name in iterate_bound_names(list_nodes(path))}
    vague = {(path, name) for path, name in bound if name in VAGUE_NAMES}
    assert sorted(vague - ALLOWED.keys()) == []
    assert sorted(ALLOWED.keys() - vague) == [], "no longer bound: remove it from the list"


def test_constants_carry_a_noun_and_a_unit() -> None:
    constants = {
        (path.as_posix(), name)
        for path in files_of("app", "migrations", "ml", "workers")
        for name in iterate_bound_names(list_nodes(path))
        if name.isupper() and (name in BARE_ADJECTIVES or UNITLESS_WORDS & set(name.split("_")))
    }
    assert sorted(constants) == []


def test_a_folder_has_few_modules() -> None:
    modules = Counter(path.parent.as_posix() for path in FILES if path.name != "__init__.py")
    crowded = {folder: count for folder, count in modules.items() if count > MAX_MODULES}
    assert crowded.keys() <= {ONE_FILE_A_METHOD, ONE_FILE_A_MIGRATION}

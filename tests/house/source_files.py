"""The Python files of the product, each parsed and walked once in a process."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ml", "app", "workers", "papers", "migrations")
FILES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def files_of(*packages: str) -> list[Path]:
    """The files of these packages, relative to the root of the repository."""
    return [path for path in FILES if path.parts[0] in packages]


@cache
def read(path: Path) -> str:
    return (ROOT / path).read_text()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(read(path))


@cache
def list_nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file, in the order of `ast.walk`."""
    return list(ast.walk(parse(path)))


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """Return the modules that the file imports, and `module.name` for each name that it imports from one."""
    modules: set[str] = set()
    for node in list_nodes(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(modules)

"""What is installed to run the service is what its code imports."""

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions

from tests.house.source_files import FILES, ROOT, imported_modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INDIRECT = {"httptools": "uvicorn", "uvloop": "uvicorn", "psycopg": "sqlalchemy", "python-multipart": "fastapi"}
"""Dependencies that no code of ours imports, and the library that does."""
UNNAMED = {"dlib": ["dlib-bin"]}
"""Modules that their distribution does not list."""
PARTS = {"anyio", "pydantic-core", "starlette", "typing-extensions"}
"""Of the interface of fastapi or pydantic, which require them."""
OURS = {"ml", "app", "workers", "papers", "migrations"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(requirements: list[str]) -> set[str]:
    """The names alone, without versions, extras and markers."""
    return {canonical(re.split(r"[<>=!~\[; ]", one, maxsplit=1)[0]) for one in requirements}


RUNTIME = distributions(PROJECT["dependencies"])
OPTIONAL = distributions([one for extra in ("cpu", "gpu", "papers") for one in PROJECT["optional-dependencies"][extra]])


@cache
def imported_distributions() -> dict[str, list[str]]:
    """The distributions that the code imports, and from which files."""
    found: dict[str, list[str]] = {}
    of = {**packages_distributions(), **UNNAMED}
    for path in FILES:
        for name in {module.split(".")[0] for module in imported_modules(path)} - OURS - sys.stdlib_module_names:
            for distribution in of.get(name, [name]):
                found.setdefault(canonical(distribution), []).append(str(path))
    return found


def test_every_dependency_is_imported_when_the_service_runs() -> None:
    needless = RUNTIME - imported_distributions().keys() - INDIRECT.keys()
    assert not needless, "what only tests, benchmarks or papers import belongs to an extra"
    assert INDIRECT.keys() <= RUNTIME
    assert set(INDIRECT.values()) <= RUNTIME


def test_everything_imported_is_a_dependency() -> None:
    known = RUNTIME | OPTIONAL | PARTS
    missing = {name: files for name, files in imported_distributions().items() if name not in known}
    assert not missing, "a fresh `make run` would not start"

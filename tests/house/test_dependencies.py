"""The packages that the service requires are those that its code imports."""

import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.house.source_files import ROOT, files_of, imported_modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INDIRECT = {"httptools": "uvicorn", "uvloop": "uvicorn", "psycopg": "sqlalchemy"}
"""Dependencies that no code of ours imports, and the library that does."""
UNNAMED = {"dlib": ["dlib-bin"]}
"""Modules that their distribution does not list."""
PARTS = {"anyio", "pydantic-core", "starlette", "typing-extensions"}
"""Of the interface of fastapi or pydantic, which require them."""
DEVELOPMENT_PARTS = {"referencing"}
"""Of the interface of jsonschema, which requires it."""
OWN_ENVIRONMENT = {"schemathesis", "milvus", "pymilvus", "grpc", "psycopg"}
"""Installed in environments of their own, from `tests/contract/requirements.txt` and `benchmarks/engines.txt`."""
OURS = {"ml", "app", "workers", "papers", "migrations", "benchmarks", "tests"}
DEVELOPMENT = [p.relative_to(ROOT) for home in ("tests", "benchmarks") for p in sorted((ROOT / home).rglob("*.py"))]
PAPERS = files_of("papers")
SERVICE = files_of("ml", "app", "workers", "migrations")
"""The code that runs the service, its workers and its commands."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(requirements: Iterable[str]) -> set[str]:
    """The names alone, without versions, extras and markers."""
    return {canonical(re.split(r"[<>=!~\[; ]", one, maxsplit=1)[0]) for one in requirements}


def extras(*names: str) -> set[str]:
    return distributions(one for name in names for one in PROJECT["optional-dependencies"][name])


RUNTIME = distributions(PROJECT["dependencies"])


@cache
def distributions_by_module() -> dict[str, list[str]]:
    return {**packages_distributions(), **UNNAMED}


def find_distributions(module: str) -> set[str]:
    """Find the distributions that install a module: usually one, two for `cv2` if both builds of OpenCV are installed.

    A module that no distribution installs stands for itself.
    """
    return {canonical(name) for name in distributions_by_module().get(module, [module])}


def find_modules(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Third-party module -> the files that import it."""
    files: dict[str, list[str]] = {}
    for path in paths:
        for module in {name.split(".")[0] for name in imported_modules(path)} - OURS - sys.stdlib_module_names:
            files.setdefault(module, []).append(str(path))
    return files


def find_undeclared(paths: Iterable[Path], declared: set[str]) -> dict[str, list[str]]:
    """Module -> the files that import it, where no declared distribution installs it."""
    return {module: files for module, files in find_modules(paths).items() if not find_distributions(module) & declared}


def find_unused(paths: Iterable[Path], declared: set[str]) -> set[str]:
    """The declared distributions that none of the files imports, nor a library that they import."""
    used = {name for module in find_modules(paths) for name in find_distributions(module)}
    return declared - used - {name for name, library in INDIRECT.items() if library in used}


def test_the_service_imports_every_dependency() -> None:
    assert not find_unused(SERVICE, RUNTIME), "what only tests, benchmarks or papers import belongs to an extra"


def test_every_import_of_the_service_is_a_dependency() -> None:
    assert not find_undeclared(SERVICE, RUNTIME | PARTS | extras("cpu", "gpu", "oidc", "tsne")), (
        "a fresh `make run` would not start"
    )


def test_every_import_of_the_papers_is_a_dependency_or_in_their_extra() -> None:
    assert not find_undeclared(PAPERS, RUNTIME | PARTS | extras("cpu", "gpu", "oidc", "tsne", "papers"))
    assert not find_unused(PAPERS, extras("papers"))


def test_every_import_of_tests_and_benchmarks_is_declared() -> None:
    declared = RUNTIME | PARTS | extras(*PROJECT["optional-dependencies"])
    assert not find_undeclared(DEVELOPMENT, declared | DEVELOPMENT_PARTS | OWN_ENVIRONMENT)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A module that imports a dependency, a library of the development extra, and one that is not installed."""
    path = tmp_path / "module.py"
    path.write_text("import json\n\nimport numpy as np\nfrom geoopt.manifolds import Stiefel\nimport nowhere\n")
    return path


def test_a_dependency_that_nothing_imports_is_found(module: Path) -> None:
    declared = {"numpy", "scikit-image", "uvloop"}
    assert find_unused([module], declared) == {"scikit-image", "uvloop"}


def test_an_import_that_is_not_declared_is_found(module: Path) -> None:
    assert find_undeclared([module], {"numpy"}) == {"geoopt": [str(module)], "nowhere": [str(module)]}


def test_either_build_of_opencv_will_do(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module.write_text("import cv2\n")
    both = {"cv2": ["opencv-python", "opencv-python-headless"]}
    monkeypatch.setattr("tests.house.test_dependencies.distributions_by_module", lambda: both)
    assert not find_undeclared([module], RUNTIME)


def test_libraries_that_load_others_do_not_hide_direct_imports() -> None:
    used = {name for module in find_modules(SERVICE) for name in find_distributions(module)}
    assert not INDIRECT.keys() & used, "it is imported directly: take it out of INDIRECT"
    assert INDIRECT.keys() <= RUNTIME

"""The Python of docs/extend/ runs: files that a page adds are found by the registry, and its other blocks pass."""

import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from app.config import Settings
from tests import openapi_checker
from tests.service import run_service

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/extend"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ((?:app|ml|tests)/[\w/]+\.py)\n")


def read_blocks(page: str) -> tuple[dict[str, str], list[str]]:
    """The files that a page adds, by path, and its other blocks of Python."""
    files, others = dict[str, str](), []
    for block in BLOCK.findall((PAGES / page).read_text()):
        named = FILE.match(block)
        if named:
            files[named[1]] = block
        else:
            others.append(block)
    return files, others


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose `app`, `ml` and `tests` are searched after the repository's own."""
    modules = set(sys.modules)
    for top in ("app", "tests", "ml", "ml.descriptors", "ml.embedders", "ml.indexes"):
        folder = tmp_path / top.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        package = importlib.import_module(top)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def write_files(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        assert not (ROOT / path).exists(), f"{path} is taken"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    importlib.invalidate_caches()


@pytest.mark.parametrize("page", ["embedder.md", "descriptor.md", "index.md"])
def test_a_component_is_added_as_its_page_says(page: str, overlay: Path) -> None:
    files, others = read_blocks(page)
    assert len(files) == 1
    assert others
    write_files(overlay, files)
    for block in others:
        exec(compile(block, page, "exec"), {"__name__": page})


def test_an_endpoint_is_added_as_its_page_says(overlay: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files, _ = read_blocks("endpoint.md")
    write_files(overlay, files)
    main = importlib.import_module("app.main")
    slice_name = next(path for path in files if path.endswith("routes.py")).removesuffix(".py").replace("/", ".")
    monkeypatch.setattr(main, "ROUTERS", (*main.ROUTERS, importlib.import_module(slice_name).router))
    for name in ("openapi_document", "schema_registry", "response_validator"):  # the document has one endpoint more
        monkeypatch.setattr(openapi_checker, name, cache(getattr(openapi_checker, name).__wrapped__))
    [path] = [path for path in files if path.startswith("tests/")]
    scope: dict[str, object] = {"__name__": "page"}
    exec(compile(files[path], path, "exec"), scope)
    checks = [value for name, value in scope.items() if name.startswith("test_")]
    assert checks
    with run_service(Settings(home=tmp_path / "home", workers=1, default_recogniser="lbp")) as service:
        for check in checks:
            check(service)  # type: ignore[operator]


def test_every_page_is_executed() -> None:
    assert {page.name for page in PAGES.glob("*.md")} == {"embedder.md", "descriptor.md", "index.md", "endpoint.md"}

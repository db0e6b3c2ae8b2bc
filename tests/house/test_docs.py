"""The documentation points at what exists: links, files, endpoints, settings, commands, problem codes."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from app.cli.main import app as cli
from app.config import CLIENT, PREFIX, REPLACED, Settings
from app.deps.problems import KNOWN_PROBLEMS
from app.errors import ML_ERRORS
from app.resources import Resources
from ml.options import list_options
from ml.registry import component
from tests import access_page, settings_page
from tests.house.source_files import ROOT, files_of, list_nodes
from tests.openapi_checker import openapi_document

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "ml").rglob("*.md")])
RECORDS = {"results", "decisions"}
"""Folders whose pages are generated, or are records of their day, and may name files that have moved since."""
WRITTEN = [page for page in PAGES if not RECORDS & set(page.parts) and page.name != "CHANGELOG.md"]
SOURCES = ("app", "ml", "workers", "papers", "benchmarks", "migrations")
MAX_LINE = 120
REPLACED_WORDS = (
    "bell", "chores?", "dear", "door", "entrants?", "foes?", "generations?", "heaps?", "keeper", "lanes?", "lessons?",
    "shelf", "told", "twins?", "wishes",
)  # fmt: skip
"""Words that the glossary replaces; inside of code they may still be names."""
LINK = re.compile(r"\]\(([^()\s]+)\)")
FILE = re.compile(r"`((?:app|ml|workers|papers|benchmarks|migrations|tests|docs|clients|deploy)/[\w./-]*)`")
REQUEST = re.compile(r"`?(GET|POST|PUT|PATCH|DELETE) (/(?:v1|livez|readyz|metrics|info)[^\s`?\"]*)")
COMMAND = re.compile(r"(?:^|[`/ ])likeness ([a-z][a-z-]+)(?: ([a-z][a-z-]+))?", re.MULTILINE)


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page that lie outside of tables."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if not line.lstrip().startswith("|"):
            yield number, line


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    fenced, found = False, set()
    for line in page.read_text().splitlines():
        fenced ^= line.startswith("```")
        if not fenced and line.startswith("#"):
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("# ").strip()).lower()
            found.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_lines_are_short_outside_of_tables(page: Path) -> None:
    assert [number for number, line in prose(page) if len(line) > MAX_LINE] == []


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_pages_use_the_words_of_the_glossary(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", page.read_text(), flags=re.DOTALL)
    assert sorted(set(re.findall(rf"\b(?:{'|'.join(REPLACED_WORDS)})\b", text, re.IGNORECASE))) == []


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = [name for name in FILE.findall(page.read_text()) if "NAME" not in name]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_pages_that_the_code_and_the_changelog_name_exist() -> None:
    code = (path for top in SOURCES for path in (ROOT / top).rglob("*.py"))
    named = {
        (relative(path), name)
        for path in (ROOT / "CHANGELOG.md", *code)
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text())
    }
    assert named
    assert [(path, name) for path, name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_requests_that_a_page_names_exist(page: Path) -> None:
    paths = openapi_document()["paths"]
    templates = [(re.sub(r"\{\w+\}", "[^/]+?", path), set(operations)) for path, operations in paths.items()]

    def exists(method: str, path: str) -> bool:
        path = path.rstrip(".,;)")
        return any(re.fullmatch(template, path) and method.lower() in methods for template, methods in templates)

    named = set(REQUEST.findall(page.read_text()))
    assert [one for one in sorted(named) if not exists(*one)] == []


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_settings_that_a_page_names_exist(page: Path) -> None:
    replaced = REPLACED.keys() if page.name == "upgrade.md" else set()
    known = {PREFIX + name.upper() for name in (*Settings.model_fields, *replaced)} | CLIENT
    named = set(re.findall(rf"{PREFIX}[A-Z_]*[A-Z]\b", page.read_text().replace("_...", "")))
    unknown = {name for name in named if not any(one == name or one.startswith(name + "_") for one in known)}
    assert not unknown


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_commands_that_a_page_names_exist(page: Path) -> None:
    group: Any = get_command(cli)
    plugins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["likeness.commands"]
    lines = "\n".join(line for _, line in prose(page) if line.startswith((" ", "like", ".venv")))
    for name, sub in COMMAND.findall(lines):
        command = group.get_command(None, name)
        assert command is not None or name in plugins, name
        if sub and hasattr(command, "commands"):
            assert sub in command.commands, f"{name} {sub}"


def test_the_page_of_settings_is_up_to_date() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), "run python -m tests.settings_page"
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_page_of_access_is_up_to_date() -> None:
    assert access_page.PAGE.read_text() == access_page.page(), "run python -m tests.access_page"


def raised_codes() -> set[str]:
    """Return the problem codes that the code gives to errors: by keyword, in class bodies and in dictionaries."""
    codes = {code for _, code in KNOWN_PROBLEMS} | {code for _, code in ML_ERRORS.values()}
    for path in files_of("app", "workers", "ml"):
        for node in list_nodes(path):
            codes |= {code for value in _code_values(node) for code in _constants(value)}
    return {code for code in codes if re.fullmatch(r"[A-Z][A-Za-z]+", code)}


def _code_values(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "code")
    elif isinstance(node, ast.Dict):
        yield from (
            v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant) and k.value == "code"
        )


def _constants(value: ast.expr) -> Iterator[str]:
    yield from (n.value for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def test_the_page_of_problems_lists_every_code_and_no_other() -> None:
    listed = set(re.findall(r"^\| `([A-Za-z]+)` \| [0-9j]", (DOCS / "operate/problems.md").read_text(), re.MULTILINE))
    assert listed == raised_codes()


def test_the_page_of_problems_lists_every_status_that_the_api_documents() -> None:
    rows = re.findall(r"^\| `([A-Za-z]+)` \| ([^|]+) \|", (DOCS / "operate/problems.md").read_text(), re.MULTILINE)
    listed = {(int(status), code) for code, statuses in rows for status in re.findall(r"\d+", statuses)}
    assert set(KNOWN_PROBLEMS) <= listed


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_page_of_backups_lists_every_folder_of_the_home(resources: Resources) -> None:
    listed = set(re.findall(r"`([a-z]+)/`", (DOCS / "operate/backup.md").read_text()))
    made = {path.name for path in resources.settings.home.iterdir() if path.is_dir()}
    assert listed == made | {"recognisers", "unfinished", "vocabularies"}


@pytest.mark.parametrize("page", [page for page in WRITTEN if "research" in page.parts], ids=relative)
def test_trainings_of_the_research_pages_name_methods_and_options_that_exist(page: Path) -> None:
    for body in re.findall(r"POST /v1/trainings (\{.*?\})\s*$", page.read_text(), re.MULTILINE | re.DOTALL):
        if "..." in body:
            continue
        training = json.loads(body)
        embedder = component("embedders", training.get("method", "auto"))
        known = {option.name for option in list_options(embedder)}
        assert known >= set(training.get("options", {})), body


def test_the_parts_of_the_architecture_exist() -> None:
    text = (DOCS / "architecture.md").read_text()
    library = re.findall(
        r"^    ([a-z_ ]+?)  +\S", text.partition("## The library")[2].partition("## ")[0], re.MULTILINE
    )
    service = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \|", text.partition("## The service")[2].partition("## ")[0], re.MULTILINE
    )
    paths = [f"ml/{name}" for names in library for name in names.split()]
    paths += [f"app/{name}" for names in service for name in re.findall(r"\w+", names)]
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()] == []

"""Imports run down, slices never meet, and a few words are kept out."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("ml", "app", "workers", "papers", "migrations")
MAY_IMPORT = {
    "ml": set(),
    "app": {"ml"},
    "workers": {"app", "ml"},
    "papers": {"workers", "app", "ml"},
    "migrations": {"app"},
}
FLOORS = [
    {"config", "errors", "threads"},
    {"db", "storage"},
    {"queue"},
    {"resources"},
    {"galleries"},
    {"serving"},
    {"publishing"},
    {"enrolment", "learning"},
    {"deps"},
]
DOORS = {"main", "cli"}
FILES = sorted(p.relative_to(ROOT) for home in HOMES for p in (ROOT / home).rglob("*.py"))
KINDS = (
    "detectors",
    "landmarks",
    "aligners",
    "descriptors",
    "embedders",
    "indexes",
    "fusion",
    "sampling",
    "evaluation",
)
FORBIDDEN = {
    "a module's global changed": r"^\s+global \w",
    "unsafe loading": r"\bpickle\b|allow_pickle=True|weights_only=False|\beval\(",
    "left unfinished": r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError",
}


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(module: str, home: str) -> str | None:
    """What lies directly under the home: `app.faces.service` -> `faces`."""
    names = module.removesuffix(".py").replace("/", ".").split(".")
    return names[1] if len(names) > 1 and names[0] == home else None


def floor(name: str) -> int | None:
    return next((i for i, names in enumerate(FLOORS) if name in names), None)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_run_down(path: Path) -> None:
    home = path.parts[0]
    reached = {name.split(".")[0] for name in imported(path)} & MAY_IMPORT.keys()
    assert reached <= MAY_IMPORT[home] | {home}


@pytest.mark.parametrize("path", [p for p in FILES if p.parts[0] == "app"], ids=str)
def test_a_slice_knows_only_the_floors_below_it(path: Path) -> None:
    own = part(str(path), "app")
    if own is None or own in DOORS or own == "__init__":
        return
    for module in imported(path):
        other = part(module, "app")
        if other is None or other == own:
            continue
        assert floor(other) is not None, f"{path} imports {module}: slice to slice"
        if floor(own) is not None:
            assert floor(other) <= floor(own), f"{path} imports {module}, which lies above it"


@pytest.mark.parametrize("path", [p for p in FILES if p.parts[0] == "migrations"], ids=str)
def test_migrations_know_tables_and_settings_only(path: Path) -> None:
    assert all(part(m, "app") in ("db", "config", None) for m in imported(path))


@pytest.mark.parametrize("path", [p for p in FILES if p.parts[0] == "ml"], ids=str)
def test_ml_knows_arrays_and_files_only(path: Path) -> None:
    strangers = {"fastapi", "starlette", "sqlalchemy", "redis", "httpx", "uvicorn", "pydantic"}
    assert not {name.split(".")[0] for name in imported(path)} & strangers
    assert "os.environ" not in (ROOT / path).read_text()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_words_that_hide_a_fault_are_kept_out(path: Path) -> None:
    lines = (ROOT / path).read_text().splitlines()
    for what, pattern in FORBIDDEN.items():
        found = [f"{path}:{i}" for i, line in enumerate(lines, 1) if re.search(pattern, line)]
        assert not found, f"{what}: {found}"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_error_is_swallowed(path: Path) -> None:
    handlers = [n for n in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(n, ast.ExceptHandler)]
    silent = [
        h.lineno
        for h in handlers
        if all(isinstance(s, ast.Pass | ast.Expr) for s in h.body)
        and len(h.body) == 1
        and not (isinstance(h.body[0], ast.Expr) and isinstance(h.body[0].value, ast.Call))
    ]
    assert not silent


@pytest.mark.parametrize("path", [p for p in FILES if p.parts[0] in ("app", "workers", "ml")], ids=str)
def test_async_stays_at_the_doors(path: Path) -> None:
    allowed = {
        "app/main.py",
        "app/access/middleware.py",
        "app/deps/__init__.py",
        "app/health/metrics.py",
        "app/jobs/events.py",
        "app/deps/idempotency.py",
        "app/faces/streaming.py",
        "app/deps/photos.py",
    }
    has_async = any(isinstance(n, ast.AsyncFunctionDef) for n in ast.walk(ast.parse((ROOT / path).read_text())))
    assert not has_async or str(path) in allowed, "plain def: the work runs in threads"


@pytest.mark.parametrize("path", [p for p in FILES if p.name == "routes.py"], ids=str)
def test_a_route_reads_calls_and_answers(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text())
    assert not {"sqlalchemy.select", "sqlalchemy.insert", "sqlalchemy.update"} & imported(path), (
        "queries stand in services"
    )
    for node in [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list]:
        body = node.body[1:] if ast.get_docstring(node) else node.body
        assert ast.get_docstring(node), f"{node.name} has no docstring: it is the API's documentation"
        assert not any(isinstance(n, ast.If) for n in ast.walk(node)), f"{node.name} decides: that is a service's work"
        assert body[-1].end_lineno - body[0].lineno < 15, f"{node.name} is too long for a route"


def test_files_and_functions_stay_small() -> None:
    sizes = sorted(len((ROOT / p).read_text().splitlines()) for p in FILES)
    longest = [
        f"{p}:{n.lineno} {n.name}"
        for p in FILES
        for n in ast.walk(ast.parse((ROOT / p).read_text()))
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        and n.end_lineno - n.lineno + 1 > 60
        and "migrations" not in p.parts
    ]
    assert not longest
    assert sizes[-1] <= 400, "a file over 400 lines is split by verb"

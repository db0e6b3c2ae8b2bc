"""Imports point down, slices never import each other, and patterns that hide faults are kept out."""

import ast
import re
from pathlib import Path

from tests.house.source_files import FILES, files_of, imported_modules, list_nodes, parse, read

ALLOWED_IMPORTS: dict[str, set[str]] = {
    "ml": set(),
    "app": {"ml"},
    "workers": {"app", "ml"},
    "papers": {"workers", "app", "ml"},
    "migrations": {"app"},
}
FLOORS = [
    {"allocator", "config", "errors", "imports", "startup", "threads"},
    {"db", "storage"},
    {"queue"},
    {"resources"},
    {"galleries", "snapshots"},
    {"serving"},
    {"publishing"},
    {"enrolment", "learning"},
    {"deps"},
]
"""The parts of `app` that others may import, from the ground up."""
ENTRY_POINTS = {"main", "cli"}
ASYNC_FILES = {
    "app/main.py",
    "app/deps/admission/gate.py",
    "app/deps/admission/middleware.py",
    "app/access/audit_middleware.py",
    "app/access/issuer_keys.py",
    "app/access/middleware.py",
    "app/access/oidc.py",
    "app/access/request_checks.py",
    "app/access/rate_limits.py",
    "app/console/routes.py",
    "app/console/whole_files.py",
    "app/deps/__init__.py",
    "app/health/metrics.py",
    "app/health/readiness.py",
    "app/health/routes.py",
    "app/jobs/events.py",
    "app/deps/idempotency/late_answers.py",
    "app/deps/idempotency/middleware.py",
    "app/deps/idempotency/stored_answers.py",
    "app/deps/server/change_number.py",
    "app/search/photo_routes.py",
    "app/search/vector_routes.py",
    "app/faces/streaming.py",
    "app/embedding_imports/streaming.py",
    "app/labels/streaming.py",
    "app/deps/uploads/form_parts.py",
    "app/deps/uploads/photo_form.py",
    "app/deps/uploads/upload_files.py",
    "app/deps/photos.py",
    "app/document/api.py",
    "app/deps/server/draining.py",
    "app/deps/server/immediate_answers.py",
    "app/deps/server/request_structure.py",
    "app/deps/server/security_headers.py",
    "app/deps/server/unread_bodies.py",
}
"""Where `async def` is allowed: everywhere else the work runs in threads."""
SERVICE_LIBRARIES = {"fastapi", "starlette", "sqlalchemy", "redis", "httpx", "uvicorn", "pydantic"}
FORBIDDEN = {
    "a module's global changed": r"^\s+global \w",
    "unsafe loading": r"\bpickle\b|allow_pickle=True|weights_only=False|\beval\(",
    "left unfinished": r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError",
}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_ROUTE_LINES = 15


WORKER_FLOORS = [
    {"context"},
    {"imported_vectors", "watchdog"},
    {"damaged_faces", "description", "failures", "metadata_values", "progress"},
    {"embedding"},
    {"training", "importing", "cleanup", "discovery", "atlas", "forecasting"},
    {"publishing", "evaluating", "erasing"},
    {"handlers", "schedule"},
    {"worker"},
    {"main"},
    {"__main__"},
]
"""The parts of `workers`, from the ground up."""


def part_of_app(module: str) -> str | None:
    """The part directly under `app`: `app.faces.service` -> `faces`; None outside of app."""
    names = module.removesuffix(".py").replace("/", ".").split(".")
    return names[1] if len(names) > 1 and names[0] == "app" else None


def floor_of(part: str) -> int | None:
    return next((i for i, parts in enumerate(FLOORS) if part in parts), None)


def explain_forbidden_import(path: Path, module: str) -> str | None:
    """Explain why a file of app may not import this module of app; None if it may."""
    own, other = part_of_app(str(path)), part_of_app(module)
    if own is None or own in ENTRY_POINTS or own == "__init__" or other is None or other == own:
        return None
    own_floor, other_floor = floor_of(own), floor_of(other)
    if other_floor is None:
        return f"{path} imports {module}: slice to slice"
    if own_floor is not None and other_floor > own_floor:
        return f"{path} imports {module}, which lies above it"
    return None


def test_packages_import_only_the_packages_below_them() -> None:
    wrong = [
        (str(path), package)
        for path in FILES
        for package in {name.split(".")[0] for name in imported_modules(path)} & ALLOWED_IMPORTS.keys()
        if package not in ALLOWED_IMPORTS[path.parts[0]] | {path.parts[0]}
    ]
    assert wrong == []


def test_no_measurement_imports_the_fixtures_of_the_tests() -> None:
    """Their module sets threads, garbage collection and waiting times as tests need them."""
    assert [str(path) for path in files_of("benchmarks") if "tests.conftest" in imported_modules(path)] == []


def test_a_slice_of_app_imports_only_the_floors_below_it() -> None:
    reasons = {explain_forbidden_import(path, module) for path in files_of("app") for module in imported_modules(path)}
    assert reasons - {None} == set()


def test_the_check_of_floors_can_fail() -> None:
    assert explain_forbidden_import(Path("app/faces/service.py"), "app.search.service")
    assert explain_forbidden_import(Path("app/db/tables/base.py"), "app.serving.engine")
    assert not explain_forbidden_import(Path("app/faces/service.py"), "app.serving.engine")


def explain_forbidden_worker_import(path: Path, module: str) -> str | None:
    """Explain why a file of workers may not import this module of workers; None if it may."""
    own, other = path.parts[1].removesuffix(".py"), module.split(".")[1]
    floors = {part: floor for floor, parts in enumerate(WORKER_FLOORS) for part in parts}
    if own == other or floors[other] < floors[own]:
        return None
    return f"{path} imports {module}, which does not lie below it"


def test_a_part_of_workers_imports_only_the_floors_below_it() -> None:
    reasons = [
        explain_forbidden_worker_import(path, module)
        for path in files_of("workers")
        for module in imported_modules(path)
        if module.startswith("workers.") and path.name != "__init__.py"
    ]
    assert not [reason for reason in reasons if reason]


def test_the_check_of_workers_can_fail() -> None:
    training = Path("workers/training/fit.py")
    assert explain_forbidden_worker_import(training, "workers.publishing.gate")
    assert explain_forbidden_worker_import(Path("workers/publishing/gate.py"), "workers.evaluating.dataset")
    assert not explain_forbidden_worker_import(training, "workers.description")


def test_migrations_import_only_tables_and_settings() -> None:
    parts = {part_of_app(module) for path in files_of("migrations") for module in imported_modules(path)}
    assert parts <= {"db", "config", None}


def test_ml_knows_only_arrays_and_files() -> None:
    """`ml/__init__.py` alone sets a variable of the environment, by which ONNX Runtime sends no telemetry."""
    wrong = [
        str(path)
        for path in files_of("ml")
        if {name.split(".")[0] for name in imported_modules(path)} & SERVICE_LIBRARIES
        or ("os.environ" in read(path) and path.as_posix() != "ml/__init__.py")
    ]
    assert wrong == []


def test_patterns_that_hide_a_fault_are_kept_out() -> None:
    matches = [
        f"{path}:{number}: {what}"
        for path in FILES
        for number, line in enumerate(read(path).splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if re.search(pattern, line)
    ]
    assert matches == []


def is_silent(handler: ast.ExceptHandler) -> bool:
    """Whether an exception ends here without a trace: the only statement is no call, and nothing else."""
    if len(handler.body) != 1:
        return False
    statement = handler.body[0]
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Call)
    return isinstance(statement, ast.Pass)


def test_no_error_is_swallowed() -> None:
    silent = [
        f"{path}:{node.lineno}"
        for path in FILES
        for node in list_nodes(path)
        if isinstance(node, ast.ExceptHandler) and is_silent(node)
    ]
    assert silent == []


def test_async_functions_stay_at_the_edge_of_the_service() -> None:
    files = {
        str(path)
        for path in files_of("app", "workers", "ml")
        if any(isinstance(node, ast.AsyncFunctionDef) for node in list_nodes(path))
    }
    assert files <= ASYNC_FILES


def list_route_faults(path: Path) -> list[str]:
    """List what the routes of a file do that belongs into a service, and the routes without documentation."""
    faults = []
    if {"sqlalchemy.select", "sqlalchemy.insert", "sqlalchemy.update"} & imported_modules(path):
        faults.append(f"{path}: queries belong into services")
    for node in parse(path).body:
        if not isinstance(node, ast.FunctionDef) or not node.decorator_list:
            continue
        body = node.body[1:] if ast.get_docstring(node) else node.body
        if not ast.get_docstring(node):
            faults.append(f"{path}: {node.name} has no docstring, which is the API's documentation")
        if any(isinstance(child, ast.If) for child in ast.walk(node)):
            faults.append(f"{path}: {node.name} decides, which is a service's work")
        if (body[-1].end_lineno or 0) - body[0].lineno >= MAX_ROUTE_LINES:
            faults.append(f"{path}: {node.name} is too long for a route")
    return faults


def test_a_route_reads_calls_and_answers() -> None:
    assert [fault for path in FILES if path.name == "routes.py" for fault in list_route_faults(path)] == []


def test_files_and_functions_stay_small() -> None:
    files = {str(path): len(read(path).splitlines()) for path in FILES}
    functions = {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in FILES
        if "migrations" not in path.parts
        for node in list_nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {path: lines for path, lines in files.items() if lines > MAX_FILE_LINES} == {}
    assert {name: lines for name, lines in functions.items() if lines > MAX_FUNCTION_LINES} == {}

"""The application: the routers of all slices, the middleware, and the resources that they share."""

import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.access.audit_middleware import AuditMiddleware, AuditRecorder
from app.access.middleware import AuthMiddleware
from app.access.rate_limits import REFUSALS, WRONG_KEYS
from app.access.request_checks import RequestChecks
from app.access.routes import router as access
from app.atlases.routes import router as atlases
from app.audit.routes import router as audit
from app.clusters.routes import router as clusters
from app.collections.routes import router as collections
from app.config import Settings
from app.console.routes import files
from app.console.routes import router as console
from app.db.failures import describe_failure
from app.db.session import is_temporary
from app.deployments.routes import router as deployments
from app.deps.admission.gate import AdmissionGate
from app.deps.admission.middleware import AdmissionMiddleware
from app.deps.admission.work import REQUESTS, WAIT_SECONDS
from app.deps.audit import check_audited
from app.deps.idempotency.middleware import IdempotencyMiddleware
from app.deps.problem_response import make_problem_response
from app.deps.scopes import check_declarations
from app.deps.server.change_number import ChangeNumberMiddleware
from app.deps.server.immediate_answers import Steps
from app.deps.server.request_structure import RequestStructureMiddleware
from app.document.api import DocumentedApi
from app.document.methods import find_methods
from app.embedding_imports.routes import router as embedding_imports
from app.erasures.routes import router as erasures
from app.errors import AppError, Invalid, NotFound
from app.evaluations.routes import router as evaluations
from app.examinations.routes import router as examinations
from app.faces.routes import router as faces
from app.forecasts.routes import router as forecasts
from app.health.metrics import Meter, MetricsMiddleware
from app.health.readiness import Readiness
from app.health.routes import router as health
from app.jobs.routes import router as jobs
from app.kept_snapshots.routes import router as kept_snapshots
from app.labellers.routes import router as labellers
from app.labels.routes import router as labels
from app.methods.routes import router as methods
from app.models.routes import router as models
from app.recognisers.routes import router as recognisers
from app.resources import Resources, open_resources
from app.search.photo_routes import router as photo_search
from app.search.routes import router as search
from app.search.vector_routes import IMMEDIATE_VECTOR_SEARCH
from app.search.vector_routes import router as vector_search
from app.serving.engine import Engine, open_engine
from app.shadow_comparisons.routes import router as shadow_comparisons
from app.storage.audit_log.spool import LOST_ENTRIES
from app.storage.audit_log.writer import open_spool
from app.storage.private_files import make_files_private
from app.storage.recognisers.default_recogniser import store_built_in
from app.subjects.routes import router as subjects
from app.tasks.routes import router as tasks
from app.threads import set_switch_interval, set_threads
from app.training_policies.routes import router as training_policies
from app.trainings.routes import router as trainings
from ml.errors import LikenessError
from ml.indexes import scan_helpers

log = logging.getLogger("likeness.api")

ROUTERS = (
    vector_search,  # first: each request tries the routers in turn
    photo_search,
    search,
    health,
    access,
    audit,
    collections,
    subjects,
    faces,
    embedding_imports,
    clusters,
    examinations,
    forecasts,
    labels,
    labellers,
    tasks,
    methods,
    trainings,
    training_policies,
    evaluations,
    models,
    recognisers,
    deployments,
    shadow_comparisons,
    atlases,
    jobs,
    erasures,
    kept_snapshots,
)


def create_app(settings: Settings, when_started: Callable[[Engine], object] = lambda _: None) -> DocumentedApi:
    """Create the application. Its resources are opened when it starts and closed when it stops.

    when_started: called once it can answer
    Raises UndeclaredScope or UndeclaredAudit if a route does not say what it is scoped by or audited as.
    """
    opened: list[Resources] = []
    gate = AdmissionGate(settings.concurrent_requests, settings.min_queued_requests, settings.patience_seconds)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        set_threads(settings.threads_per_slot)
        scan_helpers().count = settings.scan_helpers
        set_switch_interval()
        with open_resources(settings) as resources:
            store_built_in(resources.database, resources.models, resources.default_recogniser)
            with (
                open_spool(resources.database, resources.audit_chain) as spool,
                open_engine(resources, lambda: gate.waiting) as engine,
            ):
                opened.append(resources)
                when_started(engine)
                resources.front_end.warm_up()
                yield {"resources": resources, "engine": engine, "audit_spool": spool}

    app = DocumentedApi(ROUTERS, lifespan=lifespan)
    check_declarations(app.documented)
    check_audited(app.documented)
    app.router.routes.extend(console.routes)
    app.mount("/console", files)
    app.add_middleware(RequestStructureMiddleware)
    app.add_middleware(ChangeNumberMiddleware)
    app.add_middleware(IdempotencyMiddleware)
    app.add_middleware(AdmissionMiddleware, gate=gate)
    checks, recorder = RequestChecks(app.documented, settings, lambda: opened[-1]), AuditRecorder(settings)
    app.add_middleware(AuthMiddleware, checks=checks)
    app.add_middleware(AuditMiddleware, recorder=recorder)
    app.state.meter = Meter((LOST_ENTRIES, REFUSALS, WRONG_KEYS, REQUESTS, WAIT_SECONDS))
    app.state.readiness = Readiness()
    app.add_middleware(MetricsMiddleware, meter=app.state.meter)
    steps = Steps(checks, gate, recorder.record_together, app.state.meter.count_request)
    app.answer_at_once(IMMEDIATE_VECTOR_SEARCH, steps)
    expected = AppError, LikenessError, OperationalError, OSError, RequestValidationError, HTTPException
    for kind in (*expected, ClientDisconnect):
        app.add_exception_handler(kind, answer_problem)
    app.add_exception_handler(Exception, answer_failure)
    return app


def answer_problem(request: Request, error: Exception) -> JSONResponse:
    """Answer an error as application/problem+json. An unexpected error is logged, and its text is not shown."""
    if _is_in_path(error) and request.method not in _list_methods(request):
        error = HTTPException(405)  # `GET .../clusters/12:dismiss` is taken for a cluster whose id is not valid
    if isinstance(error, OSError):
        error = request.state.resources.home.explain(error)
    answer = make_problem_response(request.scope, _to_app_error(error))
    if answer.status_code == 500:
        request_id = getattr(request.state, "request_id", "")
        template = getattr(request.scope.get("route"), "path", "")  # the path itself may name a person
        log.error("request.failed request_id=%s path=%s", request_id, template, exc_info=error)
    if answer.status_code == 405:
        answer.headers["Allow"] = ", ".join(_list_methods(request))
    return answer


def _is_in_path(error: Exception) -> bool:
    return isinstance(error, RequestValidationError) and bool(error.errors()[0]["loc"][0] == "path")


def _list_methods(request: Request) -> list[str]:
    return sorted(find_methods((*request.app.documented, *console.routes), request.scope))


def answer_failure(request: Request, error: Exception) -> JSONResponse:
    """Answer an unexpected error. This happens outside of the middleware that adds the request id, so it is added.

    uvicorn closes the connection after such an error, so the answer says so: a client that reused it would be reset.
    """
    answer = answer_problem(request, error)
    answer.headers["X-Request-Id"] = getattr(request.state, "request_id", "")
    answer.headers["Connection"] = "close"
    return answer


def _to_app_error(error: Exception) -> Exception:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return Invalid(f"{where}: {first['msg']}", errors=_shorten_errors(error.errors()))
    if isinstance(error, OperationalError) and is_temporary(error):
        return describe_failure(error)
    if isinstance(error, ClientDisconnect):
        return Invalid("the connection was closed before the end of the body", code="InvalidRequest")
    if isinstance(error, HTTPException):
        app_error = AppError(
            _explain_parse_error(error) or str(error.detail),
            code=NotFound.code if error.status_code == 404 else "InvalidRequest",
        )
        app_error.status, app_error.title = error.status_code, str(error.detail)
        return app_error
    return error


def _explain_parse_error(error: Exception) -> str:
    """Say why the framework could not parse a body; empty if it could."""
    cause = error.__cause__
    if isinstance(cause, UnicodeDecodeError):
        return f"the body is not UTF-8: byte {cause.start:,} cannot be decoded"
    if isinstance(cause, ValueError) and "int_max_str_digits" in str(cause):
        return f"a number in the body has more than {sys.get_int_max_str_digits():,} digits"
    return ""


def _shorten_errors(errors: Any) -> list[dict[str, Any]]:
    return [{"loc": [str(p) for p in e["loc"]], "msg": e["msg"]} for e in errors[:20]]


def from_env() -> DocumentedApi:
    """Create the application from the environment, for `uvicorn --factory app.main:from_env`."""
    make_files_private()
    return create_app(Settings.from_env(os.environ))

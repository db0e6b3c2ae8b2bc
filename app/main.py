"""The application: the routers of all slices, the middleware, and the resources that they share."""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from joblib import cpu_count
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from app.access.middleware import AuthMiddleware
from app.access.routes import router as access
from app.clusters.routes import router as clusters
from app.collections.routes import router as collections
from app.config import Settings
from app.console.routes import files
from app.console.routes import router as console
from app.db.session import writing
from app.deployments.routes import router as deployments
from app.deps.idempotency import IdempotencyMiddleware
from app.document.api import DocumentedApi
from app.errors import AppError, Busy, Invalid, NotFound, describe_problem
from app.evaluations.routes import router as evaluations
from app.examinations.routes import router as examinations
from app.faces.routes import router as faces
from app.health.metrics import Meter, MetricsMiddleware
from app.health.routes import router as health
from app.jobs.routes import router as jobs
from app.labels.routes import router as labels
from app.methods.routes import router as methods
from app.models.routes import router as models
from app.recognisers.routes import router as recognisers
from app.resources import Resources, open_resources
from app.search.routes import router as search
from app.serving.engine import open_engine
from app.storage.recognisers.default_recogniser import ensure_built_in
from app.subjects.routes import router as subjects
from app.tasks.routes import router as tasks
from app.threads import set_threads
from app.trainings.routes import router as trainings
from ml.errors import LikenessError

log = logging.getLogger("likeness.api")

ROUTERS = (
    health,
    access,
    collections,
    subjects,
    faces,
    clusters,
    examinations,
    search,
    labels,
    tasks,
    methods,
    trainings,
    evaluations,
    models,
    recognisers,
    deployments,
    jobs,
)


def create_app(settings: Settings) -> DocumentedApi:
    """Create the application. Its resources are opened when it starts and closed when it stops."""
    opened: list[Resources] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        set_threads(max(1, cpu_count() // settings.slots))
        with open_resources(settings) as resources:
            with writing(resources.database) as session:
                ensure_built_in(session, resources.models, resources.default_recogniser)
            with open_engine(resources) as engine:
                opened.append(resources)
                yield {"resources": resources, "engine": engine}

    app = DocumentedApi(ROUTERS, lifespan=lifespan)
    app.include_router(console)
    app.mount("/console", files)
    app.add_middleware(IdempotencyMiddleware)
    app.add_middleware(AuthMiddleware, routes=app.documented, settings=settings, resources=lambda: opened[-1])
    app.state.meter = Meter()
    app.add_middleware(MetricsMiddleware, meter=app.state.meter)
    for kind in (AppError, LikenessError, OperationalError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer_problem)
    app.add_exception_handler(Exception, answer_failure)
    return app


def answer_problem(request: Request, error: Exception) -> JSONResponse:
    """Answer an error as application/problem+json. An unexpected error is logged, and its text is not shown."""
    request_id = getattr(request.state, "request_id", "")
    body = describe_problem(_to_app_error(error), request_id)
    if body["status"] == 500:
        log.error("request.failed request_id=%s path=%s", request_id, request.url.path, exc_info=error)
    headers = {"Retry-After": "1"} if body["retryable"] else {}
    return JSONResponse(body, body["status"], headers, media_type="application/problem+json")


def answer_failure(request: Request, error: Exception) -> JSONResponse:
    """Answer an unexpected error. This happens outside of the middleware that adds the request id, so it is added."""
    answer = answer_problem(request, error)
    answer.headers["X-Request-Id"] = getattr(request.state, "request_id", "")
    return answer


def _to_app_error(error: Exception) -> Exception:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return Invalid(f"{where}: {first['msg']}", errors=_shorten_errors(error.errors()))
    if isinstance(error, OperationalError):
        return Busy("the database is busy or cannot be reached; nothing of this request was stored")
    if isinstance(error, HTTPException):
        app_error = AppError(str(error.detail), code=NotFound.code if error.status_code == 404 else "InvalidRequest")
        app_error.status, app_error.title = error.status_code, str(error.detail)
        return app_error
    return error


def _shorten_errors(errors: Any) -> list[dict[str, Any]]:
    return [{"loc": [str(p) for p in e["loc"]], "msg": e["msg"]} for e in errors[:20]]


def from_env() -> DocumentedApi:
    """Create the application from the environment, for `uvicorn --factory app.main:from_env`."""
    return create_app(Settings.from_env(os.environ))

"""Probes, metrics and versions.

The probes need no key: an orchestrator has none, and they reveal only whether requests may be sent here. Metrics and
versions name collections and count faces, so they need a key; one that is bound to collections sees only those, and no
figures of the whole process.
"""

from typing import Any

from fastapi import APIRouter, Request, Response

from app.deps import CallerDep, EngineDep, ReadDep
from app.deps.problems import declare_problems
from app.deps.roles import READER
from app.deps.scopes import NOTHING, ROWS
from app.health import service
from app.health.metrics import format_metrics
from app.health.schemas import AliveOut, InfoOut, ReadyOut

router = APIRouter(tags=["health"])
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": ReadyOut, "description": "not ready, with the reasons"}}
FIGURES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "text/plain": {
                "schema": {"type": "string"},
                "example": 'likeness_faces{collection="staff",role="gallery"} 2400.0\n',
            }
        }
    }
}


@router.get("/livez", summary="Is the process alive?", openapi_extra=NOTHING)
async def livez() -> AliveOut:
    """200 if the process answers at all. The event loop answers it, and it waits for no request thread."""
    return AliveOut()


@router.get(
    "/readyz",
    summary="Can it serve?",
    responses=NOT_READY,
    openapi_extra=NOTHING | declare_problems((500, "InternalServerError"), (503, "Throttling")),
)
async def readyz(request: Request, engine: EngineDep, response: Response) -> ReadyOut:
    """200 if the database answers and can be written, and the index of every deployment agrees with the tables: the
    numbers of ids, vectors and rows are equal, and its threshold has been checked since it was loaded. Else 503, with
    the reasons, which count deployments and name none; `GET /info` names those that are loaded. An answer holds for ten
    times as long as it took to find, at most five seconds."""
    reasons = await request.app.state.readiness.list_reasons(engine)
    response.status_code = 503 if reasons else 200
    response.headers.update({"Retry-After": "1"} if reasons else {})
    return ReadyOut(status="not ready" if reasons else "ok", reasons=reasons)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    openapi_extra=READER | ROWS,
    response_class=Response,
    responses=FIGURES,
)
def metrics(request: Request, engine: EngineDep, session: ReadDep, caller: CallerDep) -> Response:
    """Requests and their latency by route, faces, jobs by state, the lag of followers, and the sizes of indexes. A key
    that is bound to collections sees the figures of these collections alone."""
    text = format_metrics(request.app.state.meter, session, engine, caller)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/info", summary="Versions and what is loaded", openapi_extra=READER | ROWS)
def info(engine: EngineDep, caller: CallerDep) -> InfoOut:
    """Versions, important settings and loaded deployments of this process."""
    return service.describe_process(engine, caller)

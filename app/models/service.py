from collections.abc import Sequence

from fastapi import Response
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.db.tables import Deployment, ModelRecord, now
from app.deps.caller import Caller
from app.deps.job_response import JobOut, accepted
from app.errors import Conflict, NotFound
from app.models.schemas import DeployedAt, ModelInFull, ModelOut, PublishAtIn, PublishedOut
from app.publishing import requests
from app.publishing.requests import PublishRequest
from app.storage.recognisers.default_recogniser import BUILT_IN_MODELS

POINTERS = ("champion", "challenger", "previous")


def get(session: Session, model: str) -> ModelRecord:
    found = session.get(ModelRecord, model)
    if found is None:
        raise NotFound(f"no model {model!r}")
    return found


def shown(session: Session, rows: Sequence[ModelRecord], caller: Caller) -> list[ModelOut]:
    """With the places where each is deployed, of the collections that the caller may see."""
    places = _places(session, [r.id for r in rows], caller)
    return [ModelOut.of(r, places[r.id]) for r in rows]


def in_full(session: Session, model: str, caller: Caller) -> ModelInFull:
    row = get(session, model)
    return ModelInFull.of(row, _places(session, [model], caller)[model])


def archive(session: Session, model: str, caller: Caller) -> ModelInFull:
    """Raises Conflict while a pointer names it: it could not serve any more."""
    row = session.get(ModelRecord, model, with_for_update=True)
    if row is None:
        raise NotFound(f"no model {model!r}")
    if model in BUILT_IN_MODELS:
        raise Conflict(f"{model} is what new collections start with; it stays")
    names = [Deployment.champion, Deployment.challenger, Deployment.previous]
    named = session.scalars(select(Deployment).where(or_(*(n == model for n in names)))).all()
    if named:
        where = ", ".join(sorted({f"{d.collection_id}/{d.task}" for d in named}))
        raise Conflict(f"model {model} is named by the deployment of {where}; publish another there first")
    row.archived_at = row.archived_at or now()
    return ModelInFull.of(row, [])


def publish(
    session: Session, model: str, body: PublishAtIn, caller: Caller, response: Response
) -> PublishedOut | JobOut:
    """See `app.publishing.requests.ask`; 202 with the job, or 200: it serves."""
    caller.check(body.collection)
    get(session, model)
    wish = PublishRequest(model, tuple(body.tasks), body.override, body.reason, by=caller.signature)
    job = requests.request_publication(session, body.collection, wish)
    if job is None:
        tasks = [p.task for p in _places(session, [model], caller)[model] if p.pointer == "champion"]
        return PublishedOut(model=model, collection=body.collection, tasks=tasks)
    response.status_code = 202
    accepted(response, job)
    return JobOut.of(job)


def _places(session: Session, models: Sequence[str], caller: Caller) -> dict[str, list[DeployedAt]]:
    found: dict[str, list[DeployedAt]] = {m: [] for m in models}
    for pointer in POINTERS:
        name = getattr(Deployment, pointer)
        rows = select(name, Deployment.collection_id, Deployment.task).where(name.in_(models))
        for model, collection, task in session.execute(rows.order_by(Deployment.collection_id, Deployment.task)):
            if not caller.collections or collection in caller.collections:
                found[model].append(DeployedAt(collection=collection, task=task, pointer=pointer))
    return found

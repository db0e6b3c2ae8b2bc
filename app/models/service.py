"""Describe, archive and publish models."""

from collections.abc import Sequence

from fastapi import Response
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.db.lookups import get_model
from app.db.tables import POINTERS, Deployment, ModelRecord, now
from app.deps.caller import Caller
from app.deps.job_response import JobOut, point_to_job
from app.errors import Conflict
from app.learning.plan import Plan
from app.learning.refit import make_refit
from app.models.schemas import DeployedAt, ModelInFull, ModelOut, PublishAtIn, PublishedOut, RefitIn, RefitStarted
from app.publishing import requests
from app.publishing.requests import PublishRequest
from app.queue.jobs import enqueue
from app.queue.messages import Train
from app.storage.recognisers.default_recogniser import BUILT_IN_MODELS


def describe_models(session: Session, rows: Sequence[ModelRecord], caller: Caller) -> list[ModelOut]:
    """Describe models, each with the deployments that name it, in collections that the caller may see."""
    deployed = _find_deployments(session, [r.id for r in rows], caller)
    return [ModelOut.of(r, deployed[r.id]) for r in rows]


def describe_model(session: Session, model: str, caller: Caller) -> ModelInFull:
    """Describe a model in full. Raises NotFound."""
    row = get_model(session, model)
    return ModelInFull.of(row, _find_deployments(session, [model], caller)[model])


def archive_model(session: Session, model: str, caller: Caller) -> ModelInFull:
    """Archive a model. Raises NotFound, or Conflict if it is built in or a pointer names it."""
    row = get_model(session, model, lock="exclusive")
    if model in BUILT_IN_MODELS:
        raise Conflict(f"{model} is built in: new collections start with it, and it cannot be archived")
    is_named = or_(*(getattr(Deployment, pointer) == model for pointer in POINTERS))
    named = session.scalars(select(Deployment).where(is_named)).all()
    if named:
        where = ", ".join(sorted({f"{d.collection_id}/{d.task}" for d in named}))
        raise Conflict(f"model {model} is named by the deployment of {where}; publish another there first")
    row.archived_at = row.archived_at or now()
    return ModelInFull.of(row, [])


def refit_model(session: Session, model: str, body: RefitIn, caller: Caller, response: Response) -> RefitStarted:
    """Start a training that repeats the model's own without some people. Raises like `make_refit`, and Forbidden."""
    training = make_refit(session, model, body.collection, body.without)
    plan = Plan.model_validate(training.request)
    for collection in plan.collections:
        caller.check(collection)
    job = enqueue(session, Train(training=training.id, collection=plan.collection))
    training.job_id = job.id
    response.status_code = 202
    point_to_job(response, job)
    return RefitStarted(**JobOut.of(job).model_dump(), training=training.id)


def publish_model(
    session: Session, model: str, body: PublishAtIn, caller: Caller, response: Response
) -> PublishedOut | JobOut:
    """Publish a model: 202 with the job, or 200 if it serves already. Raises like `requests.request_publication`."""
    caller.check(body.collection)
    get_model(session, model)
    request = PublishRequest(model, tuple(body.tasks), body.override, body.reason, by=caller.signature)
    job = requests.request_publication(session, body.collection, request)
    if job is None:
        tasks = [p.task for p in _find_deployments(session, [model], caller)[model] if p.pointer == "champion"]
        return PublishedOut(model=model, collection=body.collection, tasks=tasks)
    response.status_code = 202
    point_to_job(response, job)
    return JobOut.of(job)


def _find_deployments(session: Session, models: Sequence[str], caller: Caller) -> dict[str, list[DeployedAt]]:
    deployed: dict[str, list[DeployedAt]] = {m: [] for m in models}
    for pointer in POINTERS:
        name = getattr(Deployment, pointer)
        rows = select(name, Deployment.collection_id, Deployment.task).where(name.in_(models))
        for model, collection, task in session.execute(rows.order_by(Deployment.collection_id, Deployment.task)):
            if not caller.collections or collection in caller.collections:
                deployed[model].append(DeployedAt(collection=collection, task=task, pointer=pointer))
    return deployed

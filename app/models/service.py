"""Describe, archive and publish models."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Response
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.db.lookups import get_model
from app.db.tables import POINTERS, Collection, Deployment, ModelRecord, now
from app.db.visibility import ALL_ROWS
from app.deps.caller import Caller, Role
from app.deps.job_response import JobOut, point_to_job
from app.errors import Conflict, Forbidden
from app.galleries.learned_collections import COLLECTIONS_CREATED_AT, CONTINUED_CHANGES, OPEN_SET_ELSEWHERE
from app.learning.plan import Plan
from app.learning.refit import REFIT_CHANGES, WITHOUT, WITHOUT_PKS, make_refit
from app.models.schemas import DeployedAt, ModelInFull, ModelOut, PublishAtIn, PublishedOut, RefitIn, RefitStarted
from app.publishing import requests
from app.publishing.requests import PublishRequest
from app.queue.jobs import enqueue
from app.queue.messages import Train
from app.storage.audit_log.notes import note_audited
from app.storage.installation_key import InstallationKey
from app.storage.recognisers.default_recogniser import BUILT_IN_MODELS

NAMING_COLLECTIONS = (
    "changes",
    CONTINUED_CHANGES,
    COLLECTIONS_CREATED_AT,
    OPEN_SET_ELSEWHERE,
    WITHOUT,
    WITHOUT_PKS,
    REFIT_CHANGES,
)
"""Parts of a model's provenance that are objects by collection."""
SHOWN_TO_ALL = ("made", "holdout", "by_held_out", "open_set")
"""Parts that say nothing of the data; others are shown only to keys for all collections that it was learned from."""
TRAINING_ROLE: Role = "operator"
"""Who may read a training."""


def describe_models(session: Session, rows: Sequence[ModelRecord]) -> list[ModelOut]:
    """Describe models, each with the deployments that name it."""
    deployed = _find_deployments(session, [r.id for r in rows])
    return [ModelOut.of(r, deployed[r.id]) for r in rows]


def describe_model(session: Session, model: str, caller: Caller) -> ModelInFull:
    """Describe a model in full, as far as the caller may see the training that made it. Raises NotFound.

    A key that is bound to other collections than it has learned from sees neither the training nor those collections; a
    reader sees no plan and no report, as of the training itself.
    """
    row = get_model(session, model)
    described = ModelInFull.of(row, _find_deployments(session, [model])[model])
    provenance = described.manifest["facts"]
    if caller.collections and _list_sources(provenance) - set(caller.collections):
        described.manifest = described.manifest | {"facts": _hide_others(provenance, caller)}
        described.labels, described.report = None, {}
    elif not caller.may(TRAINING_ROLE):
        shown = {name: value for name, value in provenance.items() if name != "plan"}
        described.manifest, described.report = described.manifest | {"facts": shown}, {}
    return described


def _list_sources(provenance: Mapping[str, Any]) -> set[str]:
    """List the collections that a model has learned from, and that of its training."""
    trained_in = provenance.get("collection")
    continued = provenance.get(CONTINUED_CHANGES, ())
    return {*provenance.get("changes", ()), *continued, *([trained_in] if trained_in else ())}


def _hide_others(provenance: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
    """Return the provenance of a model without its training and the collections that the key is not bound to."""
    own = set(caller.collections)
    by_collection = {name: provenance[name] for name in NAMING_COLLECTIONS if name in provenance}
    return {
        **{name: provenance[name] for name in SHOWN_TO_ALL if name in provenance},
        **{name: {c: v for c, v in values.items() if c in own} for name, values in by_collection.items()},
    }


def archive_model(session: Session, model: str, caller: Caller) -> ModelInFull:
    """Archive a model.

    Raises NotFound; Conflict if it is built in or a pointer names it; Forbidden if other collections share it with
    those that the key is bound to.
    """
    row = get_model(session, model, lock="exclusive")
    if model in BUILT_IN_MODELS:
        raise Conflict(f"{model} is built in: new collections start with it, and it cannot be archived")
    is_named = or_(*(getattr(Deployment, pointer) == model for pointer in POINTERS))
    named = session.scalars(select(Deployment).where(is_named).execution_options(**ALL_ROWS)).all()
    holding = select(Collection.id).where(Collection.external_model == model).execution_options(**ALL_ROWS)
    if session.scalar(holding.limit(1)) is not None:
        raise Conflict(f"{model} holds the vectors that were imported into collections, and cannot be archived")
    note_audited(session, _list_users(row, named))
    if caller.collections:
        _check_not_shared(row, named, caller)
    if named:
        where = ", ".join(sorted({f"{d.collection_id}/{d.task}" for d in named}))
        raise Conflict(f"model {model} is named by the deployment of {where}; publish another there first")
    row.archived_at = row.archived_at or now()
    return ModelInFull.of(row, [])


def _check_not_shared(row: ModelRecord, named: Sequence[Deployment], caller: Caller) -> None:
    """Raises Forbidden if the model is of the installation, or other collections have trained or deployed it."""
    learned_from = row.manifest["facts"].get("changes", ())
    if not learned_from or _list_users(row, named) - set(caller.collections):
        raise Forbidden(
            f"model {row.id} is not only of this key's collections; a key that is bound to none archives it"
        )


def _list_users(row: ModelRecord, named: Sequence[Deployment]) -> set[str]:
    """List the collections that have trained or deployed the model."""
    return {*row.manifest["facts"].get("changes", ()), *(deployment.collection_id for deployment in named)}


def refit_model(session: Session, key: InstallationKey, model: str, body: RefitIn, response: Response) -> RefitStarted:
    """Start a training that repeats the model's own without some people. Raises like `make_refit`."""
    training = make_refit(session, key, model, body.collection, body.without)
    plan = Plan.model_validate(training.request)
    note_audited(session, plan.collections, f"training:{training.id}")
    job = enqueue(session, Train(training=training.id, collection=plan.collection), reads=plan.collections)
    training.job_id = job.id
    response.status_code = 202
    point_to_job(response, job)
    return RefitStarted(**JobOut.of(job).model_dump(), training=training.id)


def publish_model(
    session: Session, model: str, body: PublishAtIn, caller: Caller, response: Response
) -> PublishedOut | JobOut:
    """Publish a model: 202 with the job, or 200 if it serves already. Raises like `requests.request_publication`."""
    get_model(session, model)
    note_audited(session, [body.collection])
    request = PublishRequest(model, tuple(body.tasks), body.override, body.reason, by=caller.signature)
    job = requests.request_publication(session, body.collection, request)
    if job is None:
        is_served = (Deployment.collection_id == body.collection, Deployment.champion == model)
        tasks = session.scalars(select(Deployment.task).where(*is_served).order_by(Deployment.task)).all()
        return PublishedOut(model=model, collection=body.collection, tasks=list(tasks))
    response.status_code = 202
    point_to_job(response, job)
    return JobOut.of(job)


def _find_deployments(session: Session, models: Sequence[str]) -> dict[str, list[DeployedAt]]:
    deployed: dict[str, list[DeployedAt]] = {m: [] for m in models}
    for pointer in POINTERS:
        name = getattr(Deployment, pointer)
        rows = select(name, Deployment.collection_id, Deployment.task).where(name.in_(models))
        for model, collection, task in session.execute(rows.order_by(Deployment.collection_id, Deployment.task)):
            deployed[model].append(DeployedAt(collection=collection, task=task, pointer=pointer))
    return deployed

"""Describe and change deployments."""

import numpy as np
from fastapi import Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import POINTERS, Deployment, Embedding, Job, StoredCompensation
from app.deployments.schemas import (
    ChallengerIn,
    CompareIn,
    DamagedModelOut,
    DeploymentIn,
    DeploymentOut,
    PublishIn,
    RollbackIn,
    SourceOut,
)
from app.deps.caller import Caller
from app.deps.deployment_path import DeploymentPath, VersionedPath
from app.deps.job_response import JobOut, point_to_job
from app.errors import Conflict, Invalid
from app.publishing import pointers, requests
from app.publishing.pointers import MoveReason
from app.publishing.requests import PublishRequest
from app.queue.jobs import enqueue
from app.queue.messages import Compare, Publish
from app.serving.compensation import renewal
from app.storage.model_cache import ModelStore
from ml.compensation import NO_SOURCE, limit_sources

MAX_LISTED_SOURCES = 1_000


def list_deployments(session: Session, models: ModelStore, collection: str) -> list[DeploymentOut]:
    """List the deployments of all tasks of a collection. Raises NotFound."""
    get_collection(session, collection)
    rows = select(Deployment).where(Deployment.collection_id == collection).order_by(Deployment.task)
    return [_describe(session, models, deployment) for deployment in session.scalars(rows)]


def change_deployment(
    session: Session, models: ModelStore, path: VersionedPath, body: DeploymentIn, response: Response
) -> DeploymentOut:
    """Set the fields that the body states. A change of what settles labels is a change of the collection, so that
    searches follow it. Raises NotFound and Stale."""
    collection = pointers.lock_collection(session, path.collection)
    pointers.check_version(session, collection.id, path.task, path.version)
    if body.model_fields_set & {"label_weights", "label_quorum"}:
        collection.change += 1
        collection.have_labels_reread()
    deployment = pointers.get_deployment(session, path.collection, path.task)
    for name in body.model_fields_set:
        setattr(deployment, name, getattr(body, name))
    session.flush()
    return describe_deployment(session, models, path, response)


def describe_deployment(
    session: Session, models: ModelStore, path: DeploymentPath, response: Response
) -> DeploymentOut:
    """Describe a deployment, and set its version as the ETag. Raises NotFound."""
    deployment = pointers.get_deployment(session, path.collection, path.task)
    response.headers["ETag"] = f'"{deployment.version}"'
    return _describe(session, models, deployment)


def _describe(session: Session, models: ModelStore, deployment: Deployment) -> DeploymentOut:
    pointers_of: dict[str, list[str]] = {}
    for pointer in POINTERS:
        if (model := getattr(deployment, pointer)) is not None:
            pointers_of.setdefault(model, []).append(pointer)
    damage = {model: models.find_damage(model) for model in pointers_of}
    damaged = [
        DamagedModelOut(model=model, pointers=pointers_of[model], reason=reason)
        for model, reason in damage.items()
        if reason is not None
    ]
    return DeploymentOut.of(deployment, _describe_sources(session, deployment), damaged)


def _describe_sources(session: Session, deployment: Deployment) -> list[SourceOut]:
    """Describe the largest sources of the collection's faces; empty if no face has one."""
    counts = renewal.count_faces(session, deployment.collection_id, MAX_LISTED_SOURCES)
    stored = session.get(StoredCompensation, (deployment.collection_id, deployment.task, deployment.champion))
    decisions = stored.decisions if stored else {}
    measured = [decision["faces"] for source, decision in decisions.items() if source != NO_SOURCE]
    is_full = bool(measured) and len(measured) >= limit_sources(_get_embedding_dim(session, deployment))
    smallest_measured = min(measured) if is_full else 0
    return [
        SourceOut.of(
            source, faces, decisions.get(source, {"reason": "too many sources"} if faces <= smallest_measured else None)
        )
        for source, (faces, _) in sorted(counts.items())
    ]


def _get_embedding_dim(session: Session, deployment: Deployment) -> int:
    """Return how many numbers the champion's embeddings have, by one that is stored; 1 if none is."""
    of_champion = Embedding.model_id == deployment.champion, Embedding.task == deployment.task
    vector_bytes = session.scalar(select(func.length(Embedding.vector)).where(*of_champion).limit(1))
    return max(1, (vector_bytes or 0) // np.dtype(np.float32).itemsize)


def publish_model(
    session: Session, models: ModelStore, path: VersionedPath, body: PublishIn, caller: Caller, response: Response
) -> DeploymentOut | JobOut:
    """Publish a model: 200 if it serves at once, else 202 with a job. Raises like `requests.request_publication`."""
    request = PublishRequest(body.model, (path.task,), body.override, body.reason, caller.signature, path.version)
    return _answer_with_job(
        session, models, path, requests.request_publication(session, path.collection, request), response
    )


def set_challenger(
    session: Session, models: ModelStore, path: VersionedPath, body: ChallengerIn, caller: Caller, response: Response
) -> DeploymentOut | JobOut:
    """Set the challenger, like `publish_model`; a body without a model removes it."""
    if body.model is not None:
        request = PublishRequest(
            body.model, (path.task,), by=caller.signature, version=path.version, pointer="challenger"
        )
        return _answer_with_job(
            session, models, path, requests.request_publication(session, path.collection, request), response
        )
    collection = pointers.lock_collection(session, path.collection)
    pointers.check_version(session, collection.id, path.task, path.version)
    pointers.set_challenger(session, collection, path.task, None, MoveReason(caller.signature))
    return describe_deployment(session, models, path, response)


def roll_back(
    session: Session,
    models: ModelStore,
    path: VersionedPath,
    body: RollbackIn | None,
    caller: Caller,
    response: Response,
) -> DeploymentOut | JobOut:
    """Roll back at once, with the tasks that moved together, since enrolment keeps the previous model's embeddings.

    If some are missing nevertheless, or its corrections of sources were emptied, a job embeds and measures first. It
    ends with Stale if the champion or the previous model has changed by then: it would replace what came meanwhile.
    Raises NotFound, Conflict (also if the previous model is damaged), Stale.
    """
    collection = pointers.lock_collection(session, path.collection)
    pointers.check_version(session, collection.id, path.task, path.version)
    why = MoveReason(caller.signature, body.reason if body else "")
    here = pointers.get_deployment(session, collection.id, path.task)
    previous, together = here.previous, [moved.task for moved in pointers.list_moved_together(session, here)]
    if previous is None or pointers.can_roll_back_at_once(session, here):
        pointers.roll_back(session, collection, path.task, why)
        return describe_deployment(session, models, path, response)
    models.check(previous)
    repair = Publish(
        collection=collection.id,
        tasks=(path.task, *(task for task in together if task != path.task)),
        model=previous,
        override=True,
        reason=why.reason,
        by=why.by,
        version=path.version,
        rolled_back=here.champion,
    )
    return _answer_with_job(session, models, path, enqueue(session, repair), response)


def compare_models(session: Session, path: DeploymentPath, body: CompareIn, response: Response) -> JobOut:
    """Enqueue the comparison of two models.

    Raises NotFound, Conflict if the task is off, Invalid if a model lacks the task or both are the same.
    """
    get_collection(session, path.collection)
    if not pointers.filter_enabled_tasks(session, [path.task]):
        raise Conflict(f"the task {path.task} is off; an administrator can switch it on", code="TaskDisabled")
    first, second = (pointers.resolve_model(session, path.collection, path.task, name) for name in body.models)
    if first == second:
        raise Invalid(f"both are {first}: name two different models to compare")
    job = enqueue(session, Compare(collection=path.collection, task=path.task, models=(first, second)))
    point_to_job(response, job)
    return JobOut.of(job)


def _answer_with_job(
    session: Session, models: ModelStore, path: DeploymentPath, job: Job | None, response: Response
) -> DeploymentOut | JobOut:
    if job is None:
        return describe_deployment(session, models, path, response)
    response.status_code = 202
    point_to_job(response, job)
    return JobOut.of(job)

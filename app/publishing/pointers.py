"""The pointers of a deployment: which model serves, which did before, which stands beside. Every move is on record."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sqlalchemy import Select, exists, or_, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Deployment, Embedding, Face, ModelRecord, Task, now
from app.errors import Conflict, NotFound, Stale
from app.storage.model_cache import FIRST

BUILT_IN_TASK = "identity"
MAX_HISTORY_ENTRIES = 200
MOVED_DEPLOYMENTS = "moved deployments"


@dataclass(frozen=True)
class MoveReason:
    """Who moves a pointer, and what speaks for it. `job` marks the move, so that a job run twice moves once."""

    by: str
    reason: str = ""
    overridden: bool = False
    job: str | None = None
    verdict: Mapping[str, Any] = field(default_factory=dict)


def lock_collection(session: Session, collection_id: str) -> Collection:
    """The collection, ours alone until the transaction ends. Raises NotFound."""
    found = session.get(Collection, collection_id, with_for_update=True, populate_existing=True)
    if found is None:
        raise NotFound(f"no collection {collection_id!r}")
    return found


def get_deployment(session: Session, collection_id: str, task: str) -> Deployment:
    """Raises NotFound."""
    found = session.get(Deployment, (collection_id, task))
    if found is None:
        raise NotFound(f"collection {collection_id!r} has no deployment for the task {task!r}")
    return found


def check_version(session: Session, collection_id: str, task: str, version: int | None) -> None:
    """Raises Stale where the pointers are not at this version; 0 stands for no deployment yet, None for any."""
    deployment = session.get(Deployment, (collection_id, task), populate_existing=True)
    there = deployment.version if deployment else 0
    if version is not None and there != version:
        raise Stale(f"the deployment is at version {there}, not {version}: look at it again", version=there)


def get_usable_model(session: Session, model: str) -> ModelRecord:
    """The model's row, which stays unarchived until the transaction ends. Raises NotFound, Conflict."""
    found = session.get(ModelRecord, model, with_for_update={"read": True}, populate_existing=True)
    if found is None:
        raise NotFound(f"no model {model!r}")
    if found.archived_at is not None:
        raise Conflict(f"model {model} is archived")
    return found


def enabled_tasks(session: Session, tasks: Iterable[str]) -> tuple[str, ...]:
    """Those of these tasks that are switched on, in their order."""
    known = set(session.scalars(select(Task.name).where(Task.enabled)))
    return tuple(t for t in tasks if t in known or t == BUILT_IN_TASK)


def faces_without_embedding(collection_id: str, model: str, tasks: Sequence[str]) -> Select[Face]:
    """The faces that lack their place for a task of this model, by pk."""
    held = (
        exists().where(Embedding.face_pk == Face.pk, Embedding.model_id == model, Embedding.task == task)
        for task in tasks
    )
    return select(Face).where(Face.collection_id == collection_id, or_(*(~h for h in held))).order_by(Face.pk)


def has_all_embeddings(session: Session, collection_id: str, model: str, tasks: Sequence[str]) -> bool:
    """Whether every face of the collection has its place for these tasks of this model."""
    return session.scalar(faces_without_embedding(collection_id, model, tasks).limit(1)) is None


def move_champion(
    session: Session,
    collection: Collection,
    model: str,
    facts: Mapping[str, dict[str, Any]],
    why: MoveReason,
) -> list[Deployment]:
    """The model serves these tasks from now on; what served before is one step back. The collection is locked.

    facts: task -> what was measured of the model there. A task that it serves already keeps its pointers.
    """
    collection.change += 1
    moved = []
    for task, measured in facts.items():
        deployment = session.get(Deployment, (collection.id, task), populate_existing=True)
        if deployment is None:
            deployment = Deployment(collection_id=collection.id, task=task, champion=model, version=0)
            deployment.measurements, deployment.history = {}, []
            session.add(deployment)
        elif deployment.champion != model:
            # the built-in's places are 39 KB a face: nobody goes back to it from what was learned by itself
            by_itself = deployment.champion == FIRST and why.by == "service"
            deployment.previous, deployment.champion = None if by_itself else deployment.champion, model
        if deployment.challenger == model:
            deployment.challenger = None
        moved.append(_record_move(session, deployment, collection.change, why, {model: measured} if measured else {}))
    session.flush()
    return moved


def roll_back(session: Session, collection: Collection, task: str, why: MoveReason) -> list[Deployment]:
    """The previous model serves again, and what served is one step back; so for all tasks that moved together.

    Raises NotFound, Conflict where there is no previous model.
    """
    here = get_deployment(session, collection.id, task)
    if here.previous is None:
        raise Conflict(f"no model served {task!r} before {here.champion}: nothing to roll back to")
    together = select(Deployment).where(
        Deployment.collection_id == collection.id,
        Deployment.champion == here.champion,
        Deployment.previous == here.previous,
    )
    champion, previous = here.previous, here.champion
    collection.change += 1
    moved = []
    for deployment in session.scalars(together.order_by(Deployment.task)):
        deployment.champion, deployment.previous = champion, previous
        moved.append(_record_move(session, deployment, collection.change, why))
    session.flush()
    return moved


def set_challenger(
    session: Session, collection: Collection, task: str, model: str | None, why: MoveReason
) -> Deployment:
    """The model is searched beside the champion and compared; None: no model is. Raises NotFound."""
    deployment = get_deployment(session, collection.id, task)
    deployment.challenger = model
    collection.change += 1
    return _record_move(session, deployment, collection.change, why, pointer="challenger")


def _record_move(
    session: Session,
    deployment: Deployment,
    change: int,
    why: MoveReason,
    facts: Mapping[str, Any] = MappingProxyType({}),
    pointer: str = "champion",
) -> Deployment:
    deployment.version += 1
    session.info.setdefault(MOVED_DEPLOYMENTS, {})[deployment.collection_id, deployment.task] = deployment.version
    named = {deployment.champion, deployment.challenger, deployment.previous}
    deployment.measurements = {m: f for m, f in (deployment.measurements | dict(facts)).items() if m in named}
    entry = {
        "at": now(),
        "pointer": pointer,
        "model": getattr(deployment, pointer),
        "by": why.by,
        "reason": why.reason,
        "overridden": why.overridden,
        "verdict": dict(why.verdict),
        "change": change,
        "version": deployment.version,
        "job": why.job,
    }
    deployment.history = [*deployment.history, entry][-MAX_HISTORY_ENTRIES:]
    return deployment


def moved_deployments(session: Session) -> Mapping[tuple[str, str], int]:
    """(collection, task) -> version of every deployment that this session has moved."""
    found: dict[tuple[str, str], int] = session.info.get(MOVED_DEPLOYMENTS, {})
    return found

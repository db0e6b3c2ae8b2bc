"""Move the pointers of a deployment: champion, challenger, previous. Every move is recorded in its history."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sqlalchemy import Select, delete, or_, select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection, get_model
from app.db.tables import (
    BUILT_IN_TASK,
    POINTERS,
    Collection,
    Deployment,
    Embedding,
    Face,
    ModelRecord,
    ShadowTotals,
    StoredCompensation,
    Task,
    now,
)
from app.errors import Conflict, Invalid, NotFound, Stale
from app.galleries.damaged_faces import is_intact
from app.galleries.measurements import forget_corrections, is_measured_as_corrected
from app.storage.model_cache import LBP_MODEL

MAX_HISTORY_ENTRIES = 200
MOVED_DEPLOYMENTS = "moved deployments"


@dataclass(frozen=True)
class MoveReason:
    """Who moves a pointer, and why. job: the id of the job, if one does; a job that runs twice moves it only once"""

    by: str
    reason: str = ""
    overridden: bool = False
    job: str | None = None
    verdict: Mapping[str, Any] = field(default_factory=dict)


def lock_collection(session: Session, collection_id: str) -> Collection:
    """Return the collection, locked until the transaction ends. Raises NotFound."""
    return get_collection(session, collection_id, lock=True)


def get_deployment(session: Session, collection_id: str, task: str, *, is_locked: bool = False) -> Deployment:
    """Return the deployment. Raises NotFound.

    is_locked: whether the collection is; what the session has read of the deployment before may be outdated then
    """
    deployment = session.get(Deployment, (collection_id, task), populate_existing=is_locked)
    if deployment is None:
        raise NotFound(f"collection {collection_id!r} has no deployment for the task {task!r}")
    return deployment


def check_version(session: Session, collection_id: str, task: str, version: int | None) -> None:
    """Raises Stale if the deployment is not at this version; 0 means that it does not exist yet, None any version."""
    deployment = session.get(Deployment, (collection_id, task), populate_existing=True)
    current = deployment.version if deployment else 0
    if version is not None and current != version:
        raise Stale(f"the deployment is at version {current}, not {version}: read it again", version=current)


def resolve_model(session: Session, collection_id: str, task: str, named: str) -> str:
    """Return the id of a model that serves the task, named by its id or by a pointer. Raises NotFound, Invalid."""
    if named in POINTERS:
        pointed: str | None = getattr(get_deployment(session, collection_id, task), named)
        if pointed is None:
            raise NotFound(f"the task {task!r} of {collection_id!r} has no {named}")
        named = pointed
    model = get_model(session, named)
    if task not in model.manifest["tasks"]:
        served = ", ".join(model.manifest["tasks"])
        raise Invalid(f"model {named} serves {served}, not {task}", code="UnknownTask")
    return model.id


def get_usable_model(session: Session, model: str) -> ModelRecord:
    """Return the row of a model, locked so that it is not archived meanwhile. Raises NotFound, Conflict (archived)."""
    record = get_model(session, model, lock="shared")
    if record.archived_at is not None:
        raise Conflict(f"model {model} is archived")
    return record


def filter_enabled_tasks(session: Session, tasks: Iterable[str]) -> tuple[str, ...]:
    """Return those of these tasks that are switched on, in their order."""
    known = set(session.scalars(select(Task.name).where(Task.enabled)))
    return tuple(t for t in tasks if t in known or t == BUILT_IN_TASK)


def select_faces_without_embedding(collection_id: str, model: str, tasks: Sequence[str]) -> Select[Face]:
    """Select the faces that lack an embedding by this model for one of these tasks, in the order of their pks.

    Faces whose crops are damaged cannot be embedded, and are left out.
    """
    of_face = select(Embedding.face_pk).where(Embedding.face_pk == Face.pk, Embedding.model_id == model)
    # looked up by its whole key: in a join, PostgreSQL may read all embeddings of a new model for each face
    embedded = (of_face.where(Embedding.task == task).correlate(Face).scalar_subquery() for task in tasks)
    is_missing = or_(*(face_pk.is_(None) for face_pk in embedded))
    return select(Face).where(Face.collection_id == collection_id, is_missing, is_intact()).order_by(Face.pk)


def has_all_embeddings(session: Session, collection_id: str, model: str, tasks: Sequence[str]) -> bool:
    """Whether every face of the collection has an embedding for all of these tasks by this model."""
    return session.scalar(select_faces_without_embedding(collection_id, model, tasks).limit(1)) is None


def move_champion(
    session: Session,
    collection: Collection,
    model: str,
    measurements: Mapping[str, dict[str, Any]],
    why: MoveReason,
) -> list[Deployment]:
    """Make the model champion of these tasks, and the old champion the previous model. The collection must be locked.

    measurements: task -> what was measured of the model for it. A task that it serves already keeps its pointers.
    """
    collection.change += 1
    moved = []
    for task, measured in measurements.items():
        deployment = session.get(Deployment, (collection.id, task), populate_existing=True)
        if deployment is None:
            deployment = Deployment(collection_id=collection.id, task=task, champion=model, version=0)
            deployment.measurements, deployment.history = {}, []
            session.add(deployment)
        elif deployment.champion != model:
            # the built-in model's embeddings take 39 KB a face: drop them when the service replaces it by itself
            by_itself = deployment.champion == LBP_MODEL and why.by == "service"
            deployment.previous, deployment.champion = None if by_itself else deployment.champion, model
        if deployment.challenger == model:
            deployment.challenger = None
        moved.append(_record_move(session, deployment, collection.change, why, {model: measured} if measured else {}))
    session.flush()
    return moved


def roll_back(session: Session, collection: Collection, task: str, why: MoveReason) -> list[Deployment]:
    """Swap champion and previous, for all tasks that moved together. The collection must be locked.

    Raises NotFound, Conflict if there is no previous model.
    """
    here = get_deployment(session, collection.id, task, is_locked=True)
    if here.previous is None:
        raise Conflict(f"no model served {task!r} before {here.champion}: nothing to roll back to")
    champion, previous = here.previous, here.champion
    collection.change += 1
    moved = []
    for deployment in list_moved_together(session, here):
        deployment.champion, deployment.previous = champion, previous
        if deployment.challenger == champion:
            deployment.challenger = None
        moved.append(_record_move(session, deployment, collection.change, why))
    session.flush()
    return moved


def list_moved_together(session: Session, deployment: Deployment) -> list[Deployment]:
    """List the deployments of a collection that have the same champion and previous model, by task."""
    together = select(Deployment).where(
        Deployment.collection_id == deployment.collection_id,
        Deployment.champion == deployment.champion,
        Deployment.previous == deployment.previous,
    )
    return list(session.scalars(together.order_by(Deployment.task).execution_options(populate_existing=True)))


def can_roll_back_at_once(session: Session, deployment: Deployment) -> bool:
    """Whether nothing is left to compute of the previous model, for all tasks that moved together."""
    model, together = deployment.previous, list_moved_together(session, deployment)
    if model is None:
        return True
    is_measured = all(is_measured_as_corrected(session, moved, model) for moved in together)
    return is_measured and has_all_embeddings(session, deployment.collection_id, model, [one.task for one in together])


def set_challenger(
    session: Session,
    collection: Collection,
    task: str,
    model: str | None,
    why: MoveReason,
    measured: Mapping[str, Any] = MappingProxyType({}),
) -> Deployment:
    """Set the model that can be searched beside the champion; None means no model. The collection must be locked.

    measured: what was measured of the model here; empty: what is known of it stays
    Raises NotFound, Conflict if it is the champion.
    """
    deployment = get_deployment(session, collection.id, task, is_locked=True)
    if model == deployment.champion:
        raise Conflict(f"model {model} is the champion of {task!r}; only another model can be its challenger")
    deployment.challenger = model
    collection.change += 1
    measurements = {model: dict(measured)} if model is not None and measured else {}
    return _record_move(session, deployment, collection.change, why, measurements, pointer="challenger")


def _record_move(
    session: Session,
    deployment: Deployment,
    change: int,
    why: MoveReason,
    measurements: Mapping[str, Any] = MappingProxyType({}),
    pointer: str = "champion",
) -> Deployment:
    deployment.version += 1
    session.info.setdefault(MOVED_DEPLOYMENTS, {})[deployment.collection_id, deployment.task] = deployment.version
    named = {deployment.champion, deployment.challenger, deployment.previous}
    deployment.measurements = {m: f for m, f in (deployment.measurements | dict(measurements)).items() if m in named}
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
    _drop_shadow_totals(session, deployment)
    is_dropped = StoredCompensation.model_id.not_in([model for model in named if model is not None])
    forget_corrections(session, deployment.collection_id, StoredCompensation.task == deployment.task, is_dropped)
    return deployment


def _drop_shadow_totals(session: Session, deployment: Deployment) -> None:
    """Delete the comparisons of other models than the champion and challenger that the deployment has now."""
    is_other = or_(
        ShadowTotals.champion != deployment.champion, ShadowTotals.challenger != (deployment.challenger or "")
    )
    session.execute(
        delete(ShadowTotals).where(
            ShadowTotals.collection_id == deployment.collection_id, ShadowTotals.task == deployment.task, is_other
        )
    )


def list_moved_deployments(session: Session) -> Mapping[tuple[str, str], int]:
    """Return (collection, task) -> version of the deployments that this session has moved."""
    versions: dict[tuple[str, str], int] = session.info.get(MOVED_DEPLOYMENTS, {})
    return versions

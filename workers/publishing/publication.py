"""Move the pointers of a collection to a model: embed all faces, then move in one short transaction."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Deployment
from app.errors import Stale
from app.publishing import pointers
from app.publishing.pointers import MoveReason
from app.queue.messages import Publish
from app.serving.calibration import gallery_calibration
from ml.model import Model
from workers.context import JobContext, Later
from workers.embedding import embed_batch
from workers.publishing import reembedding
from workers.publishing.label_promises import check_labels, refuse_broken_labels

MAX_FACES_UNDER_LOCK = 64
"""New faces that may be embedded while the collection is locked."""
MAX_ROUNDS = 20
"""Rounds of embedding before all new faces are embedded under the lock, so that an endless import cannot keep a model
out."""
RETRY_SECONDS = 0.2

Move = Mapping[str, Any]
"""The entry that a move left in the history of a deployment."""
Champions = Mapping[str, str | None]
"""Task -> the model that serves it."""


def find_move(context: JobContext, message: Publish) -> Move | None:
    """Return the move that an earlier run of this job has made, or None."""
    with reading(context.resources.database) as session:
        rows = (session.get(Deployment, (message.collection, task)) for task in message.tasks)
        entries = [e for row in rows if row is not None for e in row.history if e["job"] == context.job_id]
    return entries[0] if entries else None


def read_champions(context: JobContext, message: Publish) -> Champions:
    """Return the champion of each task. Raises NotFound, Stale, Conflict where the model cannot be published."""
    with reading(context.resources.database) as session:
        _check_deployments(session, message)
        pointers.get_usable_model(session, message.model)
        return _get_champions(session, message)


def embed_and_move(context: JobContext, message: Publish, champions: Champions, verdict: dict[str, Any]) -> Move:
    """Embed every face, measure the gallery, and move the pointers.

    champions: the models that the gate has compared with; verdict: what the gate said
    Raises Later (another champion meanwhile, or faces keep arriving), Interrupted, NotFound, Stale, Conflict.
    """
    model = context.resources.models.get(message.model)
    measured: dict[str, dict[str, Any]] = {}
    for rounds_left in range(MAX_ROUNDS, -1, -1):
        reembedding.reembed_collection(context, message.collection, model, message.tasks)
        if not measured:
            reembedding.store_samples(context, model, message.tasks, message.collection)
        for task in message.tasks if not measured else ():
            context.check()
            measured[task] = gallery_calibration.measure_gallery(context.resources, message.collection, task, model)
            _check_labels(context, message, task, model, measured[task], verdict)
        max_new_faces = MAX_FACES_UNDER_LOCK if rounds_left else None
        with writing(context.resources.database) as session:
            collection = pointers.lock_collection(session, message.collection)
            _check_deployments(session, message)
            pointers.get_usable_model(session, model.id)
            if _get_champions(session, message) != champions:
                raise Later(0.0)  # the gate must judge again
            if not _embed_new_faces(context, session, message, model, max_new_faces):
                continue
            is_overridden = message.override and not verdict["passed"]
            reason = MoveReason(message.by, message.reason, is_overridden, context.job_id, verdict)
            if message.pointer == "challenger":
                task = message.tasks[0]
                moved = pointers.set_challenger(session, collection, task, model.id, reason, measured[task])
            else:
                moved = pointers.move_champion(session, collection, model.id, measured, reason)[0]
            return dict(moved.history[-1])
    raise Later(RETRY_SECONDS)


def _check_deployments(session: Session, message: Publish) -> None:
    """Raises NotFound, Stale if the deployments have changed in a way that the message does not allow."""
    pointers.check_version(session, message.collection, message.tasks[0], message.version)
    for task in message.tasks if message.rolled_back is not None else ():
        deployment = pointers.get_deployment(session, message.collection, task)
        if (deployment.champion, deployment.previous) != (message.rolled_back, message.model):
            raise Stale(
                f"pointers have moved since this roll back from {message.rolled_back} to {message.model} was accepted: "
                f"the task {task!r} now has the champion {deployment.champion} and the previous model "
                f"{deployment.previous}. Nothing was changed. Publish {message.model} if it is still to serve",
                version=deployment.version,
            )


def _check_labels(
    context: JobContext, message: Publish, task: str, model: Model, measured: Move, verdict: dict[str, Any]
) -> None:
    """Add to the verdict which labels the model breaks. Raises Conflict where the policy refuses it."""
    checked = check_labels(context, message.collection, task, model, measured)
    if message.pointer == "champion" and checked is not None:
        verdict["labels"] = {**verdict.get("labels", {}), task: checked}
        if checked["policy"] == "refuse" and checked["broken"]:
            verdict["passed"] = False
        if not message.override:
            refuse_broken_labels({task: checked})


def _get_champions(session: Session, message: Publish) -> dict[str, str | None]:
    rows = {task: session.get(Deployment, (message.collection, task)) for task in message.tasks}
    return {task: row.champion if row else None for task, row in rows.items()}


def _embed_new_faces(
    context: JobContext, session: Session, message: Publish, model: Model, max_new_faces: int | None
) -> bool:
    """Embed the faces that arrived meanwhile. Returns False where they are too many, or some have no embedding yet."""
    missing = pointers.select_faces_without_embedding(message.collection, model.id, message.tasks)
    faces = list(session.scalars(missing.limit(max_new_faces and max_new_faces + 1)))
    if max_new_faces is not None and len(faces) > max_new_faces:
        return False
    if faces:
        embeddings = embed_batch(context, model, message.tasks, faces)
        reembedding.store_embeddings(session, model.id, embeddings, [face.pk for face in faces])
    return pointers.has_all_embeddings(session, message.collection, model.id, message.tasks)

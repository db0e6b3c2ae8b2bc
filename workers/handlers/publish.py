"""A model comes to serve: judged, embedded beside the live index, measured, moved to in one short transaction."""

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Deployment, Follower, now
from app.publishing import pointers
from app.publishing.pointers import MoveReason
from app.queue.messages import Publish
from app.serving import gallery_calibration
from app.serving.reporter import ALIVE_SECONDS
from ml.model import Model
from workers.context import JobContext, Later
from workers.publishing import gate, reembedding

FEW = 64  # faces that may be embedded while the collection is locked
ROUNDS = 20  # after so many all that is left is, so that an import without an end cannot keep a model out
WAIT_SECONDS, LOOK_SECONDS, AGAIN_SECONDS = 2.0, 0.05, 0.2
GIVE_UP_SECONDS = 600.0

Moved = Mapping[str, Any]
"""The entry that the move left in the history of a deployment."""


def publish_model(message: Publish, context: JobContext) -> dict[str, Any]:
    """Goes on wherever an earlier run stopped; once the pointers have moved, it only waits until they are served.

    Raises NotFound, Conflict (archived; GateRefused or NotMeasured with their reasons), Stale.
    """
    moved = _moved(message, context) or _publish(message, context)
    context.resources.notifier.notify("changes")
    served = _wait(message, moved, context)
    result = {"model": message.model, "tasks": list(message.tasks), "version": moved["version"]}
    return result | {"verdict": moved["verdict"], "served": served}


def _moved(message: Publish, context: JobContext) -> Moved | None:
    """What this job has done already."""
    with reading(context.resources.database) as session:
        rows = (session.get(Deployment, (message.collection, task)) for task in message.tasks)
        entries = [e for row in rows if row is not None for e in row.history if e["job"] == context.job_id]
    return entries[0] if entries else None


def _publish(message: Publish, context: JobContext) -> Moved:
    with reading(context.resources.database) as session:
        pointers.check_version(session, message.collection, message.tasks[0], message.version)
        pointers.get_usable_model(session, message.model)
        champions = _champions(session, message)
    verdict = gate.judge_publication(context, message, champions)
    model_to_serve = context.resources.models.get(message.model)
    why = MoveReason(message.by, message.reason, message.override and not verdict["passed"], context.job_id, verdict)
    measured: dict[str, dict[str, Any]] = {}
    for left in range(ROUNDS, -1, -1):
        reembedding.reembed_collection(context, message.collection, model_to_serve, message.tasks)
        for task in message.tasks if not measured else ():
            context.check()
            measured[task] = gallery_calibration.measure_gallery(
                context.resources, message.collection, task, model_to_serve
            )
        moved = _move(message, context, model_to_serve, measured, champions, why, FEW if left else None)
        if moved is not None:
            return moved
    raise Later(AGAIN_SECONDS)


def _champions(session: Session, message: Publish) -> dict[str, str | None]:
    rows = {task: session.get(Deployment, (message.collection, task)) for task in message.tasks}
    return {task: row.champion if row else None for task, row in rows.items()}


def _move(
    message: Publish,
    context: JobContext,
    model_to_serve: Model,
    measured: Mapping[str, dict[str, Any]],
    champions: Mapping[str, str | None],
    why: MoveReason,
    max_new_faces: int | None,
) -> Moved | None:
    """The pointers, under the lock, with the faces that arrived meanwhile. None where those are more than a few."""
    model, tasks = model_to_serve.id, message.tasks
    with writing(context.resources.database) as session:
        collection = pointers.lock_collection(session, message.collection)
        pointers.check_version(session, collection.id, tasks[0], message.version)
        pointers.get_usable_model(session, model)
        if _champions(session, message) != champions:
            raise Later(0.0)  # rolled back meanwhile: the gate has judged against another
        arrived = list(
            session.scalars(
                pointers.select_faces_without_embedding(collection.id, model, tasks).limit(
                    max_new_faces and max_new_faces + 1
                )
            )
        )
        if max_new_faces is not None and len(arrived) > max_new_faces:
            return None
        if arrived:
            vectors = reembedding.embed_batch(context, model_to_serve, tasks, arrived)
            reembedding.store_embeddings(session, model, vectors, [f.pk for f in arrived])
        if not pointers.has_all_embeddings(session, collection.id, model, tasks):
            return None
        if message.pointer == "challenger":
            deployment = pointers.set_challenger(session, collection, tasks[0], model, why)
        else:
            deployment = pointers.move_champion(session, collection, model, measured, why)[0]
        return dict(deployment.history[-1])


def _wait(message: Publish, moved: Moved, context: JobContext) -> bool:
    """Until every live API process serves it, or pointers have moved on. Raises Later; False: it took too long."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        with reading(context.resources.database) as session:
            if all(_served(session, message, task, moved["change"]) for task in message.tasks):
                return True
        context.check()
        time.sleep(LOOK_SECONDS)
    if now() - moved["at"] > GIVE_UP_SECONDS:
        return False
    raise Later(AGAIN_SECONDS)


def _served(session: Session, message: Publish, task: str, change: int) -> bool:
    deployment = session.get(Deployment, (message.collection, task))
    if deployment is None or message.model not in (deployment.champion, deployment.challenger):
        return True
    alive = Follower.seen_at > now() - ALIVE_SECONDS
    here = (Follower.collection_id == message.collection, Follower.task == task)
    ready = select(Follower.process).where(*here, Follower.change >= change)
    if message.pointer == "champion":
        ready = ready.where(Follower.model_id == message.model)
    return not session.scalar(select(Follower.process).where(alive, Follower.process.not_in(ready)).limit(1))

"""Once in a while: what nothing names any more is removed."""

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import aliased

from app.db.session import reading, writing
from app.db.tables import Collection, Embedding, Face, Follower, Job, ModelRecord, StoredResponse, now
from app.enrolment.preparation import served
from app.queue.jobs import LIVE_STATES
from app.queue.messages import Erase, FitFirst, ImportArchive, Publish, Sweep, Train
from app.resources import Resources
from workers.context import JobContext
from workers.handlers.erase import named, unnamed, whole

HOUR, DAY = 3_600.0, 86_400.0
DEAD_SECONDS = 30.0
STEP = 500
MAKERS = (Publish.kind, FitFirst.kind, Train.kind)


def sweep_all(message: Sweep, context: JobContext) -> dict[str, Any]:
    """Everything here may be done twice, and by two workers at once."""
    resources = context.resources
    with reading(resources.database) as session:
        collections = list(session.scalars(select(Collection.id)))
    result = {"rows": _remove_old_rows(resources), "uploads": _remove_uploads(resources), "files": 0, "embeddings": 0}
    resources.blobs.empty_trash()
    for collection in sorted({*collections, *resources.blobs.collections()}):
        context.check()
        if collection not in collections:
            whole(resources, collection)
            continue
        result["files"] += _remove_orphans(context, collection)
        result["embeddings"] += _remove_embeddings(context, collection)
    return result


def _remove_old_rows(resources: Resources) -> int:
    """Dead followers, answers of yesterday, the parts of jobs that ended yesterday, and jobs that nobody asks for."""
    parent = aliased(Job)
    ended_yesterday = (Job.finished_at.is_not(None), Job.finished_at < now() - DAY)
    old = exists().where(parent.id == Job.parent_id, parent.finished_at < now() - DAY)
    done = (
        delete(Follower).where(Follower.seen_at < now() - DEAD_SECONDS),
        delete(StoredResponse).where(StoredResponse.created_at < now() - DAY),
        delete(Job).where(Job.parent_id.is_not(None), old),
        delete(Job).where(Job.kind.in_((Sweep.kind, Erase.kind)), *ended_yesterday),
    )
    count = 0
    with writing(resources.database) as session:
        for statement in done:
            result = session.execute(statement, execution_options={"synchronize_session": False})
            count += result.rowcount  # type: ignore[attr-defined]
    return count


def _remove_uploads(resources: Resources) -> int:
    """Archives older than an hour that no import works on."""
    with reading(resources.database) as session:
        live = session.scalars(select(Job.body).where(Job.kind == ImportArchive.kind, Job.state.in_(LIVE_STATES)))
        wanted = {Path(body["path"]).name for body in live}
    stale = [p for p in resources.uploads.iterdir() if p.name.removesuffix(".part") not in wanted and _old(p)]
    for path in stale:
        path.unlink(missing_ok=True)
    return len(stale)


def _remove_orphans(context: JobContext, collection: str) -> int:
    """Files older than an hour that no row names."""
    blobs, removed = context.resources.blobs, 0
    for names in _steps(blobs.names(collection)):
        context.check()
        meant = {name: blobs.parse_name(name) for name in names}
        with reading(context.resources.database) as session:
            alive = named(session, collection, {image for image, _ in meant.values()})
        orphans = [n for n, what in meant.items() if what not in alive and blobs.age(collection, n) > HOUR]
        removed += unnamed(context.resources, collection, orphans) if orphans else 0
    return removed


def _remove_embeddings(context: JobContext, collection: str) -> int:
    """Places of models that no pointer of the collection names."""
    with reading(context.resources.database) as session:
        models = {(m.id, task) for m in session.scalars(select(ModelRecord)) for task in m.manifest["tasks"]}
    removed = 0
    for model, task in sorted(models):
        while (gone := _remove_some(context, collection, model, task)) > 0:
            removed += gone
    return removed


def _remove_some(context: JobContext, collection: str, model: str, task: str) -> int:
    """Some of them; none where the model serves, or where something may be about to publish one."""
    context.check()
    with writing(context.resources.database) as session:
        session.get(Collection, collection, with_for_update=True)
        at_work = session.scalars(select(Job.body).where(Job.kind.in_(MAKERS), Job.state.in_(LIVE_STATES)))
        if any(body.get("collection") == collection for body in at_work):
            return 0
        if (model, task) in served(session, collection):
            return 0
        here = (Embedding.model_id == model, Embedding.task == task)
        pks_here = select(Face.pk).where(Face.collection_id == collection)
        pks = list(session.scalars(select(Embedding.face_pk).where(*here, Embedding.face_pk.in_(pks_here)).limit(STEP)))
        session.execute(delete(Embedding).where(*here, Embedding.face_pk.in_(pks)))
        return len(pks)


def _old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > HOUR


def _steps(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while step := list(islice(rest, STEP)):
        yield step

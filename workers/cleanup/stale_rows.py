"""Remove rows that nothing needs any more: dead followers, old answers and jobs, embeddings of unused models."""

from sqlalchemy import delete, exists, or_, select
from sqlalchemy.orm import Session, aliased

from app.db.session import reading, writing
from app.db.tables import (
    POINTERS,
    Collection,
    Deployment,
    Embedding,
    Face,
    Follower,
    Job,
    ModelRecord,
    StoredResponse,
    now,
)
from app.enrolment.preparation import list_models_to_embed
from app.galleries.learned_collections import list_learned_changes
from app.queue.jobs import LIVE_STATES
from app.queue.messages import Erase, FitFirst, Publish, Sweep, Train
from app.resources import Resources
from workers.cleanup.steps import ITEMS_PER_STEP
from workers.context import JobContext

DAY_SECONDS = 86_400.0
DEAD_FOLLOWER_SECONDS = 30.0
MODEL_MAKERS = (Publish.kind, FitFirst.kind, Train.kind)
"""Jobs that may be about to publish a model."""


def remove_old_rows(resources: Resources) -> int:
    """Remove dead followers, stored responses, batches, and jobs that nobody asks for; return the number of rows.

    All but followers are kept for a day.
    """
    parent = aliased(Job)
    ended_a_day_ago = (Job.finished_at.is_not(None), Job.finished_at < now() - DAY_SECONDS)
    old_parent = exists().where(parent.id == Job.parent_id, parent.finished_at < now() - DAY_SECONDS)
    statements = (
        delete(Follower).where(Follower.seen_at < now() - DEAD_FOLLOWER_SECONDS),
        delete(StoredResponse).where(StoredResponse.created_at < now() - DAY_SECONDS),
        delete(Job).where(Job.parent_id.is_not(None), old_parent),
        delete(Job).where(Job.kind.in_((Sweep.kind, Erase.kind)), *ended_a_day_ago),
    )
    count = 0
    with writing(resources.database) as session:
        for statement in statements:
            result = session.execute(statement, execution_options={"synchronize_session": False})
            count += result.rowcount  # type: ignore[attr-defined]
    return count


def remove_unused_embeddings(context: JobContext, collection: str) -> int:
    """Remove the embeddings of models that no pointer of the collection names, and return their number.

    Raises Interrupted.
    """
    with reading(context.resources.database) as session:
        rows = session.execute(select(ModelRecord.id, ModelRecord.manifest["tasks"]))  # manifests can be large
        models = {(model, task) for model, tasks in rows for task in tasks}
    removed = 0
    for model, task in sorted(models):
        while (count := _remove_some_embeddings(context, collection, model, task)) > 0:
            removed += count
    return removed


def _remove_some_embeddings(context: JobContext, collection: str, model: str, task: str) -> int:
    """Remove at most one step of embeddings; none where the model serves, or a job may be about to publish one."""
    context.check()
    with writing(context.resources.database) as session:
        row = session.get(Collection, collection, with_for_update=True)
        is_imported = row is not None and model == row.external_model  # its embeddings are the vectors themselves
        is_used = is_imported or (model, task) in list_models_to_embed(session, collection)
        if is_used or _is_compared(session, collection, model, task) or _is_model_coming(session, collection, model):
            return 0
        in_model = (Embedding.model_id == model, Embedding.task == task)
        faces = select(Face.pk).where(Face.collection_id == collection)
        chosen = select(Embedding.face_pk).where(*in_model, Embedding.face_pk.in_(faces)).limit(ITEMS_PER_STEP)
        pks = list(session.scalars(chosen))
        session.execute(delete(Embedding).where(*in_model, Embedding.face_pk.in_(pks)))
        return len(pks)


def _is_compared(session: Session, collection: str, model: str, task: str) -> bool:
    """Whether a model serves elsewhere that has learned from the collection: see `reembedding.store_samples`."""
    record = session.get(ModelRecord, model)
    if record is None or collection not in list_learned_changes(record.manifest["facts"]):
        return False
    is_served = or_(*(getattr(Deployment, pointer) == model for pointer in POINTERS))
    return session.scalar(select(Deployment.task).where(is_served, Deployment.task == task).limit(1)) is not None


def _is_model_coming(session: Session, collection: str, model: str) -> bool:
    live = session.scalars(select(Job.body).where(Job.kind.in_(MODEL_MAKERS), Job.state.in_(LIVE_STATES)))
    return any(body.get("collection") == collection or body.get("model") == model for body in live)

"""Decide whether anything may still write down what is being erased."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import and_, exists, or_, select
from sqlalchemy.orm import Session, aliased

from app.db.tables import (
    RESERVATION_SECONDS,
    Collection,
    Deployment,
    Erasure,
    Evaluation,
    Job,
    ModelRecord,
    StoredResponse,
    Training,
    now,
)
from app.galleries.erasures import read_jobs_until, read_until
from app.galleries.learned_collections import list_learned_changes
from app.learning.plan import Plan
from app.queue.jobs import LIVE_STATES
from app.queue.messages import (
    Compare,
    Erase,
    Evaluate,
    IngestBatch,
    Publish,
    RestoreSnapshot,
    Sweep,
    TakeSnapshot,
    Train,
)
from app.queue.moments import find_latest_moment
from app.serving.reporter import have_followers_caught_up, may_be_served
from app.storage.audit_log.spool import was_killed

SETTLING_SECONDS = 1.0
"""How long a deleted collection counts as served at least: requests may have begun to search it."""


@dataclass(frozen=True)
class Blocker:
    """What an erasure waits for.

    name: "indexes", "requests" or the id of a job; None: nothing
    unserved_at: since when no index holds the faces; None: one still does
    """

    name: str | None
    unserved_at: float | None = None


def find_blocker(session: Session, erasure: Erasure, audit: Path) -> Blocker:
    """Return what an erasure waits for. The targets state `unserved_at` if it is known from before.

    audit: the folder of the audit log, by whose locks a process is known to live
    """
    unserved_at = erasure.targets.get("unserved_at")
    if unserved_at is None:
        if not _is_unserved(session, erasure):
            return Blocker("indexes")
        unserved_at = find_latest_moment(session)
    if _is_request_running(session, unserved_at, audit):
        return Blocker("requests", unserved_at)
    snapshot = _find_running_snapshot(session, erasure.collection_id, unserved_at)
    if snapshot is not None:
        return Blocker(snapshot, unserved_at)
    return Blocker(next(_iterate_running_jobs(session, erasure), None), unserved_at)


def _is_unserved(session: Session, erasure: Erasure) -> bool:
    deletion = _find_deletion(session, erasure)
    if deletion is not None:
        return not (0 <= now() - deletion.requested_at <= SETTLING_SECONDS or may_be_served(deletion))
    return have_followers_caught_up(session, erasure.collection_id, erasure.change)


def _find_deletion(session: Session, erasure: Erasure) -> Erasure | None:
    """Return the erasure of the collection, None if it is there. A later one of its name counts its own changes.

    If it is gone without an erasure, the one that is given stands for it.
    """
    if erasure.target == "collection":
        return erasure
    is_there = Collection.id == erasure.collection_id, ~Collection.is_deleted
    created_at = session.scalar(select(Collection.created_at).where(*is_there))
    if created_at == erasure.collection_created_at:
        return None
    deletions = select(Erasure).where(
        Erasure.collection_id == erasure.collection_id,
        Erasure.collection_created_at == erasure.collection_created_at,
        Erasure.target == "collection",
    )
    return session.scalar(deletions.order_by(Erasure.requested_at.desc()).limit(1)) or erasure


def _is_request_running(session: Session, unserved_at: float, audit: Path) -> bool:
    """Whether a request that may still name the faces is unanswered, and its answer will be stored."""
    running = select(StoredResponse.process).where(
        StoredResponse.status.is_(None),
        StoredResponse.created_at <= unserved_at,
        StoredResponse.created_at > now() - RESERVATION_SECONDS,
    )
    processes = set(session.scalars(running))
    if not all(process is not None and was_killed(audit, process) for process in processes):
        return True
    if processes:  # PostgreSQL may still carry out a commit that a process has sent before it was killed
        session.scalars(running.with_for_update()).all()
    return False


def _find_running_snapshot(session: Session, collection: str, unserved_at: float) -> str | None:
    """Return the id of the job of a snapshot that may have copied the faces: it began before they were gone."""
    snapshots = select(Job).where(
        Job.kind == TakeSnapshot.kind, Job.state.in_(LIVE_STATES), Job.started_at <= unserved_at
    )
    return next((job.id for job in session.scalars(snapshots) if job.body["collection"] in (None, collection)), None)


def _iterate_running_jobs(session: Session, erasure: Erasure) -> Iterator[str]:
    """Yield the ids of jobs that may have read the faces, or a request that names them, before they were deleted.

    A part of an import counts too, if the import began before: it may end after the import, which was cancelled.
    """
    until, parent = read_jobs_until(erasure), aliased(Job)
    is_part = exists().where(parent.id == Job.parent_id, parent.started_at <= until)
    is_measuring = and_(  # its protocol files may name the people
        Job.kind == Evaluate.kind, Job.started_at.is_not(None), Job.created_at <= until
    )
    started = select(Job).where(
        Job.state.in_(LIVE_STATES),
        or_(Job.started_at <= until, is_measuring, is_part),
        Job.kind.not_in((Erase.kind, Sweep.kind, TakeSnapshot.kind)),
        or_(Job.kind != RestoreSnapshot.kind, Job.started_at <= read_until(erasure)),  # a later one waits for this
    )
    for job in session.scalars(started.order_by(Job.id)):
        if erasure.collection_id in list_collections(session, job):
            yield job.id


def list_collections(session: Session, job: Job) -> list[str]:
    """List the collections that a job reads."""
    if job.kind == Train.kind:
        training = session.get(Training, job.body["training"])
        plan = Plan.model_validate(training.request) if training else None
        return [*plan.collections, *_list_learned_collections(session, [plan.start_from])] if plan else []
    if job.kind == Evaluate.kind:
        evaluation = session.get(Evaluation, job.body["evaluation"])
        sources = job.body.get("bound_to", ())
        return list(dict.fromkeys([evaluation.request.get("collection", ""), *sources])) if evaluation else []
    if job.kind in (Publish.kind, Compare.kind):
        return [job.body["collection"], *_list_learned_collections(session, _list_compared_models(session, job))]
    if job.kind == RestoreSnapshot.kind:
        return [job.body["source"], job.body["collection"]]
    if job.kind == IngestBatch.kind:
        return list(job.body.get("bound_to", ()))
    return [job.body.get("collection", "")]


def _list_compared_models(session: Session, job: Job) -> list[str | None]:
    champions = select(Deployment.champion).where(
        Deployment.collection_id == job.body["collection"], Deployment.task.in_(job.body.get("tasks", ()))
    )
    return [*job.body.get("models", ()), job.body.get("model"), *session.scalars(champions)]


def _list_learned_collections(session: Session, models: Iterable[str | None]) -> list[str]:
    """List the collections that these models have learned from: a sample of their faces is embedded."""
    manifests = session.scalars(select(ModelRecord.manifest).where(ModelRecord.id.in_(filter(None, models))))
    return [name for manifest in manifests for name in list_learned_changes(manifest.get("facts", {}))]

"""The table of jobs as a queue: enqueue a job, claim it with a lease, renew the lease, put it back, end it."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Float,
    Select,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from app.db.tables import Collection, Job, now
from app.db.visibility import ALL_ROWS
from app.queue.messages import MESSAGES, Message, RestoreSnapshot

LIVE_STATES = ("queued", "running")
STATES = (*LIVE_STATES, "succeeded", "failed", "cancelled")
PART = aliased(Job)
IS_LIVE = Job.state.in_(LIVE_STATES) | exists().where(PART.parent_id == Job.id, PART.state.in_(LIVE_STATES))
"""Whether a job or a part of it is live: a part may end after its import was cancelled."""
MAX_TRIES = 5
NEVER = 0.0
"""When a collection was created that does not exist: a job that is bound to it never runs."""
MAX_AHEAD_SECONDS = 7200.0
"""No lease is as long, and no delay. A time further ahead was written before the clock was set back."""


def _is_past(moment: InstrumentedAttribute[Any], at: float | BindParameter[float]) -> ColumnElement[bool]:
    """Whether the time in a row has come by `at`. One that is further ahead than any can be counts as past."""
    return or_(moment <= at, moment > at + MAX_AHEAD_SECONDS)


DUE_QUERY = (
    select(Job.id)
    .where(Job.state == "queued", Job.queue == bindparam("queue"))
    .where(_is_past(Job.not_before, bindparam("now", type_=Float)))
    .limit(1)
)


def enqueue(
    session: Session, message: Message, *, parent: str | None = None, delay: float = 0.0, reads: Sequence[str] = ()
) -> Job:
    """Add a job in the caller's transaction: both are committed, or neither is. Notify the workers after it.

    It is bound to the collections that it names or reads as they are now, and ends when one of them is deleted; a part
    is bound like its parent. reads: collections that the message does not name
    """
    if parent is None:
        bound_to = _read_creation_times(session, [*message.collections, *reads])
    else:
        bound_to = session.get_one(Job, parent).body.get("bound_to", {})
    job = Job(
        kind=message.kind,
        body=message.model_copy(update={"bound_to": bound_to}).model_dump(mode="json"),
        queue=message.queue,
        collection_id=next(iter(bound_to), None),
        lock=message.lock,
        report_number=message.report_number,
        parent_id=parent,
        not_before=now() + delay if delay else 0.0,
    )
    session.add(job)
    session.flush()
    return job


def read_message(job: Job) -> Message:
    """Return the job's message."""
    return MESSAGES[job.kind].model_validate(job.body)


def _read_creation_times(session: Session, collections: Sequence[str]) -> dict[str, float]:
    """Return collection -> when it was created, NEVER for one that does not exist."""
    if not collections:
        return {}
    chosen = select(Collection.id, Collection.created_at).where(Collection.id.in_(collections), ~Collection.is_deleted)
    created_at = dict(session.execute(chosen, execution_options=ALL_ROWS).all())
    return {name: created_at.get(name, NEVER) for name in dict.fromkeys(collections)}


def is_bound(session: Session, message: Message) -> bool:
    """Whether the collections that a job works for still exist. A later collection of the same name is another one."""
    return _read_creation_times(session, list(message.bound_to)) == message.bound_to


def find_highest(session: Session, column: InstrumentedAttribute[Any], *where: ColumnElement[bool]) -> Any:
    """Return the highest value of a column among all jobs that meet the conditions; None if there is none.

    An index that begins with the columns of the conditions, the state and this column makes it one look-up for each
    state, however many jobs have ended.
    """
    highest = [select(func.max(column)).where(*where, Job.state == state) for state in STATES]
    values = [session.scalar(chosen, execution_options=ALL_ROWS) for chosen in highest]
    return max((value for value in values if value is not None), default=None)


def is_any_due(session: Session, queue: str) -> bool:
    """Whether a job of the queue may be due. It takes a tenth of the time of `claim`, and no lock."""
    return session.execute(DUE_QUERY, {"queue": queue, "now": now()}).first() is not None


def claim(
    session: Session,
    *,
    queue: str,
    worker: str,
    lease: float,
    parts_first: bool = False,
    recent: Sequence[str] = (),
) -> Job | None:
    """Claim a job of the queue that may run now, for `lease` seconds. Returns None if there is none.

    New jobs come first, then jobs that were put back, and parts of imports last, since they wait by the dozen. Of each
    kind, collections have their turns one after the other, and of one collection the job that is due first comes first.
    Two workers never claim the same job.

    parts_first: a part comes before jobs that were put back
    recent: the collections that had a turn lately, the last one last
    """
    is_new, is_part = and_(Job.parent_id.is_(None), Job.not_before == 0.0), Job.parent_id.is_not(None)
    candidate = (
        select(Job.id)
        .where(Job.state == "queued", Job.queue == queue, _is_past(Job.not_before, now()))
        .where(or_(Job.lock.is_(None), Job.id.in_(_select_first_of_locks(queue))))
        .order_by(~is_new, ~is_part if parts_first else is_part, _rank_turn(recent), Job.not_before, Job.id)
        .limit(1)
        .with_for_update(skip_locked=True, of=Job)
    )
    claimed = (
        update(Job)
        .where(Job.id == candidate.scalar_subquery(), Job.state == "queued")
        .values(state="running", worker=worker, lease_until=now() + lease, tries=Job.tries + 1)
        .returning(Job.id)
    )
    job_id = session.scalar(claimed)
    if job_id is None:
        return None
    job = session.get_one(Job, job_id, populate_existing=True)
    job.started_at = job.started_at or now()
    return job


def _select_first_of_locks(queue: str) -> Select[str]:
    """Select the first live job of each lock. Jobs of the same lock are in the same queue.

    To look for an earlier job of each candidate's lock takes time by the square of their number, since PostgreSQL may
    not use an index for it.
    """
    live = aliased(Job)
    of_queue = (live.queue == queue, live.state.in_(LIVE_STATES), live.lock.is_not(None))
    return select(func.min(live.id)).where(*of_queue).group_by(live.lock)


def _rank_turn(recent: Sequence[str]) -> ColumnElement[int]:
    """The later a collection had its turn, the later its next one. Collections that are not listed come first."""
    ranks = {collection: rank for rank, collection in enumerate(recent, 1)}
    return case(ranks, value=Job.collection_id, else_=0) if ranks else literal(0)


def renew(session: Session, job_id: str, *, worker: str, lease: float) -> bool:
    """Renew the lease. Returns False if the worker must stop: the job was given to another, cancelled or removed."""
    held = update(Job).where(Job.id == job_id, Job.worker == worker, Job.state == "running")
    renewed = session.execute(held.values(lease_until=now() + lease).returning(Job.cancel)).first()
    return renewed is not None and not renewed.cancel


def is_held(session: Session, job_id: str, *, worker: str, lock: bool = False) -> bool:
    """Whether the worker still has the job.

    lock: whether nobody else can get the job until the transaction ends, which it should do next. Before other rows,
    the job would be locked in another order than by those who delete its collection
    """
    held = select(Job.id).where(Job.id == job_id, Job.worker == worker, Job.state == "running")
    if lock:
        held = held.with_for_update(read=True)
    return session.scalar(held, execution_options=ALL_ROWS) is not None


def put_back(session: Session, job_id: str, *, worker: str, delay: float = 0.0, count: bool = False) -> None:
    """Put the job back into its queue for `delay` seconds. count: whether this run counts as a try."""
    values = {"state": "queued", "worker": None, "lease_until": None, "not_before": now() + delay}
    held = update(Job).where(Job.id == job_id, Job.worker == worker, Job.state == "running")
    session.execute(held.values(**values, tries=Job.tries if count else Job.tries - 1))


def end(
    session: Session,
    job_id: str,
    state: str,
    *,
    worker: str | None = None,
    states: Sequence[str] = LIVE_STATES,
    **values: object,
) -> bool:
    """End the job as succeeded, failed or cancelled. Returns False if it has ended already, or another worker has it.

    states: those in which it is ended; values: further columns of the row
    """
    live = update(Job).where(Job.id == job_id, Job.state.in_(states))
    if worker is not None:
        live = live.where(Job.worker == worker)
    ended = live.values(state=state, lease_until=None, finished_at=now(), **values).returning(Job.id)
    return session.scalar(ended) is not None


def free_abandoned(session: Session) -> int:
    """Queue the jobs whose worker has died; those that were tried MAX_TRIES times fail. Returns how many are queued.

    A job whose row is locked is left for the next time: its worker commits what it has done, or renews its lease.
    """
    has_ended = (Job.state == "running", Job.lease_until.is_not(None), _is_past(Job.lease_until, now()))
    unlocked = select(Job.id).where(*has_ended).with_for_update(skip_locked=True)
    abandoned = update(Job).where(Job.id.in_(unlocked), *has_ended)
    problem = {"code": "WorkerLost", "detail": f"its worker died {MAX_TRIES} times", "status": 500}
    hopeless = abandoned.where(Job.tries >= MAX_TRIES)
    session.execute(hopeless.values(state="failed", problem=problem, lease_until=None, finished_at=now()))
    freed = session.scalars(abandoned.values(state="queued", worker=None, lease_until=None).returning(Job.id))
    return len(freed.all())


def cancel_jobs_of(session: Session, collection: Collection) -> None:
    """Cancel the live jobs that work for a collection or restore it, in the transaction that deletes it."""
    live = select(Job).where(Job.state.in_(LIVE_STATES), Job.parent_id.is_(None)).order_by(Job.id)
    for job in session.scalars(live, execution_options=ALL_ROWS):
        message = read_message(job)
        is_restoring = isinstance(message, RestoreSnapshot) and message.collection == collection.id
        if is_restoring or message.bound_to.get(collection.id) == collection.created_at:
            cancel(session, job)


def cancel(session: Session, job: Job) -> None:
    """Cancel the job and its parts: a queued one ends at once, a running one at its next step."""
    parts = session.scalars(select(Job).where(Job.parent_id == job.id, Job.state.in_(LIVE_STATES)))
    for live in (job, *parts):
        live.cancel = True
        session.flush()  # locks the row on PostgreSQL: from here on no worker claims the job or puts it back
        end(session, live.id, "cancelled", states=("queued",))

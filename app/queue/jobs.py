"""How a job is written down, claimed, kept alive, given back and ended. The row is the truth."""

from sqlalchemy import exists, or_, select, update
from sqlalchemy.orm import Session, aliased

from app.db.tables import Job, now
from app.queue.messages import MESSAGES, Message

LIVE = ("queued", "running")
MAX_TRIES = 5


def enqueue(session: Session, message: Message, *, parent: str | None = None, delay: float = 0.0) -> Job:
    """The job is a row of the caller's transaction: both are kept, or neither is. Ring after it."""
    job = Job(
        kind=message.kind,
        body=message.model_dump(mode="json"),
        lane=message.lane,
        lock=message.lock,
        parent_id=parent,
        not_before=now() + delay if delay else 0.0,
    )
    session.add(job)
    session.flush()
    return job


def read(job: Job) -> Message:
    return MESSAGES[job.kind].model_validate(job.body)


def claim(session: Session, *, lane: str, worker: str, lease: float) -> Job | None:
    """The oldest job that may be done now, ours until the lease ends; two workers never get the same one."""
    earlier = aliased(Job)
    blocked = exists().where(earlier.lock == Job.lock, earlier.id < Job.id, earlier.state.in_(LIVE))
    free = (
        select(Job.id)
        .where(Job.state == "queued", Job.lane == lane, Job.not_before <= now())
        .where(or_(Job.lock.is_(None), ~blocked))
        # parts of an import after all that is no part, since those wait by the dozen; then fresh before put off
        .order_by(Job.parent_id.is_not(None), Job.not_before > 0, Job.id)
        .limit(1)
        .with_for_update(skip_locked=True, of=Job)
    )
    ours = (
        update(Job)
        .where(Job.id == free.scalar_subquery(), Job.state == "queued")
        .values(state="running", worker=worker, lease_until=now() + lease, tries=Job.tries + 1)
        .returning(Job.id)
    )
    claimed = session.scalar(ours)
    if claimed is None:
        return None
    job = session.get_one(Job, claimed, populate_existing=True)
    job.started_at = job.started_at or now()
    return job


def renew(session: Session, job_id: str, *, worker: str, lease: float) -> bool:
    """Still ours? Then for another lease. False: it was taken, cancelled or removed; stop."""
    renewed = update(Job).where(Job.id == job_id, Job.worker == worker, Job.state == "running")
    found = session.execute(renewed.values(lease_until=now() + lease).returning(Job.cancel)).first()
    return found is not None and not found.cancel


def put_back(session: Session, job_id: str, *, worker: str, delay: float = 0.0, count: bool = False) -> None:
    """For later, or for another worker. Only a failure counts as a try."""
    values = {"state": "queued", "worker": None, "lease_until": None, "not_before": now() + delay}
    ours = update(Job).where(Job.id == job_id, Job.worker == worker, Job.state == "running")
    session.execute(ours.values(**values, tries=Job.tries if count else Job.tries - 1))


def end(session: Session, job_id: str, state: str, *, worker: str | None = None, **values: object) -> bool:
    """Succeeded, failed or cancelled, once. False: it is not ours any more."""
    ours = update(Job).where(Job.id == job_id, Job.state.in_(LIVE))
    if worker is not None:
        ours = ours.where(Job.worker == worker)
    done = ours.values(state=state, lease_until=None, finished_at=now(), **values).returning(Job.id)
    return session.scalar(done) is not None


def free_abandoned(session: Session) -> int:
    """Frees what has no living worker; what has been tried too often fails and says so."""
    lost = update(Job).where(Job.state == "running", Job.lease_until.is_not(None), Job.lease_until < now())
    problem = {"code": "WorkerLost", "detail": f"its worker died {MAX_TRIES} times", "status": 500}
    spent = lost.where(Job.tries >= MAX_TRIES)
    session.execute(spent.values(state="failed", problem=problem, lease_until=None, finished_at=now()))
    freed = session.scalars(lost.values(state="queued", worker=None, lease_until=None).returning(Job.id))
    return len(freed.all())


def cancel(session: Session, job: Job) -> None:
    """A queued job ends at once, a running one at its next step; its children with it."""
    children = session.scalars(select(Job).where(Job.parent_id == job.id, Job.state.in_(LIVE)))
    for each in (job, *children):
        each.cancel = True
        if each.state == "queued":
            end(session, each.id, "cancelled")

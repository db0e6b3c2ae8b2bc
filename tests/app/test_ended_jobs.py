"""Jobs that have ended stay in the table, and do not slow down those that live."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from app.db.session import writing
from app.db.tables import Atlas, Collection, Job
from app.galleries.atlas_updates import enqueue_update
from app.queue import jobs
from app.queue.messages import DrawAtlas, ExamineGallery
from app.queue.reports import enqueue_report, find_last_report
from app.resources import Resources
from tests.statement_work import count_work

DRAW = DrawAtlas(collection="staff", task="identity", method="pca", only_update=True)
EXAMINE = ExamineGallery(collection="staff")
ENDED_JOBS = 2_000
Ask = Callable[[Session], object]


@pytest.fixture
def staff(resources: Resources) -> Resources:
    with writing(resources.database) as session:
        session.add(Collection(id="staff"))
    return resources


def end_jobs(session: Session, state: str, count: int = ENDED_JOBS) -> None:
    """Add ended jobs of two kinds in turns, as many of each."""
    bound_to = {"staff": session.get_one(Collection, "staff").created_at}
    ended: dict[str, Any] = {
        "body": {"collection": "staff", "bound_to": bound_to}, "collection_id": "staff", "queue": "training",
        "state": state, "result": {"subjects": 1}, "finished_at": 1.0,
    }  # fmt: skip
    draw = {"kind": DRAW.kind, "lock": DRAW.lock, "report_number": None, **ended}
    report = {"kind": EXAMINE.kind, "lock": None, **ended}
    numbers = range(1, count + 1)
    session.execute(insert(Job), [job for n in numbers for job in (report | {"report_number": n}, draw)])
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("ANALYZE jobs"))  # as the server does by itself, some time later


def claim(session: Session) -> None:
    jobs.claim(session, queue="training", worker="w", lease=10)


def ask_for_update(session: Session) -> None:
    enqueue_update(session, Atlas(collection_id="staff", task="identity", method="pca", seed=0))


def ask_for_report(session: Session) -> None:
    enqueue_report(session, session.get_one(Collection, "staff"), EXAMINE)


def read_report(session: Session) -> None:
    assert find_last_report(session, session.get_one(Collection, "staff"), EXAMINE.kind) == {"subjects": 1}


def measure(resources: Resources, ask: Ask, more: str | None = None) -> int:
    """Return the work of a call where ten jobs wait for one lock, beside ended jobs.

    more: the state of further jobs that have ended
    """
    with writing(resources.database) as session:
        end_jobs(session, "succeeded", 10)
        for _ in range(10):
            jobs.enqueue(session, DRAW)
        if more is not None:
            end_jobs(session, more)
        session.expire_all()
        work = count_work(session, lambda: ask(session))
        session.rollback()
    return work


@pytest.mark.parametrize("state", ["succeeded", "cancelled"])
@pytest.mark.parametrize("ask", [claim, ask_for_update, ask_for_report, read_report])
def test_ended_jobs_of_the_same_kind_take_hardly_more_steps(staff: Resources, ask: Ask, state: str) -> None:
    few = measure(staff, ask)
    many = measure(staff, ask, more=state)
    assert many < 3 * few + 100


def measure_claim(resources: Resources, count: int) -> int:
    """Return the work of a claim where so many jobs wait for one lock, and as many of it have ended."""
    with writing(resources.database) as session:
        end_jobs(session, "cancelled", count)
        session.execute(insert(Job), [{"kind": DRAW.kind, "lock": DRAW.lock, "queue": "training", "body": {}}] * count)
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text("ANALYZE jobs"))
        work = count_work(session, lambda: claim(session))
        session.rollback()
    return work


def test_a_claim_takes_time_in_proportion_to_the_waiting_jobs(staff: Resources) -> None:
    assert measure_claim(staff, ENDED_JOBS) < 10 * ENDED_JOBS

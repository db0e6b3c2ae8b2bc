"""The last report of a collection is the one that was asked for last, whatever the clock said."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Response
from sqlalchemy import update
from sqlalchemy.orm import Session

from app.collections.schemas import CollectionIn
from app.collections.service import put_collection
from app.db.session import reading, writing
from app.db.tables import Job
from app.errors import NotFound
from app.examinations import service as examinations
from app.forecasts import service as forecasts
from app.forecasts.schemas import ForecastIn
from app.galleries.deletion import delete_collection
from app.publishing import pointers
from app.queue import jobs
from app.resources import Resources
from tests.workers.test_clock_changes import DAY, HOUR, clock_ahead
from tests.workers.test_erase import work

Read = Callable[[Session, str], Any]


def start_forecast(session: Session, collection: str) -> str:
    return forecasts.start_forecast(session, collection, ForecastIn(), Response()).id


def start_examination(session: Session, collection: str) -> str:
    return examinations.start_examination(session, collection, Response()).id


REPORTS = pytest.mark.parametrize(
    ("start", "read"),
    [(start_forecast, forecasts.read_report), (start_examination, examinations.read_report)],
    ids=["forecast", "examination"],
)
EMPTY: dict[str, Any] = {
    "collection": "staff", "model": "m", "people": 0, "distractors": 0, "fpir": 0.01, "distance": None, "enough": False,
    "trained_here": False, "unmeasured_reason": None, "points": [], "check": None, "subjects": 0,
    "subjects_with_one_face": 0, "strangers_named": None, "counts": {}, "findings": [], "finished_at": 0.0,
}  # fmt: skip


def report(resources: Resources, start: Callable[[Session, str], str], faces: int) -> None:
    """Have a report made that counts so many faces."""
    with writing(resources.database) as session:
        job = start(session, "staff")
        jobs.end(session, job, "succeeded", result=EMPTY | {"faces": faces})


def count_faces(resources: Resources, read: Read) -> int:
    with reading(resources.database) as session:
        return int(read(session, "staff").faces)


@pytest.fixture
def staff(resources: Resources) -> Resources:
    """A collection that was made an hour ahead."""
    with clock_ahead(HOUR), writing(resources.database) as session:
        put_collection(session, resources, "staff", CollectionIn())
    return resources


@REPORTS
def test_a_report_from_tomorrow_hides_no_later_one(
    staff: Resources, start: Callable[[Session, str], str], read: Read
) -> None:
    with clock_ahead(DAY):
        report(staff, start, faces=1)
        assert count_faces(staff, read) == 1
    for faces in (2, 3):
        report(staff, start, faces)
        assert count_faces(staff, read) == faces
    with clock_ahead(2 * DAY):
        assert count_faces(staff, read) == 3


@REPORTS
def test_a_collection_that_was_made_ahead_shows_its_report(
    staff: Resources, start: Callable[[Session, str], str], read: Read
) -> None:
    report(staff, start, faces=1)
    assert count_faces(staff, read) == 1


@REPORTS
def test_an_erased_report_is_none(staff: Resources, start: Callable[[Session, str], str], read: Read) -> None:
    with clock_ahead(2 * HOUR):
        report(staff, start, faces=1)
    with writing(staff.database) as session:
        session.execute(update(Job).values(result={"erased": True}))
    with reading(staff.database) as session, pytest.raises(NotFound):
        read(session, "staff")


@REPORTS
def test_a_collection_that_is_made_again_does_not_show_the_report_of_the_deleted_one(
    staff: Resources, start: Callable[[Session, str], str], read: Read
) -> None:
    with clock_ahead(DAY):
        report(staff, start, faces=1)
    with writing(staff.database) as session:
        delete_collection(session, pointers.lock_collection(session, "staff"))
    work(staff)
    with writing(staff.database) as session:
        put_collection(session, staff, "staff", CollectionIn())
    with reading(staff.database) as session, pytest.raises(NotFound):
        read(session, "staff")
    report(staff, start, faces=2)
    assert count_faces(staff, read) == 2

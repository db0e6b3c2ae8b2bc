"""Processes report what they serve at once, and while changes come all the time, a few times a second."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from app.db.session import reading, writing
from app.db.tables import Collection, Follower, now
from app.galleries.deletion import delete_collection
from app.publishing.pointers import lock_collection
from app.serving.reporter import MAX_REPORT_SECONDS, MIN_INTERVAL_SECONDS, Reporter, have_followers_caught_up
from tests.databases import remove_test_data
from tests.rows import GalleryWriter, make_model

MODEL = make_model("m-reported")


def serve(change: int, created_at: float = 1.0, collection: str = "staff") -> list[Any]:
    state = SimpleNamespace(change=change, vectors=3)
    champion = SimpleNamespace(key=SimpleNamespace(model_id=MODEL.id), state=state)
    served = SimpleNamespace(
        collection=collection, task="identity", collection_created_at=created_at, champion=champion
    )
    return [served]


def test_changes_that_follow_at_once_are_written_together(resources: Any) -> None:
    GalleryWriter(resources).make(MODEL)
    reporter = Reporter(resources.database, "process")

    def report(change: int | None) -> tuple[list[int], bool]:
        """Return the change in the table, and whether another one waits to be written."""
        reporter.report([] if change is None else serve(change))
        with reading(resources.database) as session:
            reported = session.scalars(select(Follower.change).where(Follower.process == "process"))
            return list(reported), 0 < (reporter.due_in or 0) <= MIN_INTERVAL_SECONDS

    assert report(1) == ([1], False)
    assert report(2) == ([1], True)
    assert report(3) == ([1], True)
    time.sleep(reporter.due_in or 0)
    assert report(4) == ([4], False)
    assert report(4) == ([4], False)
    assert report(None) == ([4], True)
    time.sleep(reporter.due_in or 0)
    assert report(None) == ([], False)


def test_a_new_collection_is_searchable_once_every_living_process_serves_it(resources: Any) -> None:
    """An import into it would otherwise have ended before anybody could find its faces."""
    GalleryWriter(resources, "guests").make(MODEL)

    def is_searchable(change: int = 1) -> bool:
        with reading(resources.database) as session:
            return have_followers_caught_up(session, "guests", change)

    first, second = (Reporter(resources.database, process) for process in ("first", "second"))
    assert not is_searchable(), "nobody serves it yet"
    first.report(serve(1, collection="guests"))
    assert is_searchable()
    assert not is_searchable(2)
    GalleryWriter(resources).make(MODEL)
    second.report(serve(1))
    assert not is_searchable(), "the second process has not reported it"
    with writing(resources.database) as session:
        session.execute(update(Collection).values(created_at=now() - MAX_REPORT_SECONDS))
    assert is_searchable(), "after so long it will not"
    assert not is_searchable(2)


def test_a_change_is_written_without_the_rows_of_other_deployments(
    resources: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with 1,500 collections would write as many rows, several times a second, while one of them changes."""
    for collection in ("staff", "guests"):
        GalleryWriter(resources, collection).make(MODEL)
    reporter = Reporter(resources.database, "process")

    def report(change: int) -> dict[str, float]:
        """Return the collections, and when this process was seen to serve each."""
        reporter.report(serve(change) + serve(1, collection="guests"))
        with reading(resources.database) as session:
            rows = session.scalars(select(Follower).where(Follower.process == "process"))
            return {row.collection_id: row.seen_at for row in rows}

    first = report(1)
    time.sleep(MIN_INTERVAL_SECONDS)
    second = report(2)
    assert second["staff"] > first["staff"]
    assert second["guests"] == first["guests"]
    monkeypatch.setattr("app.serving.reporter.HEARTBEAT_SECONDS", 0.0)
    third = report(2)
    assert min(third.values()) > second["staff"]


def test_rows_that_a_sweep_has_deleted_are_written_again(resources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.serving.reporter.HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr("app.serving.reporter.MIN_INTERVAL_SECONDS", 0.0)
    GalleryWriter(resources).make(MODEL)
    reporter = Reporter(resources.database, "process")
    reporter.report(serve(1))
    with writing(resources.database) as session:
        session.execute(delete(Follower))
    for _ in range(2):  # the first notices it
        reporter.report(serve(1))
    with reading(resources.database) as session:
        assert list(session.scalars(select(Follower.change))) == [1]


def test_nothing_waits_where_nothing_is_served_any_more(resources: Any) -> None:
    """A collection may be deleted before it was reported; the follower would look for it all the time."""
    GalleryWriter(resources).make(MODEL)
    reporter = Reporter(resources.database, "process")
    reporter.report(serve(1))
    reporter.report([])
    time.sleep(reporter.due_in or 0)
    reporter.report([])
    reporter.report(serve(2))
    assert reporter.due_in is not None
    reporter.report([])
    assert reporter.due_in is None


def test_a_collection_that_was_made_again_with_the_same_faces_is_reported(resources: Any) -> None:
    """Otherwise a publication or an erasure would not wait for this process until its next heartbeat."""
    reporter = Reporter(resources.database, "process")
    for created_at in (1.0, 2.0):
        GalleryWriter(resources).make(MODEL)
        reporter.report(serve(4, created_at))
        with reading(resources.database) as session:
            assert list(session.scalars(select(Follower.change))) == [4]
        remove_test_data(resources)
        time.sleep(MIN_INTERVAL_SECONDS)


def test_a_report_and_the_deletion_of_its_collection_do_not_wait_for_each_other(resources: Any) -> None:
    """On PostgreSQL they did, so that one of them failed after a second."""
    GalleryWriter(resources).make(MODEL)
    reporter = Reporter(resources.database, "process")
    reporter.report(serve(1))
    time.sleep(MIN_INTERVAL_SECONDS)
    with ThreadPoolExecutor() as pool:
        with writing(resources.database) as session:
            collection = lock_collection(session, "staff")
            reported = pool.submit(reporter.report, serve(2))
            time.sleep(0.2)
            delete_collection(session, collection)
        reported.result(10)

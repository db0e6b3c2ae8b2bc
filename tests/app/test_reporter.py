"""Processes report what they serve at once, and while changes come all the time, a few times a second."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, select, update

from app.db.session import reading, writing
from app.db.tables import Collection, Erasure, Follower, now
from app.galleries.deletion import delete_collection
from app.galleries.erasures import SERVED_BY
from app.publishing.pointers import lock_collection
from app.serving.deployment_sync import DeploymentSync
from app.serving.engine import Engine
from app.serving.faces.face_table import FaceTable
from app.serving.faces.face_table_loader import FaceTables
from app.serving.reporter import MAX_REPORT_SECONDS, MIN_INTERVAL_SECONDS, Reporter, have_followers_caught_up
from tests.databases import remove_test_data
from tests.rows import GalleryWriter, make_model, people

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


@pytest.mark.parametrize("ends", [False, True])
def test_the_erasure_of_a_collection_waits_until_each_process_has_dropped_it(resources: Any, ends: bool) -> None:
    GalleryWriter(resources).make(MODEL)
    created_at = read_creation(resources)
    reporters = [Reporter(resources.database, process) for process in ("first", "second")]
    for reporter in reporters:
        reporter.report(serve(1, created_at))
    with writing(resources.database) as session:
        erasure = delete_collection(session, lock_collection(session, "staff")).id
    GalleryWriter(resources).make(MODEL)

    def list_awaited() -> list[str]:
        with reading(resources.database) as session:
            return sorted(session.get_one(Erasure, erasure).targets[SERVED_BY])

    assert list_awaited() == ["first", "second"]
    time.sleep(MIN_INTERVAL_SECONDS)
    reporters[0].report(serve(1, created_at))
    assert list_awaited() == ["first", "second"], "it serves the deleted one"
    time.sleep(MIN_INTERVAL_SECONDS)
    reporters[0].report(serve(1, read_creation(resources)))
    assert list_awaited() == ["second"]
    if ends:
        reporters[1].sign_off()
    else:
        reporters[1].forget()
        reporters[1].report([])
    assert list_awaited() == []


def read_creation(resources: Any) -> float:
    with reading(resources.database) as session:
        return session.get_one(Collection, "staff").created_at


def test_erasures_wait_for_a_process_before_it_serves_faces_for_the_first_time(
    resources: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that started named people for seconds after their final receipt: it had read the rows before the names."""
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add({MODEL.id: people(3, 1)[0]}, ["ann", "bob", "cy"])
    with writing(resources.database) as session:
        session.execute(update(Collection).values(created_at=now() - MAX_REPORT_SECONDS))
    ann, bob, cy = gallery.pks
    erased, named, bring_to, publish = list[int](), list[set[int]](), FaceTables.bring_to, DeploymentSync._publish
    engine = Engine(resources)

    def erase(pk: int) -> None:
        if pk not in erased:
            gallery.remove([pk])
            erased.append(pk)

    def is_final() -> bool:
        with reading(resources.database) as session:
            return have_followers_caught_up(session, "staff", len(erased) + 1)

    def erase_and_read_names(*args: Any) -> FaceTable:
        erase(ann)
        assert is_final() or bob in erased
        return bring_to(*args)

    def erase_and_publish(*args: Any) -> None:
        erase(bob)
        assert not is_final()
        publish(*args)
        faces = engine.registry.all()[0].faces
        named.append(set(faces.read(np.array([ann, bob, cy], np.int64), now())))

    monkeypatch.setattr(FaceTables, "bring_to", erase_and_read_names)
    monkeypatch.setattr(DeploymentSync, "_publish", erase_and_publish)
    step_until(engine, lambda: named)
    assert named[0] == {bob, cy}
    time.sleep(MIN_INTERVAL_SECONDS)
    engine.follower.step()
    assert is_final()


def step_until(engine: Engine, condition: Callable[[], object]) -> None:
    """Step as the follower's thread does, until the condition holds."""
    for _ in range(100):
        engine.follower.step()
        if condition():
            return
        engine.resources.notifier.wait("changes", 0.1)
    raise AssertionError("it did not come true")


def test_a_process_that_fails_to_serve_a_deployment_holds_up_no_erasure(
    resources: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add({MODEL.id: people(1, 1)[0]}, ["ann"])
    engine, failed = Engine(resources), list[int]()

    def fail(*_: Any) -> None:
        failed.append(1)
        raise ValueError("it cannot be served")

    monkeypatch.setattr(DeploymentSync, "_publish", fail)
    step_until(engine, lambda: failed)
    time.sleep(MIN_INTERVAL_SECONDS)
    engine.follower.step()
    with reading(resources.database) as session:
        assert session.scalars(select(Follower.change)).all() == []

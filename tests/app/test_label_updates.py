"""Labels that take long to read hold up no other deployment, and a search meanwhile answers as it should."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import update

from app.collections.service import delete_collection
from app.db.session import writing
from app.db.tables import Collection
from app.errors import Busy
from app.resources import Resources
from app.serving.calibration import schedule as calibration_schedule
from app.serving.engine import Engine
from app.serving.labels import updates
from app.serving.labels.reader import LabelReader
from tests.databases import delete_collections
from tests.rows import GalleryWriter, make_model, people

MODEL = make_model("m-one")
ROWS, NAMES = people(3, 2)


@pytest.fixture
def resources(lasting: Resources) -> Iterator[Resources]:
    yield lasting
    delete_collections(lasting.database)


@pytest.fixture
def engine(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose follower steps when it is told to, and which waits for nothing."""
    monkeypatch.setattr(calibration_schedule, "needs_recalibration", lambda *_: False)
    monkeypatch.setattr("app.serving.engine.MAX_CHANGE_WAIT_SECONDS", 0.0)
    return Engine(resources)


class SlowReading:
    """Labels of one collection, whose reading ends when it is told to. count: of the readings that have begun"""

    def __init__(self, collection: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end, self.count = threading.Event(), 0
        self._collection, self._read_new = collection, LabelReader.read_new
        monkeypatch.setattr(LabelReader, "read_new", lambda *args: self._read(*args))
        monkeypatch.setattr(updates, "MAX_READING_WAIT_SECONDS", 0.01, raising=False)

    def _read(self, reader: LabelReader, *args: Any) -> Any:
        if reader.collection == self._collection:
            self.count += 1
            self.may_end.wait(10)
        return self._read_new(reader, *args)


def make_gallery(resources: Resources, collection: str) -> GalleryWriter:
    made = GalleryWriter(resources, collection).make(MODEL)
    made.add({MODEL.id: ROWS}, NAMES)
    return made


def find_change(engine: Engine, collection: str) -> int:
    """Return the change up to which a collection is served, -1 if it is not."""
    served = engine.registry.get((collection, "identity"))
    return -1 if served is None else min(served.faces.change, served.constraints.change, served.champion.state.change)


def step_until(engine: Engine, condition: Callable[[], object]) -> None:
    for _ in range(100):
        engine.follower.step()
        if condition():
            return
        engine.resources.notifier.wait("changes", 0.1)
    raise AssertionError("it did not come true")


def test_labels_that_are_read_again_hold_up_no_other_collection(
    resources: Resources, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    staff, other = make_gallery(resources, "staff"), make_gallery(resources, "other")
    step_until(engine, lambda: find_change(engine, "staff") == find_change(engine, "other") == 1)
    reading = SlowReading("staff", monkeypatch)
    staff.label([(staff.pks[0], staff.pks[2])], same=False)
    with writing(resources.database) as session:
        session.execute(update(Collection).where(Collection.id == "staff").values(label_reread_change=2))
    other.remove(other.pks[:1])
    for _ in range(3):
        engine.follower.step()
    assert (find_change(engine, "other"), find_change(engine, "staff"), reading.count) == (2, 1, 1)
    with engine.use("staff") as serving:
        assert not serving.deployment.constraints
    with pytest.raises(Busy), engine.use("staff", change=2):
        pass
    reading.may_end.set()
    step_until(engine, lambda: find_change(engine, "staff") == 2)
    assert reading.count == 1
    with engine.use("staff", change=2) as serving:
        assert serving.deployment.constraints


def test_a_collection_whose_labels_are_read_for_the_first_time_holds_up_no_other(
    resources: Resources, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is served before: its faces would be found without what labels say about them."""
    reading = SlowReading("staff", monkeypatch)
    staff = make_gallery(resources, "staff")
    make_gallery(resources, "other")
    staff.label([(staff.pks[0], staff.pks[2])], same=False)
    step_until(engine, lambda: find_change(engine, "other") == 1)
    assert (find_change(engine, "staff"), reading.count) == (-1, 1)
    reading.may_end.set()
    step_until(engine, lambda: find_change(engine, "staff") == 2)
    assert engine.registry.get(("staff", "identity")).constraints  # type: ignore[union-attr]
    assert reading.count == 1


def test_labels_of_a_collection_that_is_deleted_while_they_are_read_are_not_those_of_the_next_one(
    resources: Resources, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = SlowReading("staff", monkeypatch)
    staff = make_gallery(resources, "staff")
    staff.label([(staff.pks[0], staff.pks[2])], same=False)
    engine.follower.step()
    assert reading.count == 1
    with writing(resources.database) as session:
        delete_collection(session, "staff")
    delete_collections(resources.database)
    again = make_gallery(resources, "staff")
    again.label([(again.pks[0], again.pks[1])], same=False)
    engine.follower.step()
    reading.may_end.set()
    step_until(engine, lambda: find_change(engine, "staff") == 2)
    [label] = engine.registry.get(("staff", "identity")).constraints.settled.labels  # type: ignore[union-attr]
    assert {label.face_a, label.face_b} == set(again.pks[:2])
    assert reading.count == 2


def test_the_end_of_a_reading_that_no_step_waits_for_is_announced(
    resources: Resources, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, announced = SlowReading("staff", monkeypatch), threading.Event()
    make_gallery(resources, "staff")
    engine.follower.step()
    monkeypatch.setattr(resources.notifier, "notify", lambda _: announced.set())
    assert not announced.is_set()
    reading.may_end.set()
    assert announced.wait(10)

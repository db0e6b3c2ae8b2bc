"""A process notices that the database lacks the last changes that it has seen, and gives their numbers again."""

import threading
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Collection, Embedding, Face, StoredCompensation, Subject
from app.resources import Resources
from app.serving import follower
from app.serving.compensation.schedule import RenewalSchedule
from app.serving.engine import Engine, open_engine
from app.serving.faces.lost_faces import DatabaseIdentity, identify_database
from app.serving.index_loader import IndexLoader
from app.serving.index_snapshots import MIN_SAVED_VECTORS
from ml.compensation.correction import SourceCompensation, SourceCorrection
from tests.app.test_paused_follower import wait_for
from tests.paused_follower import pause_follower
from tests.rows import GalleryWriter, make_model

MODEL = make_model("m-one")
DRAW = np.random.default_rng(0)


def draw_rows(count: int) -> dict[str, Any]:
    return {MODEL.id: DRAW.standard_normal((count, 8)).astype(np.float32)}


def read_names(engine: Engine) -> dict[int, str | None]:
    """Return face -> subject of the faces of the index whose names are in memory."""
    with engine.use("staff") as serving:
        ids = serving.deployment.champion.read_ids()
        found = serving.deployment.faces.read(ids, 0.0)
        return {pk: face.subject for pk, face in found.items()}


def read_vectors(engine: Engine) -> dict[int, bytes]:
    with engine.use("staff") as serving:
        index = serving.deployment.champion
        pks, rows = index.read_rows(index.read_ids())
        return {pk: row.tobytes() for pk, row in zip(pks.tolist(), rows, strict=True)}


def lose_changes_since(resources: Resources, change: int, last_pk: int) -> None:
    """Set the collection back to a change, as a server has it that lacks the later ones."""
    with writing(resources.database) as session:
        session.execute(delete(Face).where(Face.pk > last_pk))
        session.execute(update(Collection).values(change=change))
        if resources.database.dialect.name == "sqlite":
            session.execute(text("update sqlite_sequence set seq = :pk where name = 'faces'"), {"pk": last_pk})
        else:
            session.execute(text("select setval('faces_pk_seq', :pk)"), {"pk": last_pk})


@pytest.fixture
def engine(resources: Resources) -> Any:
    with open_engine(resources) as opened:
        yield opened


@pytest.mark.parametrize("new_faces", [0, 3, 5, 7])
def test_what_a_server_has_lost_is_not_served(
    resources: Resources, engine: Engine, monkeypatch: pytest.MonkeyPatch, new_faces: int
) -> None:
    monkeypatch.setattr(follower, "identify_database", lambda _: (1.0, 1, 1))
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add(draw_rows(20), ["ann"] * 10 + ["bob"] * 10)
    last_pk = gallery.pks[-1]
    gallery.add(draw_rows(5), ["cy"] * 5)
    wait_for(lambda: len(read_names(engine)) == 25)
    go_on = pause_follower(engine, monkeypatch)

    lose_changes_since(resources, 1, last_pk)
    with writing(resources.database) as session:
        session.execute(update(Collection).values(change=2))
        ann = session.scalars(select(Subject).where(Subject.id == "ann")).one()
        ann.consent = False
        session.execute(update(Face).where(Face.subject_pk == ann.pk).values(change=2))
        session.execute(update(Collection).values(change=2 - bool(new_faces)))
    gallery.pks = gallery.pks[:20]
    if new_faces:
        gallery.add(draw_rows(new_faces), ["dee"] * new_faces)
    expected = dict.fromkeys(gallery.pks[10:20], "bob") | dict.fromkeys(gallery.pks[20:], "dee")
    stored = read_stored(resources)
    monkeypatch.setattr(follower, "identify_database", lambda _: (2.0, 1, 1))
    go_on.set()
    wait_for(lambda: read_names(engine) == expected, 10)
    wait_for(lambda: read_vectors(engine) == stored, 10)


def read_stored(resources: Resources) -> dict[int, bytes]:
    with reading(resources.database) as session:
        return {e.face_pk: e.vector for e in session.scalars(select(Embedding).order_by(Embedding.face_pk))}


def store_shift(resources: Resources, by: float) -> None:
    """Store a compensation of version 1 that subtracts this from the embeddings of the source "gate"."""
    corrections = {"gate": SourceCorrection(np.full(8, by), None, MIN_SAVED_VECTORS, 1.0)}
    data = SourceCompensation("", np.zeros(8), False, corrections).to_bytes()
    key = {"collection_id": "staff", "task": "identity", "model_id": MODEL.id}
    with writing(resources.database) as session:
        session.merge(StoredCompensation(**key, version=1, data=data))


def enrol_and_close(resources: Resources) -> GalleryWriter:
    """Enrol faces, enough for a snapshot of the index, and end the engine that serves them."""
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add(draw_rows(MIN_SAVED_VECTORS), ["ann"] * MIN_SAVED_VECTORS)
    gallery.add(draw_rows(5), ["cy"] * 5)
    with open_engine(resources) as engine:
        wait_for(lambda: len(read_names(engine)) == len(gallery.pks), 10)
    assert list(resources.indexes.glob("*.index"))
    return gallery


def test_a_snapshot_of_faces_that_the_database_has_lost_is_not_loaded(resources: Resources) -> None:
    gallery = enrol_and_close(resources)
    lose_changes_since(resources, 1, gallery.pks[-6])
    gallery.pks = gallery.pks[:-5]
    gallery.add(draw_rows(5), ["dee"] * 5)
    with open_engine(resources) as engine:
        wait_for(lambda: read_vectors(engine) == read_stored(resources), 10)


@pytest.mark.parametrize("is_running", [True, False])
def test_another_compensation_of_the_same_version_is_noticed(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    monkeypatch.setattr(RenewalSchedule, "renew_if_due", lambda *_: None)
    monkeypatch.setattr(follower, "identify_database", lambda _: (1.0, 1, 1))
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add(draw_rows(MIN_SAVED_VECTORS), [None] * MIN_SAVED_VECTORS)
    with writing(resources.database) as session:
        session.execute(update(Face).values(source="gate"))
    rows = np.array([np.frombuffer(row, "<f4") for row in read_stored(resources).values()])

    def is_shifted(engine: Engine, by: float) -> bool:
        found = [np.frombuffer(row, np.float32) for row in read_vectors(engine).values()]
        return len(found) == len(rows) and np.allclose(found, rows - by, atol=1e-5)

    store_shift(resources, 1.0)
    with open_engine(resources) as engine:
        wait_for(lambda: is_shifted(engine, 1.0), 10)
        if is_running:
            store_shift(resources, 2.0)
            monkeypatch.setattr(follower, "identify_database", lambda _: (2.0, 1, 1))
            engine.resources.notifier.notify("changes")
            wait_for(lambda: is_shifted(engine, 2.0), 10)
    store_shift(resources, 3.0)
    with open_engine(resources) as engine:
        wait_for(lambda: is_shifted(engine, 3.0), 10)


def test_an_index_that_was_being_loaded_when_changes_were_lost_is_not_served(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "identify_database", lambda _: (1.0, 1, 1))
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add(draw_rows(20), ["ann"] * 20)
    gallery.add(draw_rows(5), ["cy"] * 5)
    read, go_on, load = threading.Event(), threading.Event(), IndexLoader.load

    def load_slowly(*args: Any, **options: Any) -> Any:
        loaded = load(*args, **options)
        read.set()
        assert go_on.wait(10)
        return loaded

    monkeypatch.setattr(IndexLoader, "load", load_slowly)
    with open_engine(resources) as engine:
        assert read.wait(10)
        lose_changes_since(resources, 1, gallery.pks[-6])
        gallery.pks = gallery.pks[:-5]
        gallery.add(draw_rows(5), ["dee"] * 5)
        monkeypatch.setattr(follower, "identify_database", lambda _: (2.0, 1, 1))
        engine.follower.step()
        go_on.set()
        wait_for(lambda: read_vectors(engine) == read_stored(resources), 10)
        assert set(read_names(engine).values()) == {"ann", "dee"}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_dump_that_is_put_back_makes_another_database_of_it(resources: Resources) -> None:
    def identify() -> DatabaseIdentity:
        with reading(resources.database) as session:
            return identify_database(session)

    before = identify()
    assert before[1] > 0
    assert identify() == before
    with resources.database.begin() as connection:
        connection.execute(text("alter table faces rename to put_aside"))
        connection.execute(text("create table faces (like put_aside including all)"))
        with Session(connection) as session:
            assert identify_database(session) not in (before, (*before[:1], 0, before[2]))
        connection.rollback()
    assert identify() == before

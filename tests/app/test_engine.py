"""The search engine of an API process: it follows the tables, swaps without a gap, and survives what goes wrong."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from sqlalchemy import delete, event, select, text, update

from app.db.session import reading, snapshot, writing
from app.db.tables import Collection, Deployment, Embedding, Face, Follower, Job, ModelRecord, Subject, now
from app.errors import Busy, Invalid, NotFound
from app.galleries.subjects import get_or_create_subject
from app.queue import jobs
from app.queue.messages import ImportEmbeddings
from app.resources import Resources
from app.search.enrolled_faces import read_templates
from app.serving import deployment_sync, index_builder
from app.serving.batching import MAX_WAITING_REQUESTS, Slots
from app.serving.calibration import gallery_calibration
from app.serving.calibration import schedule as calibration_schedule
from app.serving.calibration.schedule import find_changed_people
from app.serving.deployments import SearchEffort
from app.serving.engine import Engine, open_engine
from app.serving.index_builder import IndexKey
from app.serving.index_loader import IndexLoader
from app.serving.index_snapshots import SnapshotStore
from app.serving.loaded_index import LoadedIndex
from app.serving.scores import Scores
from app.subjects.schemas import SubjectIn
from app.subjects.service import change_subject, delete_subject
from ml.calibration import Calibration
from ml.calibration.rate_intervals import clopper_pearson
from ml.distances import EUCLIDEAN
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.identification.stranger_searches import StrangerSearches
from ml.indexes.flat import FlatIndex
from ml.indexes.ivf import IvfIndex
from ml.model import Model
from ml.types import Ids
from tests.databases import delete_collections
from tests.rows import GalleryWriter, make_model, people

MODEL, OTHER = make_model("m-one"), make_model("m-two", dim=12, seed=1)


@pytest.fixture
def resources(lasting: Resources) -> Iterator[Resources]:
    """Resources whose tables are emptied after each test, since one engine after the other follows them."""
    yield lasting
    delete_collections(lasting.database)
    for file in lasting.indexes.iterdir():
        file.unlink()


@pytest.fixture(autouse=True)
def save_small_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have indexes of a few faces saved as those of many are."""
    monkeypatch.setattr(deployment_sync, "MIN_SAVED_VECTORS", 1)


@pytest.fixture
def gallery(resources: Resources) -> GalleryWriter:
    """Twenty people with three photos each, under one model."""
    made = GalleryWriter(resources).make(MODEL)
    rows, subjects = people(20, 3)
    made.add({MODEL.id: rows}, subjects)
    return made


@pytest.fixture
def engine(resources: Resources) -> Iterator[Engine]:
    with open_engine(resources) as opened:
        yield opened


def until(what: Callable[[], bool], seconds: float = 10) -> None:
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, "it did not come true in time"
        time.sleep(0.01)


def indexed_faces(engine: Engine, collection: str = "staff", model: str | None = None) -> set[int]:
    with engine.use(collection, model=model) as serving:
        return set(serving.loaded_index.read_ids().tolist())


def served_change(engine: Engine) -> int:
    """Return the change that searches know: it follows the rows of the index, which may be seen before it."""
    with engine.use("staff") as serving:
        return serving.change


def test_it_follows_what_is_added_and_removed(gallery: GalleryWriter, engine: Engine) -> None:
    until(lambda: indexed_faces(engine) == set(gallery.pks))
    rows, subjects = people(5, 1, seed=7)
    gallery.add({MODEL.id: rows}, subjects)
    gallery.remove(gallery.pks[:4])
    until(lambda: indexed_faces(engine) == set(gallery.pks))
    with engine.use("staff") as serving:
        matches = serving.search(rows, 1)
        assert matches.ids[:, 0].tolist() == gallery.pks[-5:]
        assert matches.distances.max() == 0


def test_a_template_from_a_session_older_than_the_index_is_not_kept(gallery: GalleryWriter, engine: Engine) -> None:
    until(lambda: indexed_faces(engine) == set(gallery.pks))
    with snapshot(gallery.resources.database) as older:
        subject = older.scalar(select(Subject.pk).where(Subject.id == "p000"))
        assert subject is not None
        gallery.add({MODEL.id: people(1, 1, seed=7)[0]}, ["p000"])
        until(lambda: served_change(engine) == 2)
        with engine.use("staff") as serving:
            by_database = replace(serving, faces=None)
            assert read_templates(older, by_database, [2 * subject], None)[2 * subject].count == 3
    with reading(gallery.resources.database) as session, engine.use("staff") as serving:
        assert read_templates(session, serving, [2 * subject], None)[2 * subject].count == 4
        assert serving.loaded_index.person_templates.keys() == {2 * subject}


def test_it_waits_only_for_changes_that_were_made(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that waits has a slot: whoever asks for a change that never comes keeps others out."""

    def refuse(*_: object) -> None:
        raise AssertionError("it waits")

    until(lambda: served_change(engine) == 1)
    with engine.use("staff") as serving:
        index = serving.loaded_index
    with monkeypatch.context() as patch:
        patch.setattr(engine.registry, "wait", refuse)
        with pytest.raises(Invalid, match="has not been made"), engine.use("staff", change=2):
            pass
    with index.update_lock:  # which keeps the process from following
        gallery.remove(gallery.pks[:1])
        with pytest.raises(Busy, match="has not reached"), engine.use("staff", change=2):
            pass
    monkeypatch.setattr("app.serving.engine.MAX_CHANGE_WAIT_SECONDS", 60.0)
    with engine.use("staff", change=2) as serving:
        assert serving.change == 2


def test_it_reports_which_change_it_serves_and_signs_off(gallery: GalleryWriter) -> None:
    with open_engine(gallery.resources) as engine:
        until(lambda: indexed_faces(engine) == set(gallery.pks))
        until(lambda: reported(gallery) == [(engine.follower.process, MODEL.id, 1, 60)])
        gallery.remove(gallery.pks[:1])
        until(lambda: reported(gallery) == [(engine.follower.process, MODEL.id, 2, 59)])
    assert reported(gallery) == []


def reported(gallery: GalleryWriter) -> list[tuple[str, str, int, int]]:
    with reading(gallery.resources.database) as session:
        rows = session.scalars(select(Follower).where(Follower.collection_id == gallery.collection)).all()
        return [(r.process, r.model_id, r.change, r.vectors) for r in rows]


def test_a_new_champion_is_swapped_in_while_somebody_searches(gallery: GalleryWriter, engine: Engine) -> None:
    rows, _ = people(20, 3, dim=12, seed=3)
    also(gallery, rows)
    failures: list[BaseException] = []
    models: list[str] = []
    stop = threading.Event()

    def search() -> None:
        while not stop.is_set():
            try:
                with engine.use("staff") as serving:
                    width = 8 if serving.model.id == MODEL.id else 12
                    assert (serving.search(np.zeros((1, width), np.float32), 5).ids >= 0).all()
                    models.append(serving.model.id)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for champion, previous in [(OTHER.id, MODEL.id), (MODEL.id, OTHER.id), (OTHER.id, MODEL.id)]:
            until(lambda: bool(models))
            models.clear()
            gallery.point(champion=champion, previous=previous)
            until(lambda champion=champion: champion in models)  # type: ignore[misc]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def also(gallery: GalleryWriter, rows: np.ndarray, model: Model = OTHER) -> None:
    """The gallery's faces have their places under the other model too."""
    with writing(gallery.resources.database) as session:
        gallery.resources.models.keep(session, model)
        session.flush()
        session.add_all(
            Embedding(model_id=model.id, task="identity", face_pk=pk, vector=row.tobytes())
            for pk, row in zip(gallery.pks, rows, strict=True)
        )


def test_what_is_being_used_outlives_its_swap(gallery: GalleryWriter, engine: Engine) -> None:
    also(gallery, people(20, 3, dim=12, seed=3)[0])
    with engine.use("staff") as serving:
        before = serving.index_generation
        gallery.point(champion=OTHER.id, previous=None)
        until(lambda: served(engine) == OTHER.id)
        assert serving.model.id == MODEL.id
        assert serving.search(np.zeros((1, 8), np.float32), 60).ids.min() > 0
    with engine.use("staff") as after:
        assert after.index_generation != before


def served(engine: Engine, model: str | None = None) -> str:
    with engine.use("staff", model=model) as serving:
        return serving.model.id


def test_rolling_back_finds_the_previous_index_warm(gallery: GalleryWriter, engine: Engine) -> None:
    also(gallery, people(20, 3, dim=12, seed=3)[0])
    gallery.point(champion=OTHER.id, previous=MODEL.id)
    until(lambda: served(engine) == OTHER.id and served(engine, "previous") == MODEL.id)
    with engine.use("staff", model="previous") as serving:
        before = serving.index
    gallery.point(champion=MODEL.id, previous=OTHER.id)
    until(lambda: served(engine) == MODEL.id, seconds=1)
    with engine.use("staff") as serving:
        assert serving.index is before


def test_rolling_back_waits_for_nothing_slow(gallery: GalleryWriter, engine: Engine) -> None:
    also(gallery, people(20, 3, dim=12, seed=3)[0])
    gallery.point(champion=OTHER.id, previous=MODEL.id)
    until(lambda: served(engine) == OTHER.id and served(engine, "previous") == MODEL.id)
    done = threading.Event()
    for i in range(3):
        engine.follower.sync.tasks.start(("slow", i), lambda: done.wait(10))
    gallery.point(champion=MODEL.id, previous=OTHER.id)
    gallery.remove(gallery.pks[:2])
    until(lambda: served(engine) == MODEL.id and indexed_faces(engine) == set(gallery.pks), seconds=1)
    done.set()


def test_a_challenger_is_loaded_when_it_is_asked_for(gallery: GalleryWriter, engine: Engine) -> None:
    also(gallery, people(20, 3, dim=12, seed=3)[0])
    gallery.point(challenger=OTHER.id)
    until(lambda: index_generation(engine) == "2.2")
    assert set(engine.registry.all()[0].indexes) == {MODEL.id}
    assert served(engine, "challenger") == served(engine, OTHER.id) == OTHER.id
    assert set(engine.registry.all()[0].indexes) == {MODEL.id, OTHER.id}


def test_what_is_not_there_is_named(gallery: GalleryWriter, engine: Engine) -> None:
    for collection, task, model in [("nobody", "identity", None), ("staff", "age", None), ("staff", "identity", "m-9")]:
        with pytest.raises(NotFound, match=r"nobody|age|m-one"), engine.use(collection, task, model):
            raise AssertionError


def test_a_deleted_collection_is_dropped_and_another_of_its_name_is_not_mistaken_for_it(
    gallery: GalleryWriter, engine: Engine
) -> None:
    until(lambda: indexed_faces(engine) == set(gallery.pks))
    with writing(gallery.resources.database) as session:
        session.delete(session.get_one(Collection, "staff"))
    until(lambda: not engine.registry.all())
    again = GalleryWriter(gallery.resources).make(MODEL)
    again.add({MODEL.id: people(2, 1)[0]}, ["a", "b"])
    until(lambda: indexed_faces(engine) == set(again.pks))


@pytest.mark.parametrize("lasting", ["postgresql"], indirect=True)  # SQLite has one writer at a time
@pytest.mark.parametrize("write", ["INSERT INTO followers", "UPDATE followers SET model_id"])
def test_a_collection_that_is_deleted_while_it_is_reported_is_dropped(
    gallery: GalleryWriter, write: str, caplog: pytest.LogCaptureFixture
) -> None:
    database, deleted = gallery.resources.database, threading.Event()

    def delete_meanwhile(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(write) and not deleted.is_set():
            deleted.set()
            delete_collections(database)

    event.listen(database, "before_cursor_execute", delete_meanwhile)
    try:
        with open_engine(gallery.resources) as engine:
            until(lambda: deleted.is_set() or bool(reported(gallery)))
            if not deleted.is_set():
                gallery.add({MODEL.id: people(1, 1, seed=7)[0]}, ["p000"])
            until(lambda: deleted.is_set() and not engine.registry.all())
    finally:
        event.remove(database, "before_cursor_execute", delete_meanwhile)
    assert "follower." not in caplog.text, "no step failed"


def test_an_empty_collection_is_served(resources: Resources, engine: Engine) -> None:
    GalleryWriter(resources).make(MODEL)
    with engine.use("staff") as serving:
        assert serving.search(np.zeros((1, 8), np.float32), 3).ids.tolist() == [[-1, -1, -1]]


@pytest.mark.parametrize("removed", [0, 3])
def test_a_restart_goes_on_from_the_snapshot_if_all_its_faces_are_enrolled(
    gallery: GalleryWriter, removed: int
) -> None:
    with open_engine(gallery.resources) as engine:
        until(lambda: indexed_faces(engine) == set(gallery.pks))
    gallery.add({MODEL.id: people(2, 1, seed=5)[0]}, ["a", "b"])
    gallery.remove(gallery.pks[:removed])
    with open_engine(gallery.resources) as engine:
        until(lambda: indexed_faces(engine) == set(gallery.pks))
        with engine.use("staff") as serving:
            assert serving.loaded_index.built_with == (59 if removed else 60), "60: from the disk, and caught up"


@pytest.mark.parametrize("harm", ["truncated", "altered", "missing", "record forged", "record gone"])
def test_a_snapshot_that_is_not_what_was_saved_is_not_served(gallery: GalleryWriter, harm: str) -> None:
    with open_engine(gallery.resources) as engine:
        until(lambda: indexed_faces(engine) == set(gallery.pks))
    [file] = gallery.resources.indexes.glob("*.index")
    [record] = gallery.resources.indexes.glob("*.json")
    spoil(file, record, harm)
    with open_engine(gallery.resources) as engine:
        until(lambda: indexed_faces(engine) == set(gallery.pks))
        with engine.use("staff") as serving:
            matches = serving.search(people(20, 3)[0], 1)
            assert matches.ids[:, 0].tolist() == gallery.pks


def spoil(file: Path, record: Path, harm: str) -> None:
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    if harm == "truncated":
        file.write_bytes(file.read_bytes()[:-50])
    elif harm == "altered":
        file.write_bytes(data)
    elif harm == "missing":
        file.unlink()
    elif harm == "record forged":
        record.write_text(json.dumps(json.loads(record.read_text()) | {"change": 10**6}))
    else:
        record.unlink()


def test_what_nobody_needs_is_tidied_from_the_folder(gallery: GalleryWriter) -> None:
    folder = gallery.resources.indexes
    for name in ("gone.json", "gone.0.index", "gone.1.index.part"):
        (folder / name).write_text("{}")
        os.utime(folder / name, (1, 1))
    (folder / "fresh.index.part").write_text("of another process")
    for _ in range(2):
        with open_engine(gallery.resources) as engine:
            until(lambda engine=engine: indexed_faces(engine) == set(gallery.pks))  # type: ignore[misc]
        gallery.add({MODEL.id: people(1, 1)[0]}, ["a"])
    left = sorted(p.name for p in folder.iterdir())
    assert [name.split(".")[-1] for name in left if name != "fresh.index.part"] == ["index", "json", "key"]
    assert "fresh.index.part" in left


def test_a_removed_face_does_not_stay_in_a_file(gallery: GalleryWriter, engine: Engine) -> None:
    until(lambda: len(list(gallery.resources.indexes.glob("*.index"))) == 1)
    gallery.remove(gallery.pks[:1])
    until(lambda: indexed_faces(engine) == set(gallery.pks))
    assert list(gallery.resources.indexes.glob("*.index")) == []


@pytest.mark.parametrize("removed", ["faces", "collection"])
def test_an_index_is_not_saved_with_what_is_deleted_meanwhile(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    """An index that is served no more, as one that was replaced, is not waited for by an erasure."""
    until(lambda: indexed_faces(engine) == set(gallery.pks))
    index, sync, saved = engine.registry.all()[0].champion, engine.follower.sync, list[Any]()
    until(lambda: index.saved_change == index.state.change)

    def remove_and_hash(*_: object) -> str:
        if removed == "faces":
            gallery.remove(gallery.pks[:1])
        else:
            delete_collections(gallery.resources.database)
        return ""

    monkeypatch.setattr(deployment_sync, "hash_contents", remove_and_hash)
    monkeypatch.setattr(sync.snapshots, "save", lambda *call: saved.append(call))
    gallery.add({MODEL.id: people(1, 1)[0]}, ["later"])
    until(lambda: index.saved_change != index.state.change)
    sync.save(index)
    assert saved == []


@pytest.mark.parametrize("part", ["*.index.*.part", "*.json.*.part"])
def test_a_snapshot_that_another_process_deletes_while_it_is_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    store, key, index = SnapshotStore(tmp_path), IndexKey("staff", "identity", MODEL.id, 1.0), FlatIndex(8)
    index.add(np.arange(5), people(5, 1)[0])

    def delete_and_sync(_handle: int) -> None:
        if list(tmp_path.glob(part)):
            store.delete(key)

    with monkeypatch.context() as patched:
        patched.setattr("ml.files.os.fsync", delete_and_sync)
        assert not store.save(key, index, 3, "")
    assert store.load(key, "cpu") is None
    assert store.save(key, index, 3, "")
    saved = store.load(key, "cpu")
    assert saved is not None
    assert (saved.change, len(saved.index)) == (3, 5)


def test_a_snapshot_in_a_folder_that_is_gone_is_a_fault(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError):
        store.save(IndexKey("staff", "identity", MODEL.id, 1.0), FlatIndex(8), 3, "")


def test_two_processes_follow_the_same_tables(gallery: GalleryWriter, engine: Engine) -> None:
    with open_engine(gallery.resources) as second:
        gallery.remove(gallery.pks[:2])
        until(lambda: indexed_faces(engine) == indexed_faces(second) == set(gallery.pks))
        until(lambda: index_generation(engine) == index_generation(second) == "1.2")
        until(lambda: len(reported(gallery)) == 2)


def index_generation(engine: Engine) -> str:
    with engine.use("staff") as serving:
        return serving.index_generation


def test_it_answers_from_what_it_holds_while_a_model_cannot_be_loaded(gallery: GalleryWriter, engine: Engine) -> None:
    broken = make_model(f"m-{uuid4().hex}", dim=12)
    also(gallery, people(20, 3, dim=12, seed=3)[0], broken)
    until(lambda: indexed_faces(engine) == set(gallery.pks))
    weights = gallery.resources.models.folder / broken.id / "embedder.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-4])
    gallery.point(champion=broken.id, previous=MODEL.id)
    time.sleep(0.3)
    assert served(engine) == MODEL.id
    weights.write_bytes(data)
    until(lambda: served(engine) == broken.id)


def test_an_index_that_has_outgrown_its_cells_is_built_anew(gallery: GalleryWriter, engine: Engine) -> None:
    until(lambda: indexed_faces(engine) == set(gallery.pks))
    rows = np.random.default_rng(0).standard_normal((10_100, 8)).astype(np.float32)
    gallery.add({MODEL.id: rows}, [None] * len(rows), role="distractor")
    until(lambda: indexed_faces(engine) == set(gallery.pks), seconds=30)
    until(lambda: isinstance(engine.registry.all()[0].champion.index, IvfIndex), seconds=30)
    with engine.use("staff") as serving:
        assert len(serving.index) == 10_160
        matches = serving.search(rows[:20], 1, SearchEffort(m=serving.index.cells))
        assert matches.ids[:, 0].tolist() == gallery.pks[60:80]
        assert not serving.loaded_index.has_outgrown_cells()


def test_cells_wait_until_an_import_of_vectors_has_ended(gallery: GalleryWriter, engine: Engine) -> None:
    with writing(gallery.resources.database) as session:
        job = jobs.enqueue(session, ImportEmbeddings(collection="staff", path="vectors"))
        job.state, job.started_at = "running", 1.0
    rows = np.random.default_rng(0).standard_normal((10_100, 8)).astype(np.float32)
    gallery.add({MODEL.id: rows}, [None] * len(rows), role="distractor")
    until(lambda: indexed_faces(engine) == set(gallery.pks), seconds=30)
    time.sleep(0.5)
    index = engine.registry.all()[0].champion
    assert (index.has_outgrown_cells(), index.cells) == (True, 1)
    with writing(gallery.resources.database) as session:
        session.get_one(Job, job.id).result = {"change": 2}
    until(lambda: engine.registry.all()[0].champion.cells > 1, seconds=30)
    assert indexed_faces(engine) == set(gallery.pks)


def test_an_index_is_rebuilt_from_its_own_rows_and_catches_up(gallery: GalleryWriter, resources: Resources) -> None:
    rows = np.random.default_rng(0).standard_normal((10_100, 8)).astype(np.float32)
    gallery.add({MODEL.id: rows}, [None] * len(rows), role="distractor")
    loader = IndexLoader(resources, SnapshotStore(resources.indexes))
    with snapshot(resources.database) as session:
        created_at = session.get_one(Collection, "staff").created_at
        loaded = loader.build(session, IndexKey("staff", "identity", MODEL.id, created_at))
    statements: list[str] = []
    loaded.index.remove(np.array(gallery.pks[:5], np.int64))  # as a follower does meanwhile

    def record(*call: Any) -> None:
        statements.append(call[2])

    event.listen(resources.database, "before_cursor_execute", record)
    rebuilt = loader.rebuild(loaded)
    event.remove(resources.database, "before_cursor_execute", record)
    assert statements == [], "it reads no table"
    assert rebuilt.cells == 128
    gallery.remove(gallery.pks[:5])
    gallery.add({MODEL.id: people(1, 1)[0]}, ["later"])
    assert loader.update(rebuilt, compare=True)
    assert rebuilt.read_ids().tolist() == gallery.pks
    np.testing.assert_array_equal(rebuilt.index.rows(np.array(gallery.pks[60:80])), rows[5:25])


def test_rows_that_are_removed_while_they_are_read_are_left_out(gallery: GalleryWriter, engine: Engine) -> None:
    until(lambda: indexed_faces(engine) == set(gallery.pks))
    with engine.use("staff") as serving:
        index = serving.loaded_index
    ids = index.read_ids()
    batches = index.iterate_rows(np.append(ids, 10**9))
    assert [batch[0].tolist() for batch in batches] == [ids.tolist()]


def test_faces_that_were_written_past_the_counter_are_noticed_when_it_is_saved(
    gallery: GalleryWriter, resources: Resources
) -> None:
    with open_engine(resources) as engine:
        until(lambda: indexed_faces(engine) == set(gallery.pks))
    with writing(resources.database) as session:
        session.execute(delete(Embedding).where(Embedding.face_pk == gallery.pks[0]))
    with open_engine(resources) as engine:
        until(lambda: indexed_faces(engine) == set(gallery.pks[1:]))


def test_a_gallery_is_measured_when_it_has_grown(resources: Resources, engine: Engine) -> None:
    gallery = GalleryWriter(resources).make(MODEL)
    rows, subjects = people(40, 3)
    gallery.add({MODEL.id: rows}, subjects)
    until(lambda: engine.registry.get(("staff", "identity")) is not None)
    until(lambda: known(engine) == 120)
    with engine.use("staff") as serving:
        near, far = serving.scores.similarity(np.array([0.3, 15.0], np.float32))
        assert near > 90 > 10 > far
        assert serving.scores.curve[-1].recall == 1
        threshold = serving.scores.threshold(0.01)
        assert threshold is not None
        assert threshold.fmr <= 0.01
        pairs, calibration = clopper_pearson(round(threshold.fmr * 7020), 7020), serving.scores.calibration  # all pairs
        assert calibration is not None
        assert calibration.impostors.n == 7020
        assert threshold.high / threshold.low > 1.2 * pairs[1] / pairs[0]  # since 40 people share them
    with reading(resources.database) as session:
        kept = session.get_one(Deployment, ("staff", "identity")).measurements[MODEL.id]
    counts = {"faces", "named_faces", "labelled_faces", "refused_faces", "joined_people", "people", "subjects"}
    measured = {"calibration", "default_fmr", "open_set", "cells", "curve"}
    moment = {"change", "last_face", "measured_at", "learned_change", "labels_hash"}
    assert kept.keys() == counts | measured | moment | {"compensation", "index", "seen_share"}
    [strangers] = kept["open_set"]["calibration"]["strangers"]
    assert (strangers["source"], strangers["people"], strangers["searches"]) == ("leave-one-out", 40, 120)
    assert (kept["people"], kept["subjects"]) == (40, 40)
    again = gallery_calibration.measure_gallery(resources, "staff", "identity", MODEL)["calibration"]
    assert json.loads(json.dumps(again)) == kept["calibration"]


def test_a_gallery_is_measured_when_its_faces_are_named_or_replaced(resources: Resources, engine: Engine) -> None:
    """Thresholds were kept while the number of faces stayed: the stated rate of strangers who are named was not so."""
    gallery = GalleryWriter(resources).make(MODEL)
    rows, subjects = people(40, 3)
    named = [name if i < 60 else None for i, name in enumerate(subjects)]
    gallery.add({MODEL.id: rows}, named)
    until(lambda: count_strangers(engine) == 20)
    with writing(resources.database) as session:
        collection = session.get_one(Collection, "staff")
        collection.change += 1
        for pk, name in zip(gallery.pks[60:], subjects[60:], strict=True):
            subject = get_or_create_subject(session, collection, name)
            session.get_one(Face, pk).subject_pk = subject.pk
            session.get_one(Face, pk).change = collection.change
    resources.notifier.notify("changes")
    until(lambda: count_strangers(engine) == 40)
    measured_at = read_measured(resources)["measured_at"]
    for step in range(3):  # each less than a tenth of the faces
        gallery.remove(gallery.pks[:6])
        gallery.add({MODEL.id: rows[:6] + 30 + step}, [f"n{step}"] * 6)
        assert known(engine) == 120
    until(lambda: read_measured(resources)["measured_at"] > measured_at)


@pytest.mark.parametrize("is_measured_again", [True, False])
def test_a_gallery_is_measured_when_a_tenth_of_its_people_have_come_or_gone_with_few_faces(
    resources: Resources, engine: Engine, is_measured_again: bool
) -> None:
    """With 95 people of one photo beside 200 of five, 19 % of strangers were named at a stated 6.6 to 12 %."""
    count = 11 if is_measured_again else 9
    gallery = GalleryWriter(resources).make(MODEL)
    rows, subjects = people(100, 4)
    gallery.add({MODEL.id: rows}, subjects)
    until(lambda: count_strangers(engine) == 100)
    gallery.add({MODEL.id: people(count, 1, seed=3)[0]}, [f"n{i}" for i in range(count)])
    if is_measured_again:
        until(lambda: count_strangers(engine) == 111)
    scores = Scores(EUCLIDEAN, calibrated_at_people_count=100, calibrated_at_subject_count=100)
    with writing(resources.database) as session:
        since = session.get_one(Collection, "staff").change
        assert find_changed_people(session, "staff", 1, replace(scores, calibrated_at_people_count=None), 99) == 0
        assert find_changed_people(session, "staff", since, scores, 11) == count / 100, "as if as many had gone"
        assert find_changed_people(session, "staff", since, scores, 10) == 0, "so few cannot make it due"
        assert find_changed_people(session, "staff", 0, scores, 0) == 11 / 100, "no more are counted"
        session.execute(update(Subject).where(Subject.id.between("p000", f"p{49 + count:03}")).values(consent=False))
        assert find_changed_people(session, "staff", since, scores, 50) == 50 / 100
    assert count_strangers(engine) == (111 if is_measured_again else 100)


@pytest.mark.parametrize("how", ["deleted", "refused", "expired"])
def test_a_gallery_is_measured_when_a_tenth_of_its_people_have_gone_or_refused(
    resources: Resources, engine: Engine, how: str
) -> None:
    """If their time runs out, nothing changes at that moment."""
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add({MODEL.id: people(60, 6)[0]}, people(60, 6)[1])
    gallery.add({MODEL.id: people(60, 1, seed=3)[0]}, [f"q{i}" for i in range(60)])
    until(lambda: count_strangers(engine) == 120)
    with writing(resources.database) as session:
        for i in range(13):  # 3 % of the faces
            if how == "deleted":
                delete_subject(session, "staff", f"q{i}")
            else:
                soon = datetime.fromtimestamp(now() + 2, UTC).isoformat()
                values = {"retain_until": soon} if how == "expired" else {"consent": False}
                change_subject(session, "staff", f"q{i}", SubjectIn.model_validate(values))
    resources.notifier.notify("changes")
    until(lambda: count_strangers(engine) == 107, 60)


def test_a_gallery_that_an_earlier_version_measured_is_measured_again(resources: Resources, engine: Engine) -> None:
    """Its thresholds had strangers named."""
    gallery = GalleryWriter(resources).make(MODEL)
    rows, subjects = people(40, 3)
    gallery.add({MODEL.id: rows}, subjects)
    until(lambda: count_strangers(engine) == 40)
    stored = read_measured(resources)
    del stored["open_set"]["calibration"]["version"]
    with writing(resources.database) as session:
        deployment = session.get_one(Deployment, ("staff", "identity"))
        deployment.measurements = {MODEL.id: stored}
        deployment.updated_at = time.time()
    resources.notifier.notify("changes")
    until(lambda: "version" in read_measured(resources)["open_set"]["calibration"])


def test_a_gallery_is_measured_when_labels_name_its_faces(resources: Resources, engine: Engine) -> None:
    """Only faces that were enrolled with a name are searched for, against all that searches find as somebody."""
    gallery = GalleryWriter(resources).make(MODEL)
    rows, subjects = people(40, 2)
    gallery.add({MODEL.id: rows}, subjects)
    gallery.add({MODEL.id: people(100, 1, seed=1)[0]}, [None] * 100)
    until(lambda: count_measured_names(resources) == (80, 0))
    gallery.label([(pk, gallery.pks[2 * i]) for i, pk in enumerate(gallery.pks[80:120])], same=True)
    until(lambda: count_measured_names(resources) == (120, 40))
    published = gallery_calibration.measure_gallery(resources, "staff", "identity", MODEL)["open_set"]
    assert json.loads(json.dumps(published)) == read_measured(resources)["open_set"]
    assert published["calibration"]["strangers"][0]["searches"] == 80


def test_a_gallery_is_measured_when_labels_join_its_people(resources: Resources, engine: Engine) -> None:
    gallery = GalleryWriter(resources).make(MODEL)
    rows, subjects = people(60, 2)
    gallery.add({MODEL.id: rows}, subjects)
    until(lambda: count_strangers(engine) == 60)
    gallery.label([(gallery.pks[4 * i], gallery.pks[4 * i + 2]) for i in range(15)], same=True)
    until(lambda: read_measured(resources)["joined_people"] == 15)


def count_measured_names(resources: Resources) -> tuple[int, int]:
    """Return how many faces had a name at the last calibration, and how many of them by labels alone."""
    measured = read_measured(resources)
    return measured.get("named_faces", 0), measured.get("labelled_faces", 0)


def count_strangers(engine: Engine) -> int:
    """Return the number of people whose searches have shown how strangers score."""
    if engine.registry.get(("staff", "identity")) is None:
        return 0
    with engine.use("staff") as serving:
        open_set = serving.scores.open_set
    return sum(strangers.people for strangers in open_set.strangers) if open_set else 0


def read_measured(resources: Resources) -> dict[str, Any]:
    with reading(resources.database) as session:
        return dict(session.get_one(Deployment, ("staff", "identity")).measurements.get(MODEL.id, {}))


def test_what_an_older_version_measured_is_to_be_measured_anew(resources: Resources) -> None:
    gallery = GalleryWriter(resources).make(MODEL)
    rows, subjects = people(40, 3)
    gallery.add({MODEL.id: rows}, subjects)
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", MODEL)
    assert Scores.of(measured, MODEL, "identity").calibrated_at_count == 120
    del measured["calibration"]["impostors"]["effective"]
    old = Scores.of(measured, MODEL, "identity")
    threshold = old.threshold(0.01)
    assert threshold is not None
    assert (old.calibrated_at_count, threshold.low, threshold.high, threshold.enough) == (0, 0, 1, False)
    assert calibration_schedule.needs_recalibration(120, old.calibrated_at_count, is_idle=False)


@pytest.mark.parametrize(
    ("learned_from", "more", "believed"),
    [
        ("staff", {"training": "t", "by_held_out": ["identity"]}, "held-out"),
        ("visitors", {"training": "t", "by_held_out": ["identity"]}, "gallery"),
        ("staff", {"training": "t", "by_held_out": []}, "nobody"),  # its calibration is of learned pairs as well
        ("staff", {"by_held_out": ["identity"]}, "held-out"),  # the first model, which is not of a training
    ],
)
def test_a_model_is_not_believed_about_people_it_has_learned_from(
    resources: Resources, learned_from: str, more: dict[str, Any], believed: str
) -> None:
    """Its probability is then that of people held out, and so are its false-match rates, unless this gallery's pairs
    are nearer."""
    draw = np.random.default_rng(0)
    strangers = Calibration.fit(draw.normal(5, 1, 200), draw.normal(9, 1, 2000))
    learned = {"changes": {learned_from: 7}} | more
    model = replace(make_model(f"m-{uuid4()}"), calibrations={"identity": strangers}, provenance=learned)
    gallery = GalleryWriter(resources).make(model)
    rows, subjects = people(40, 3)
    gallery.add({model.id: rows}, subjects)
    scores = measured(resources, model)
    own = measured(resources, replace(model, provenance={}))
    probability = strangers if believed == "held-out" else own
    assert (scores.slope, scores.intercept) == (probability.slope, probability.intercept)
    expected = {
        "held-out": own.impostors.join_strictest(strangers.impostors),
        "gallery": own.impostors,
        "nobody": own.impostors.without_evidence(),
    }[believed]
    assert expected.threshold(0.1).enough == (believed != "nobody")
    assert scores.impostors == expected != strangers.impostors


def measured(resources: Resources, model: Model) -> Calibration:
    return Calibration.from_dict(
        gallery_calibration.measure_gallery(resources, "staff", "identity", model)["calibration"]
    )


def known(engine: Engine) -> int:
    with engine.use("staff") as serving:
        return serving.scores.calibrated_at_count


def test_where_nothing_is_known_there_is_no_similarity(gallery: GalleryWriter, engine: Engine) -> None:
    with engine.use("staff") as serving:
        assert serving.scores.calibration is None
        assert serving.scores.similarity(np.array([0, 1, 1e30], np.float32)) is None
        assert serving.scores.distance(50) is serving.scores.person_threshold(0.01, 60) is None


def test_strangers_are_those_whom_the_model_has_not_learned_from(resources: Resources) -> None:
    held_out = StrangerSearches.from_distances("held-out", np.linspace(5, 9, 50), np.arange(50), 90)
    kept = {"identity": OpenSetCalibration(DecisionRule(), (held_out,)).to_dict()}
    model = replace(make_model(f"m-{uuid4()}"), provenance={"training": "t", "changes": {"staff": 7}, "open_set": kept})
    gallery = GalleryWriter(resources).make(model)
    rows, subjects = people(40, 3)
    gallery.add({model.id: rows}, subjects)
    gallery.add({model.id: rows[:30] + 9}, [None] * 30, role="distractor")
    calibration = open_set(resources, model)
    assert [s.source for s in calibration.strangers] == ["held-out", "distractors"]
    assert (calibration.strangers[0], calibration.strangers[1].people, calibration.optimistic) == (held_out, 30, True)
    own = open_set(resources, replace(model, provenance={}))
    assert [(s.source, s.people) for s in own.strangers] == [("leave-one-out", 40), ("distractors", 30)]
    assert own.optimistic is False


@pytest.mark.parametrize(("left", "held_out"), [(120, True), (45, True), (44, False), (0, False)])
def test_people_who_come_after_a_training_are_strangers_to_its_model(
    resources: Resources, left: int, held_out: bool
) -> None:
    """People held out of the training stand for a gallery of which half is there."""
    kept = StrangerSearches.from_distances("held-out", np.linspace(5, 9, 50), np.arange(50), 90)
    known_set = {"identity": OpenSetCalibration(DecisionRule(), (kept,)).to_dict()}
    learned = {"training": "t", "changes": {"staff": 1}, "open_set": known_set}
    model = replace(make_model(f"m-{uuid4()}"), provenance=learned)
    gallery = GalleryWriter(resources).make(model)
    rows, subjects = people(40, 3)
    gallery.add({model.id: rows}, subjects)
    gallery.remove(gallery.pks[left:])
    later, _ = people(30, 2, seed=1)
    gallery.add({model.id: later}, [f"n{number // 2}" for number in range(60)])
    known_faces = [("held-out", 50)] if held_out else []
    calibration = open_set(resources, model)
    assert [(s.source, s.people) for s in calibration.strangers] == [*known_faces, ("leave-one-out", 30)]
    assert calibration.optimistic is True


def test_faces_that_are_changed_after_a_training_show_no_strangers(resources: Resources) -> None:
    kept = StrangerSearches.from_distances("held-out", np.linspace(5, 9, 50), np.arange(50), 90)
    known_set = {"identity": OpenSetCalibration(DecisionRule(), (kept,)).to_dict()}
    learned = {"training": "t", "changes": {"staff": 1}, "open_set": known_set}
    model = replace(make_model(f"m-{uuid4()}"), provenance=learned)
    gallery = GalleryWriter(resources).make(model)
    rows, subjects = people(40, 3)
    gallery.add({model.id: rows}, subjects)
    with writing(resources.database) as session:
        session.get_one(ModelRecord, model.id).created_at = now()
        session.execute(update(Face).values(change=2, source="gate"))
        session.get_one(Collection, "staff").change = 2
    assert [s.source for s in open_set(resources, model).strangers] == ["held-out"]


def open_set(resources: Resources, model: Model) -> OpenSetCalibration:
    return OpenSetCalibration.from_dict(
        gallery_calibration.measure_gallery(resources, "staff", "identity", model)["open_set"]["calibration"]
    )


def test_the_database_may_go_away_and_come_back(gallery: GalleryWriter) -> None:
    with open_engine(gallery.resources) as engine:
        until(lambda: indexed_faces(engine) == set(gallery.pks))
        with gallery.resources.database.connect() as connection:
            hidden = "faces" if connection.dialect.name == "postgresql" else "collections"
            connection.execute(text(f"alter table {hidden} rename to hidden"))
            connection.commit()
        time.sleep(0.3)
        with engine.use("staff") as serving:
            assert (serving.search(np.zeros((1, 8), np.float32), 5).ids >= 0).all()
        with gallery.resources.database.connect() as connection:
            connection.execute(text(f"alter table hidden rename to {hidden}"))
            connection.commit()
        gallery.remove(gallery.pks[:1])
        until(lambda: indexed_faces(engine) == set(gallery.pks))


class Counted:
    """Work that records how many threads did it at once, and with which others."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.running = self.most = 0
        self.lock = threading.Lock()
        self.go = threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        with self.lock:
            self.batches.append(len(items))
            self.running += 1
            self.most = max(self.most, self.running)
        self.go.wait(5)
        with self.lock:
            self.running -= 1
        if 13 in items:
            raise ValueError("13")
        return [2 * i for i in items]


def test_what_waits_for_a_slot_is_done_together_and_each_gets_its_own() -> None:
    slots, work = Slots(2, patience=5), Counted()
    results: dict[int, object] = {}

    def ask(item: int) -> None:
        try:
            results[item] = slots.run_batched("kind", item, work)
        except ValueError as error:
            results[item] = str(error)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8, 20)]
    for i, thread in enumerate(threads):
        thread.start()
        until(lambda i=i: slots.waiting == max(0, i - 1))  # type: ignore[misc]
    work.go.set()
    for thread in threads:
        thread.join()
    assert results == {i: "13" if i == 13 else 2 * i for i in range(8, 20)}
    assert work.batches[:3] == [1, 1, 10]
    assert work.most <= 2


def test_impatience_and_a_long_queue_are_busy() -> None:
    slots = Slots(1, patience=0.05)
    with slots.reserve():
        with pytest.raises(Busy, match="no slot"), slots.reserve():
            raise AssertionError
        slots.patience = 5
        threads = [threading.Thread(target=slots.run_batched, args=("k", i, list)) for i in range(MAX_WAITING_REQUESTS)]
        for thread in threads:
            thread.start()
        until(lambda: slots.waiting == MAX_WAITING_REQUESTS)
        with pytest.raises(Busy, match="waiting already"), slots.reserve():
            raise AssertionError
    for thread in threads:
        thread.join()
    assert slots.waiting == 0


class WatchedIndex:
    """An index of no vectors that records the order of its calls, and whether two overlapped that must not."""

    dim = 4

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.searching, self.changing, self.overlapped = 0, False, False
        self.first_search_ends = threading.Event()
        self.counts = threading.Lock()

    def __len__(self) -> int:
        return 0

    def search(self, rows: object, k: int, **options: object) -> None:
        with self.counts:
            self.calls.append("search")
            self.searching += 1
            self.overlapped |= self.changing
        self.first_search_ends.wait(10)
        with self.counts:
            self.searching -= 1

    def add(self, ids: object, rows: object) -> None:
        self.calls.append("add")
        self.changing = True
        self.overlapped |= self.searching > 0
        time.sleep(0.0005)
        self.changing = False


def watched() -> tuple[WatchedIndex, LoadedIndex]:
    index = WatchedIndex()
    return index, LoadedIndex(IndexKey("c", "identity", MODEL.id, 0.0), MODEL, index, 0)  # type: ignore[arg-type]


BATCH: Any = (np.zeros(1, np.int64), np.zeros((1, 4), np.float32))


def test_searches_share_an_index_and_a_change_has_it_alone() -> None:
    index, loaded = watched()
    together = threading.Barrier(3, timeout=10)
    threads = [threading.Thread(target=lambda: (together.wait(), loaded.search(BATCH[1], 1))) for _ in range(2)]
    for thread in threads:
        thread.start()
    together.wait()
    until(lambda: index.searching == 2)
    index.first_search_ends.set()
    for thread in threads:
        thread.join()
    stop = threading.Event()

    def search() -> None:
        while not stop.is_set():
            loaded.search(BATCH[1], 1)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for change in range(50):
            loaded.apply(np.zeros(0, np.int64), [BATCH], change)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert index.calls.count("add") == 50
    assert not index.overlapped


def test_a_search_does_not_overtake_a_waiting_change() -> None:
    index, loaded = watched()

    def start(name: str, work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work, name=name)
        thread.start()
        return thread

    threads = [start("search", lambda: loaded.search(BATCH[1], 1))]
    until(lambda: index.searching == 1)
    threads.append(start("change", lambda: loaded.apply(np.zeros(0, np.int64), [BATCH], 1)))
    time.sleep(0.1)  # the change waits for the search
    threads.append(start("later search", lambda: loaded.search(BATCH[1], 1)))
    time.sleep(0.1)
    assert index.calls == ["search"]
    index.first_search_ends.set()
    for thread in threads:
        thread.join()
    assert index.calls == ["search", "add", "search"]


@pytest.mark.parametrize("lasting", ["sqlite"], indirect=True)
def test_a_large_gallery_is_read_once_and_a_sample_finds_its_cells(resources: Resources) -> None:
    rows: np.ndarray = np.random.default_rng(1).standard_normal((12_000, 4)).astype(np.float32)
    model = make_model("m-four", dim=4)
    gallery = GalleryWriter(resources, "large").make(model)
    gallery.add({model.id: rows}, [None] * len(rows))
    with reading(resources.database) as session:
        born = session.get_one(Collection, "large").created_at
        statements: list[str] = []
        event.listen(resources.database, "before_cursor_execute", lambda *args: statements.append(args[2]))
        index = index_builder.build_index(
            session, IndexKey("large", "identity", model.id, born), 4, EUCLIDEAN, "cpu", per_cell=20
        )
    ids: Ids = np.array(gallery.pks)
    assert len(statements) == 1
    assert index.cells == 128
    assert (index.ids() == np.sort(ids)).all()
    assert (index.rows(ids) == rows).all()
    assert not index.needs_rebuild()


def test_a_build_leaves_out_faces_that_are_removed_while_it_reads_them() -> None:
    """Their places in the sample to which its cells are fitted held whatever was in memory."""
    ids: Ids = np.arange(12_000)
    rows: np.ndarray = np.random.default_rng(1).standard_normal((len(ids), 4)).astype(np.float32)
    left = np.flatnonzero(ids % 5)
    index = index_builder.assemble_index(
        ids, [(left, rows[left])], [(left, rows[left])], 4, EUCLIDEAN, "cpu", per_cell=20
    )
    assert index.cells == 128
    assert index.ids().tolist() == left.tolist()
    assert (index.rows(left) == rows[left]).all()
    emptied = index_builder.assemble_index(ids, [], [(left[:3], rows[:3])], 4, EUCLIDEAN, "cpu", per_cell=20)
    assert emptied.ids().tolist() == left[:3].tolist()

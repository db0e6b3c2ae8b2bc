"""Erasing: files are removed after their rows, and never while a row names them."""

import os
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import delete, event, func, insert, select, text
from sqlalchemy.orm import Session

from app.collections.service import delete_collection
from app.db.session import reading, writing
from app.db.tables import (
    Collection,
    Deployment,
    Embedding,
    Erasure,
    Face,
    Follower,
    Job,
    Label,
    ModelRecord,
    Removal,
    StoredResponse,
    Subject,
    now,
)
from app.enrolment.photo_analysis import EnrolmentRequest, analyse_photo
from app.enrolment.preparation import prepare_photos
from app.enrolment.store import enrol_photos
from app.errors import Busy
from app.galleries import erasures, subjects
from app.publishing import pointers
from app.queue import jobs
from app.queue.messages import Erase, FitFirst, ImportArchive, Sweep
from app.resources import Resources
from app.storage.audit_log.drafts import EntryDraft
from app.storage.blob_store import Blobs
from app.storage.model_cache import LBP_MODEL
from ml.embedders.l2 import L2
from ml.model import Model, Recipe
from tests.gallery import collection
from tests.workers.test_import import count, picture
from workers.cleanup import stored_files
from workers.cleanup.stale_rows import remove_unused_embeddings
from workers.context import JobContext
from workers.handlers import erase, sweep
from workers.worker import Worker


@pytest.fixture
def staff(resources: Resources) -> Resources:
    """A collection of four faces of two subjects."""
    with writing(resources.database) as session:
        collection(session, "staff")
    for n in range(4):
        add(resources, n)
    return resources


def add(resources: Resources, n: int) -> None:
    looked = [analyse_photo(resources, picture(n), EnrolmentRequest(subject=f"s{n % 2}", aligned=True))]
    enrol_photos(resources, "staff", looked, prepare_photos(resources, "staff", looked))


def files(resources: Resources) -> set[str]:
    return set(resources.blobs.names("staff"))


def context(resources: Resources) -> JobContext:
    return JobContext("none", "w", resources)


def work(resources: Resources) -> None:
    worker = Worker(resources, "default")
    while worker.step():
        continue


def age(resources: Resources, name: str, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(resources.blobs.root / "c-staff" / name, (moment, moment))


def test_faces_are_erased_by_statements_that_do_not_grow_with_them(staff: Resources) -> None:
    """On SQLite, all other writers wait: for 10 s, when a subject of 300,000 faces was deleted."""
    statements = list[tuple[str, bool]]()

    def note(connection: Any, cursor: Any, statement: str, values: Any, context: Any, executemany: bool) -> None:
        statements.append((statement.partition(" (")[0], executemany))

    event.listen(staff.database, "before_cursor_execute", note)
    with writing(staff.database) as session:
        subjects.erase_faces(session, pointers.lock_collection(session, "staff"))
    event.remove(staff.database, "before_cursor_execute", note)
    assert ("INSERT INTO removals", False) in statements
    assert not any(executemany for _, executemany in statements)
    assert count(staff, Removal) == 4
    if staff.database.dialect.name == "sqlite":
        names = [statement for statement, _ in statements]
        caches = [i for i, name in enumerate(names) if name.startswith("PRAGMA cache_size")]
        deletion = next(i for i, name in enumerate(names) if name.startswith("DELETE FROM faces"))
        assert caches[0] < deletion < caches[1]


def test_the_notes_of_a_face_with_many_labels_are_read_in_part(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 230,000 of them, a process had 0.9 GB of their notes in memory."""
    monkeypatch.setattr(erasures, "MAX_FINGERPRINTED_TEXTS", 100)
    with writing(staff.database) as session:
        first, second = session.scalars(select(Face.pk).order_by(Face.pk).limit(2))
        pair = {"task": "identity", "face_a": first, "face_b": second, "same": True, "by": "ann"}
        session.execute(insert(Label), [pair | {"note": f"{n:05}" + 4_000 * "x"} for n in range(3_000)])
    with writing(staff.database) as session:
        locked = pointers.lock_collection(session, "staff")
        tracemalloc.start()
        receipt = subjects.erase_faces(session, locked, Face.pk == first)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        texts = session.get_one(Erasure, receipt.erasure).targets["texts"]
    assert (receipt.labels, len(texts)) == (3_000, 100)
    assert {len(text) for text in texts if text.endswith("x")} == {erasures.MAX_FINGERPRINTED_CHARACTERS}
    assert peak_bytes < 5_000_000


def test_so_many_texts_of_an_erasure_are_looked_through_as_are_fingerprinted(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()
    monkeypatch.setattr(erasures, "MAX_FINGERPRINTED_TEXTS", 5)
    monkeypatch.setattr(erasures, "iterate_strings", lambda value: (read.append(text) or text for text in value["of"]))
    with writing(staff.database) as session:
        for face in session.scalars(select(Face)):
            face.attributes = {"of": ["same", "same", *(f"{face.pk} {n}" for n in range(100))]}
        locked = pointers.lock_collection(session, "staff")
        receipt = subjects.erase_faces(session, locked)
        texts = session.get_one(Erasure, receipt.erasure).targets["texts"]
    assert len(texts) == 5
    assert "same" in texts
    assert len(read) <= 6


def test_erasing_a_face_removes_its_rows_and_files(staff: Resources) -> None:
    with writing(staff.database) as session:
        face = session.scalars(select(Face)).first()
        assert face is not None
        image, pk = face.image_id, face.pk
        receipt = subjects.erase_faces(session, pointers.lock_collection(session, "staff"), Face.pk == pk)
    assert (receipt.faces, receipt.labels, receipt.embeddings, len(receipt.jobs)) == (1, 0, 1, 1)
    assert (count(staff, Face), count(staff, Embedding)) == (3, 3)
    with reading(staff.database) as session:
        [removal] = session.scalars(select(Removal))
        assert (removal.face_pk, removal.change) == (pk, session.get_one(Collection, "staff").change)
    assert len(files(staff)) == 12
    work(staff)
    assert len(files(staff)) == 9
    assert not any(image in name for name in files(staff))
    again = Erase(collection="staff", images=(image,))
    assert erase.erase_files(again, context(staff)) == {"files": 0}


def test_erasing_one_face_of_a_photo_keeps_the_crops_of_the_other(staff: Resources) -> None:
    with writing(staff.database) as session:
        face = session.scalars(select(Face)).first()
        assert face is not None
        image = face.image_id
    crops = [(Blobs.crop(image, 1, kind), b"crop") for kind in ("grey", "colour")]
    staff.blobs.put("staff", crops)  # type: ignore[arg-type]
    assert erase.erase_files(Erase(collection="staff", images=(image,)), context(staff)) == {"files": 2}
    assert len(files(staff)) == 12


def test_uploading_and_erasing_a_photo_at_once_keeps_row_and_files_consistent(staff: Resources) -> None:
    image = Blobs.digest(picture(0))

    def remove(_: int) -> None:
        with writing(staff.database) as session:
            subjects.erase_faces(session, pointers.lock_collection(session, "staff"), Face.image_id == image)
        erase.erase_files(Erase(collection="staff", images=(image,)), context(staff))

    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            ended = [pool.submit(remove, 0), pool.submit(add, staff, 0), pool.submit(add, staff, 0)]
            for each in ended:
                each.result()
            with reading(staff.database) as session:
                there = session.scalar(select(Face).where(Face.image_id == image)) is not None
            assert sum(image in name for name in files(staff)) >= 3 * there


def lose_lock(staff: Resources, session: Session) -> None:
    """End a transaction as PostgreSQL ends those of a worker that is frozen."""
    process = session.scalar(text("select pg_backend_pid()"))
    with staff.database.connect() as other:
        other.execute(text("select pg_terminate_backend(:process, 5000)"), {"process": process})


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_photo_that_is_enrolled_again_while_the_lock_is_lost_keeps_its_files(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, list_named = Blobs.digest(picture(0)), stored_files._list_named
    with writing(staff.database) as session:
        subjects.erase_faces(session, pointers.lock_collection(session, "staff"), Face.image_id == image)

    def list_and_lose_lock(session: Session, *args: Any) -> Any:
        named = list_named(session, *args)
        lose_lock(staff, session)
        add(staff, 0)
        return named

    monkeypatch.setattr(stored_files, "_list_named", list_and_lose_lock)
    with pytest.raises(Busy):
        erase.erase_files(Erase(collection="staff", images=(image,)), context(staff))
    monkeypatch.setattr(stored_files, "_list_named", list_named)
    work(staff)
    assert (count(staff, Face), len(files(staff))) == (4, 12)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_collection_that_is_made_again_while_the_lock_is_lost_keeps_its_files(staff: Resources) -> None:
    with writing(staff.database) as session:
        delete_collection(session, "staff")

    made_again = list[str]()

    def lose_lock_and_make_again(session: Session, _: Any) -> None:
        if not made_again:
            made_again.append("staff")
            lose_lock(staff, session)
            with writing(staff.database) as other:
                collection(other, "staff")
            add(staff, 0)

    event.listen(Session, "after_flush_postexec", lose_lock_and_make_again)
    try:
        with pytest.raises(Busy):
            stored_files.remove_collection_files(staff, "staff")
    finally:
        event.remove(Session, "after_flush_postexec", lose_lock_and_make_again)
    work(staff)
    assert {Blobs.parse_name(name)[0] for name in files(staff)} == {Blobs.digest(picture(0))}


def test_deleting_a_collection_removes_its_files(staff: Resources) -> None:
    with writing(staff.database) as session:
        session.delete(session.get_one(Collection, "staff"))
        jobs.enqueue(session, Erase(collection="staff", whole=True))
    work(staff)
    assert not files(staff)
    assert not list(staff.blobs.root.iterdir())
    assert (count(staff, Face), count(staff, Subject), count(staff, Embedding), count(staff, Collection)) == (0,) * 4


def test_a_recreated_collection_keeps_its_new_files(staff: Resources) -> None:
    assert erase.erase_files(Erase(collection="staff", whole=True), context(staff)) is not None
    assert len(files(staff)) == 12


def test_a_sweep_removes_old_orphans_and_nothing_else(staff: Resources) -> None:
    orphan, young = "f" * 64, "e" * 64
    staff.blobs.put(
        "staff", [(Blobs.photo(orphan), b"x"), (Blobs.crop(orphan, 0, "grey"), b"x"), (Blobs.photo(young), b"x")]
    )
    half = staff.blobs.root / "c-staff" / "photos" / "ff" / ".half"
    half.write_bytes(b"x")
    for name in files(staff) - {Blobs.photo(young)}:
        age(staff, name, 4_000)
    (staff.blobs.root / "trash-1").mkdir()
    staff.blobs.put("gone", [(Blobs.photo(orphan), b"x")])
    result = sweep.sweep_all(Sweep(), context(staff))
    assert result["files"] == 3
    assert len(files(staff)) == 13
    assert [p.name for p in staff.blobs.root.iterdir()] == ["c-staff"]
    assert sweep.sweep_all(Sweep(), context(staff))["files"] == 0


def test_a_sweep_removes_expired_rows_and_keeps_current_ones(staff: Resources) -> None:
    values = {"collection_id": "staff", "task": "identity", "model_id": LBP_MODEL, "change": 0, "vectors": 0}
    with writing(staff.database) as session:
        session.add(Follower(process="dead", seen_at=now() - 40, **values))
        session.add(Follower(process="alive", seen_at=now(), **values))
        session.add(StoredResponse(key_id="k", idempotency_key="a", fingerprint="", created_at=now() - 90_000))
        session.add(StoredResponse(key_id="k", idempotency_key="b", fingerprint=""))
        yesterday = now() - 90_000
        parent = Job(kind="import", body={}, state="succeeded", finished_at=yesterday)
        session.add(parent)
        session.flush()
        session.add(Job(kind="ingest", body={}, state="succeeded", finished_at=yesterday, parent_id=parent.id))
        session.add(Job(kind="sweep", body={}, state="succeeded", finished_at=yesterday))
        kept = parent.id
    assert sweep.sweep_all(Sweep(), context(staff))["rows"] == 4
    with reading(staff.database) as session:
        assert session.scalars(select(Follower.process)).all() == ["alive"]
        assert session.scalars(select(StoredResponse.idempotency_key)).all() == ["b"]
        assert session.scalars(select(Job.id)).all() == [kept]


def test_a_sweep_removes_old_entries_of_the_audit_log(staff: Resources) -> None:
    drafts = [EntryDraft.make("face.delete")._replace(at=at) for at in (1.0, 2.0, now())]
    with writing(staff.database) as session:
        staff.audit_chain.append(session, drafts)
    unlimited = replace(staff, settings=staff.settings.model_copy(update={"audit_days": 0}))
    assert sweep.sweep_all(Sweep(), context(unlimited))["audit"] == 0
    assert [sweep.sweep_all(Sweep(), context(staff))["audit"] for _ in range(2)] == [2, 0]


def test_a_sweep_keeps_the_archives_of_running_imports(staff: Resources) -> None:
    for name in ("alive", "stale", "young"):
        (staff.uploads / name).write_bytes(b"x")
    for name in ("alive", "stale"):
        os.utime(staff.uploads / name, (0, 0))
    with writing(staff.database) as session:
        jobs.enqueue(session, ImportArchive(collection="staff", path=str(staff.uploads / "alive")))
    assert sweep.sweep_all(Sweep(), context(staff))["uploads"] == 1
    assert sorted(p.name for p in staff.uploads.iterdir()) == ["alive", "young"]


def test_a_sweep_removes_embeddings_of_models_that_are_not_deployed(staff: Resources) -> None:
    with writing(staff.database) as session:
        staff.models.keep(session, Model("later", Recipe(), "l2", L2()))
        session.flush()
        session.get_one(Deployment, ("staff", "identity")).champion = "later"
    assert count(staff, Embedding) == 4
    with writing(staff.database) as session:
        job = jobs.enqueue(session, FitFirst(collection="staff"))
    assert sweep.sweep_all(Sweep(), context(staff))["embeddings"] == 0
    with writing(staff.database) as session:
        session.execute(delete(Job).where(Job.id == job.id))
    assert sweep.sweep_all(Sweep(), context(staff))["embeddings"] == 4
    with reading(staff.database) as session:
        assert session.scalar(select(func.count()).select_from(Embedding)) == 0


def test_a_sweep_does_not_load_the_manifests_of_models_that_serve(staff: Resources) -> None:
    """Those of earlier versions list a million labels."""
    loaded = list[str]()

    def note_row(row: ModelRecord, _: object) -> None:
        loaded.append(row.id)

    event.listen(ModelRecord, "load", note_row)
    try:
        assert remove_unused_embeddings(context(staff), "staff") == 0
    finally:
        event.remove(ModelRecord, "load", note_row)
    assert loaded == []

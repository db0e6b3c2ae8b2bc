"""Imports of vectors: every row is enrolled or refused exactly once, also when a worker dies."""

import os
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.collections import service
from app.collections.schemas import CollectionDescriptor, CollectionIn, ExternalDescriptor
from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Embedding, Face, Follower, Job, Subject, now
from app.enrolment.vectors.bulk_store import BatchOutcome, VectorRecord
from app.enrolment.vectors.row_table import RowTable
from app.queue import jobs
from app.queue.messages import ImportEmbeddings, Sweep
from app.resources import Resources
from app.storage.embedding_codec import decode_embeddings
from app.storage.recognisers.external_models import make_external_model
from ml.descriptors.external import External
from ml.model import Model
from ml.types import Rows
from tests.npy import draw_people, to_npy
from tests.workers.test_import import count, drain
from workers.context import Interrupted, JobContext, Later
from workers.handlers import embedding_import, sweep
from workers.importing import row_batches, vector_batches
from workers.schedule import Schedule
from workers.worker import Worker

DIM, BATCH = 8, 100
EXTERNAL = External(recogniser="mine", size=DIM, metric="cosine")
OWN = make_external_model(EXTERNAL)


@pytest.fixture
def staff(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> Resources:
    """Resources that hold the collection `staff` of imported vectors, which are stored in batches of 100."""
    monkeypatch.setattr(vector_batches, "MAX_BATCH_ROWS", BATCH)
    make_collection(resources)
    return resources


def make_collection(resources: Resources) -> None:
    vectors = ExternalDescriptor(name="mine", dim=DIM, metric="cosine")
    body = CollectionIn(description="", descriptor=CollectionDescriptor(external=vectors))
    with writing(resources.database) as session:
        service.put_collection(session, resources, "staff", body)


def ask(resources: Resources, rows: Rows, subjects: list[str] | None = None, name: str = "upload") -> str:
    path, table = resources.uploads / name, resources.uploads / f"{name}.csv"
    path.write_bytes(to_npy(rows))
    if subjects is not None:
        table.write_text("\n".join(["subject", *subjects]))
    message = ImportEmbeddings(collection="staff", path=str(path), table=None if subjects is None else str(table))
    with writing(resources.database) as session:
        return jobs.enqueue(session, message).id


def read_rows(resources: Resources, model: str = OWN.id) -> dict[str | None, list[list[float]]]:
    """Return subject -> the vectors of its faces, in the order of enrolment."""
    chosen = select(Subject.id, Embedding.vector).select_from(Face).join(Embedding, Embedding.face_pk == Face.pk)
    chosen = chosen.outerjoin(Subject, Subject.pk == Face.subject_pk).where(Embedding.model_id == model)
    rows: dict[str | None, list[list[float]]] = {}
    with reading(resources.database) as session:
        for subject, vector in session.execute(chosen.order_by(Face.pk)):
            rows.setdefault(subject, []).append(decode_embeddings([vector], len(vector) // 4)[0].tolist())
    return rows


def normalise(rows: Rows) -> Rows:
    unit: Rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def check_all_enrolled(resources: Resources, rows: Rows, subjects: list[str]) -> None:
    stored = read_rows(resources)
    assert sum(map(len, stored.values())) == count(resources, Face) == len(rows)
    names = np.array(subjects)
    for person in set(subjects):
        own = normalise(rows[names == person])
        np.testing.assert_allclose(stored[person], own, rtol=1e-6)


def test_every_vector_is_stored_once_under_its_subject(staff: Resources) -> None:
    rows, subjects = draw_people(25, 10, DIM)
    job = drain(staff, ask(staff, rows, subjects))
    assert (job.state, job.done, job.failed, job.total) == ("succeeded", 250, 0, 250), job.problem
    check_all_enrolled(staff, rows, subjects)
    assert count(staff, Embedding) == 250, "the built-in model's embeddings are the vectors"
    assert not list(staff.uploads.iterdir())
    with reading(staff.database) as session:
        assert job.result is not None
        assert session.get_one(Collection, "staff").change == job.result["change"] == 3
        faces = session.scalars(select(Face)).all()
    assert [face.face_id for face in sorted(faces, key=lambda f: f.pk)] == sorted(face.face_id for face in faces)


def test_the_same_vectors_again_change_nothing(staff: Resources) -> None:
    rows, subjects = draw_people(25, 10, DIM)
    drain(staff, ask(staff, rows, subjects))
    again = drain(staff, ask(staff, rows, subjects))
    assert (again.done, again.failed, count(staff, Face)) == (250, 0, 250)
    other = drain(staff, ask(staff, rows, ["somebody-else", *subjects[1:]]))
    assert (other.done, other.failed, count(staff, Face)) == (249, 1, 250)
    assert "somebody-else" not in read_rows(staff)
    assert count(staff, Subject) == 25


def test_a_person_whose_id_is_stored_decomposed_is_the_same_person(staff: Resources) -> None:
    """Earlier versions stored ids as they were sent: a refusal of consent holds for every spelling."""
    rows, _ = draw_people(3, 1, DIM)
    names = [unicodedata.normalize("NFD", "Zoë"), unicodedata.normalize("NFD", "André")]
    with writing(staff.database) as session:
        for name, consent in zip(names, (False, True), strict=True):
            session.add(Subject(collection_id="staff", id=name, consent=consent))
    job = drain(staff, ask(staff, rows, ["Zoë", "André", names[1]]))
    assert (job.done, job.failed, count(staff, Subject)) == (2, 1, 2)
    assert {subject: len(vectors) for subject, vectors in read_rows(staff).items()} == {names[1]: 2}


def test_an_import_continues_after_its_worker_died(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, subjects = draw_people(25, 10, DIM)
    job = ask(staff, rows, subjects)
    monkeypatch.setattr(embedding_import, "MAX_TURN_SECONDS", 0.0)
    worker = Worker(staff, "default")
    worker.step()
    with reading(staff.database) as session:
        assert session.get_one(Job, job).done == BATCH
    with writing(staff.database) as session:
        claimed = jobs.claim(session, queue="default", worker="dead", lease=-1)
        assert claimed is not None
    with writing(staff.database) as session:
        assert jobs.free_abandoned(session) == 1
    done = drain(staff, job)
    assert (done.state, done.done, done.failed) == ("succeeded", 250, 0)
    check_all_enrolled(staff, rows, subjects)


def test_a_batch_ends_at_so_much_metadata_too(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an import goes on after the last batch, whatever rows it had."""
    rows, _ = draw_people(25, 10, DIM)
    job, sizes, store_batch = ask(staff, rows, ["ada"] * 250), list[int](), vector_batches.store_batch
    notes = [f"{number} " + "n" * (400 if number % 2 else 10) for number in range(250)]
    table = staff.uploads / "upload.csv"
    table.write_text("\n".join(["subject,note", *(f"ada,{note}" for note in notes)]))

    def store(session: Session, collection: Collection, records: Sequence[VectorRecord], *others: Any) -> BatchOutcome:
        sizes.append(sum(len(record.row.metadata["note"]) for record in records if record.row.metadata))
        return store_batch(session, collection, records, *others)

    monkeypatch.setattr(row_batches, "MAX_BATCH_CHARACTERS", 5_000)
    monkeypatch.setattr(vector_batches, "store_batch", store)
    monkeypatch.setattr(embedding_import, "MAX_TURN_SECONDS", 0.0)
    done = drain(staff, job)
    assert (done.state, done.done, done.failed) == ("succeeded", 250, 0), done.problem
    assert max(sizes) <= 5_000 + 400
    assert sum(sizes) == sum(map(len, notes)), "a row is stored once"
    with reading(staff.database) as session:
        stored = [face.attributes["note"] for face in session.scalars(select(Face).order_by(Face.pk))]
    assert stored == notes
    assert read_rows(staff)["ada"] == pytest.approx(normalise(rows), abs=1e-5)


def test_an_altered_table_ends_the_import(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, subjects = draw_people(25, 10, DIM)
    job = ask(staff, rows, subjects)
    monkeypatch.setattr(embedding_import, "MAX_TURN_SECONDS", 0.0)
    worker = Worker(staff, "default")
    worker.step()
    (staff.uploads / "upload.csv").write_text("subject\nada\n")
    while worker.step():
        continue
    with reading(staff.database) as session:
        row = session.get_one(Job, job)
        assert (row.state, row.done, row.problem and row.problem["code"]) == ("failed", BATCH, "InvalidVectors")


def test_a_run_that_lost_its_job_stores_nothing_more(staff: Resources) -> None:
    rows, subjects = draw_people(25, 10, DIM)
    ask(staff, rows, subjects)
    with writing(staff.database) as session:
        claimed = jobs.claim(session, queue="default", worker="first", lease=60)
        assert claimed is not None
        message = jobs.read_message(claimed)
    first, second = (JobContext.bind(claimed, message, name, staff) for name in ("first", "second"))
    assert isinstance(message, ImportEmbeddings)
    with pytest.raises(Interrupted):
        embedding_import.import_embeddings(message, second)
    assert count(staff, Face) == 0
    embedding_import.import_embeddings(message, first)
    check_all_enrolled(staff, rows, subjects)


def test_two_runs_at_once_store_every_row_once(staff: Resources) -> None:
    rows, subjects = draw_people(25, 10, DIM)
    job = ask(staff, rows, subjects)
    with writing(staff.database) as session:
        claimed = jobs.claim(session, queue="default", worker="w", lease=60)
        assert claimed is not None
        message = jobs.read_message(claimed)
    assert isinstance(message, ImportEmbeddings)

    def run() -> None:
        with suppress(Interrupted, Later, FileNotFoundError):
            embedding_import.import_embeddings(message, JobContext(job, "w", staff))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_all_enrolled(staff, rows, subjects)
    with reading(staff.database) as session:
        assert session.get_one(Job, job).done == 250


def test_a_run_that_begins_beside_another_keeps_its_progress(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, subjects = draw_people(25, 10, DIM)
    job = ask(staff, rows, subjects)
    with writing(staff.database) as session:
        claimed = jobs.claim(session, queue="default", worker="w", lease=60)
        assert claimed is not None
        message = jobs.read_message(claimed)
    assert isinstance(message, ImportEmbeddings)

    def run() -> None:
        with suppress(FileNotFoundError):  # of the run that ends last: the first removes the files
            embedding_import.import_embeddings(message, JobContext(job, "w", staff))

    check = RowTable.check

    def run_another(table: RowTable, rows: int) -> None:
        monkeypatch.setattr(RowTable, "check", check)
        run()

    monkeypatch.setattr(RowTable, "check", run_another)
    run()
    check_all_enrolled(staff, rows, subjects)
    with reading(staff.database) as session:
        assert (session.get_one(Job, job).done, session.get_one(Job, job).total) == (250, 250)


def test_a_cancelled_import_stops_and_keeps_what_is_enrolled(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, subjects = draw_people(25, 10, DIM)
    job = ask(staff, rows, subjects)
    monkeypatch.setattr(embedding_import, "MAX_TURN_SECONDS", 0.0)
    worker = Worker(staff, "default")
    worker.step()
    with writing(staff.database) as session:
        jobs.cancel(session, session.get_one(Job, job))
    while worker.step():
        continue
    with reading(staff.database) as session:
        row = session.get_one(Job, job)
        assert (row.state, row.done, count(staff, Face)) == ("cancelled", BATCH, BATCH)
    Schedule(staff).tick()
    assert not list(staff.uploads.iterdir()), "vectors and table are deleted"


def test_a_deleted_collection_ends_its_import(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, subjects = draw_people(25, 10, DIM)
    job = ask(staff, rows, subjects)
    monkeypatch.setattr(embedding_import, "MAX_TURN_SECONDS", 0.0)
    worker = Worker(staff, "default")
    worker.step()
    with writing(staff.database) as session:
        service.delete_collection(session, "staff")
    make_collection(staff)
    while worker.step():
        continue
    with reading(staff.database) as session:
        assert session.get_one(Job, job).state == "cancelled"
    assert count(staff, Face) == 0


def test_a_challenger_is_embedded_too_and_a_model_that_comes_meanwhile(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, subjects = draw_people(25, 10, DIM)
    job = ask(staff, rows, subjects)
    monkeypatch.setattr(embedding_import, "MAX_TURN_SECONDS", 0.0)
    worker = Worker(staff, "default")
    worker.step()
    other = Model("m-other", OWN.recipe, "l2", type(OWN.embedder)(), provenance={"made": "for a test"})
    with writing(staff.database) as session:
        staff.models.keep(session, other)
        session.flush()
        session.get_one(Deployment, ("staff", "identity")).challenger = other.id
    drain(staff, job)
    assert sum(map(len, read_rows(staff).values())) == 250
    assert sum(map(len, read_rows(staff, other.id).values())) == 150


def test_the_import_waits_for_the_indexes(staff: Resources) -> None:
    rows, subjects = draw_people(5, 2, DIM)
    job = ask(staff, rows, subjects)
    with writing(staff.database) as session:
        values = {"task": "identity", "model_id": OWN.id, "vectors": 0}
        session.add(Follower(process="alive", collection_id="staff", change=0, seen_at=now() + 14, **values))
    worker = Worker(staff, "default")
    for _ in range(5):
        worker.step()
        staff.notifier.wait("jobs", 0.02)
    with writing(staff.database) as session:
        waiting = session.get_one(Job, job)
        assert (waiting.done, waiting.finished_at) == (10, None)
        session.execute(update(Follower).values(change=1))
    assert drain(staff, job).state == "succeeded"


def test_the_sweep_keeps_the_vectors_under_another_champion(staff: Resources) -> None:
    rows, subjects = draw_people(5, 2, DIM)
    drain(staff, ask(staff, rows, subjects))
    other = Model("m-other", OWN.recipe, "l2", type(OWN.embedder)(), provenance={"made": "for a test"})
    with writing(staff.database) as session:
        staff.models.keep(session, other)
        session.flush()
        deployment = session.get_one(Deployment, ("staff", "identity"))
        deployment.champion, deployment.previous = other.id, None
    sweep.sweep_all(Sweep(), JobContext("none", "w", staff))
    check_all_enrolled(staff, rows, subjects)


@pytest.fixture
def killed(staff: Resources) -> Iterator[list[Any]]:
    """Start worker processes that the test kills; the rest end with it."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_killed_worker_leaves_nothing_half_done(
    staff: Resources, killed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, subjects = draw_people(4000, 25, DIM)
    job = ask(staff, rows, subjects)
    environment = {**os.environ, "LIKENESS_HOME": str(staff.settings.home), "LIKENESS_DEFAULT_RECOGNISER": "lbp"}
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "workers", "--queue", "default"]
    for kill in range(2):
        process = subprocess.Popen(command, env=environment, cwd=root, stderr=subprocess.DEVNULL)
        killed.append(process)
        wait_for_progress(staff, job, at_least=1 + 20_000 * kill)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with writing(staff.database) as session:
            row = session.get_one(Job, job)
            assert row.done == session.scalar(select(func.count()).select_from(Face))
            session.execute(update(Job).where(Job.id == job, Job.state == "running").values(lease_until=1.0))
            jobs.free_abandoned(session)
    monkeypatch.setattr(vector_batches, "MAX_BATCH_ROWS", 16_384)
    done = drain(staff, job)
    assert (done.state, done.done, done.failed) == ("succeeded", len(rows), 0)
    check_all_enrolled(staff, rows, subjects)


def wait_for_progress(resources: Resources, job: str, at_least: int, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with reading(resources.database) as session:
            if session.get_one(Job, job).done >= at_least:
                return
        time.sleep(0.01)
    raise AssertionError("the worker made no progress")

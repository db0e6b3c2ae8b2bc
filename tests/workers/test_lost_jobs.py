"""A worker that was paused for longer than its lease writes nothing more: another has its job, or has ended it."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Collection, Erasure, Face, Job, Subject, now
from app.errors import Invalid
from app.galleries import deletion, subjects
from app.publishing import pointers
from app.queue import jobs
from app.queue.messages import ImportEmbeddings, Message, Sweep
from app.resources import Resources
from tests.gallery import collection
from tests.workers import test_collection_rows
from tests.workers.test_import import asked, drain, picture, uploaded
from workers.context import Interrupted, JobContext
from workers.erasing import collection_rows
from workers.handlers import embedding_import, importing, ingest
from workers.importing import archive_listing, batch_enrolment
from workers.worker import Worker


@pytest.fixture
def staff(resources: Resources) -> Resources:
    """Resources that hold the collection `staff`."""
    with writing(resources.database) as session:
        collection(session, "staff")
    return resources


def claim(resources: Resources, kind: str) -> tuple[Message, JobContext]:
    """Claim the next job, which is of this kind, with a lease that has ended."""
    with writing(resources.database) as session:
        others = update(Job).where(Job.kind != kind, Job.state == "queued")
        session.execute(others.values(not_before=now() + 60))
        job = jobs.claim(session, queue="default", worker="paused", lease=-1)
        assert job is not None
        assert job.kind == kind
        message = jobs.read_message(job)
        session.execute(others.values(not_before=0.0))
    return message, JobContext.bind(job, message, "paused", resources)


def take_over(resources: Resources) -> None:
    """Free the job whose lease has ended, as any worker does."""
    with writing(resources.database) as session:
        assert jobs.free_abandoned(session) == 1


def pause_once(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, meanwhile: Callable[[], None]) -> None:
    """Have other workers work once that function of the module has returned for the first time."""
    original = getattr(module, name)

    def pause(*arguments: Any) -> Any:
        monkeypatch.setattr(module, name, original)
        value = original(*arguments)
        meanwhile()
        return value

    monkeypatch.setattr(module, name, pause)


def complete_erasures(resources: Resources, *states: str) -> None:
    """Run jobs until every erasure has one of these states."""
    for _ in range(200):
        with writing(resources.database) as session:
            session.execute(update(Job).where(Job.state == "queued").values(not_before=0.0))
            session.execute(update(Erasure).values(requested_at=now() - 10))
        Worker(resources, "default").step()
        with reading(resources.database) as session:
            if set(session.scalars(select(Erasure.state))) <= set(states):
                return
    raise AssertionError("the erasure does not go on")


@pytest.mark.parametrize("is_claimed", [False, True])
def test_nothing_is_written_for_a_job_that_was_lost(resources: Resources, is_claimed: bool) -> None:
    with writing(resources.database) as session:
        jobs.enqueue(session, Sweep())
    _, context = claim(resources, Sweep.kind)
    with writing(context.resources.database) as session:
        collection(session, "before")
    take_over(resources)
    if is_claimed:
        with writing(resources.database) as session:
            assert jobs.claim(session, queue="default", worker="another", lease=60) is not None
    with pytest.raises(Interrupted), writing(context.resources.database) as session:
        collection(session, "after")
    with pytest.raises(Interrupted):
        context.check_lease()
    with reading(resources.database) as session:
        assert list(session.scalars(select(Collection.id))) == ["before"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_job_that_is_lost_during_a_transaction_is_rolled_back(resources: Resources) -> None:
    with writing(resources.database) as session:
        jobs.enqueue(session, Sweep())
    _, context = claim(resources, Sweep.kind)

    def write() -> None:
        with writing(context.resources.database) as session:
            collection(session, "staff")
            take_over(resources)

    with pytest.raises(Interrupted):
        write()
    with reading(resources.database) as session:
        assert session.get(Collection, "staff") is None


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_no_job_is_lost_between_the_last_check_and_the_commit(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(resources.database) as session:
        jobs.enqueue(session, Sweep())
    _, context = claim(resources, Sweep.kind)
    is_held, freed = jobs.is_held, []

    def check_and_pause(session: Session, job_id: str, *, worker: str, lock: bool = False) -> bool:
        held = is_held(session, job_id, worker=worker, lock=lock)
        if lock:
            with writing(resources.database) as other:
                freed.append(jobs.free_abandoned(other))
        return held

    monkeypatch.setattr(jobs, "is_held", check_and_pause)
    with writing(context.resources.database) as session:
        collection(session, "staff")
    assert freed == [0]
    take_over(resources)


def test_an_erased_person_is_not_enrolled_by_a_worker_that_was_paused(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.serving.reporter.MAX_REPORT_SECONDS", 0.0)
    job = asked(staff, uploaded(staff, {"ann/1.png": picture(1)}))
    Worker(staff, "default").step()
    message, context = claim(staff, "ingest")

    def import_and_erase() -> None:
        take_over(staff)
        assert drain(staff, job).done == 1
        with writing(staff.database) as session:
            locked = pointers.lock_collection(session, "staff")
            subjects.erase_subject(session, locked, subjects.get_subject(session, "staff", "ann"))
        complete_erasures(staff, "final")

    pause_once(monkeypatch, batch_enrolment, "prepare_photos", import_and_erase)
    with pytest.raises(Interrupted):
        ingest.ingest_batch(message, context)  # type: ignore[arg-type]
    with reading(staff.database) as session:
        counts = [session.scalar(select(func.count()).select_from(row)) for row in (Face, Subject)]
    assert counts == [0, 0]
    assert list(staff.blobs.names("staff")), "they were written before the rows"
    while Worker(staff, "default").step():
        pass
    assert list(staff.blobs.names("staff")) == []


def test_an_archive_is_left_to_the_worker_that_took_its_import_over(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = uploaded(staff, {f"p{number}/1.png": picture(number) for number in range(3)})
    job = asked(staff, path)
    message, context = claim(staff, "import")

    def list_and_fail() -> None:
        take_over(staff)
        Worker(staff, "default").step()
        raise Invalid("its parser was paused too")

    pause_once(monkeypatch, archive_listing, "open_photo_files", list_and_fail)
    with pytest.raises(Interrupted):
        importing.import_archive(message, context)  # type: ignore[arg-type]
    assert path.exists()
    done = drain(staff, job)
    assert (done.state, done.done) == ("succeeded", 3)


def test_vectors_are_left_to_the_worker_that_took_their_import_over(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = staff.uploads / "vectors"
    path.write_bytes(b"no vectors")
    with writing(staff.database) as session:
        jobs.enqueue(session, ImportEmbeddings(collection="staff", path=str(path)))
    message, context = claim(staff, ImportEmbeddings.kind)
    pause_once(monkeypatch, embedding_import, "_read_change", lambda: take_over(staff))
    with pytest.raises(Interrupted):
        embedding_import.import_embeddings(message, context)  # type: ignore[arg-type]
    assert path.exists()


def test_a_final_erasure_gets_no_names_from_a_worker_that_was_paused(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "ROWS_PER_STEP", 2)
    for name in ("other", "staff"):
        test_collection_rows.fill(resources, name)
    test_collection_rows.delete_staff(resources)
    _, context = claim(resources, "erase")
    with reading(resources.database) as session:
        early = session.scalars(select(Erasure)).one()

    def erase() -> None:
        take_over(resources)
        complete_erasures(resources, "scrubbed", "final")  # SQLite is compacted once nobody reads the rows

    pause_once(monkeypatch, collection_rows, "describe_erased", erase)
    with pytest.raises(Interrupted):
        collection_rows.delete_rows(context, early)
    complete_erasures(resources, "final")
    with reading(resources.database) as session:
        final = session.scalars(select(Erasure)).one()
    assert (final.state, final.targets) == ("final", {})

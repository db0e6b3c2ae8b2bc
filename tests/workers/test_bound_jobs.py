"""Jobs work for the collection that they were started for, and never for a later one of the same name."""

from pathlib import Path

import pytest
from sqlalchemy import delete, func, select
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session

from app.collections.service import delete_collection
from app.db.session import reading, writing
from app.db.tables import Collection, Face, Job, Subject
from app.errors import NotFound
from app.faces.service import ImportOptions, accept_import
from app.faces.streaming import ReceivedImport
from app.queue import jobs
from app.queue.messages import (
    MESSAGES,
    Compare,
    DiscoverPeople,
    DrawAtlas,
    Erase,
    Evaluate,
    ExamineGallery,
    FitFirst,
    ForecastGrowth,
    ImportArchive,
    ImportEmbeddings,
    IngestBatch,
    Message,
    Publish,
    RestoreSnapshot,
    Sweep,
    TakeSnapshot,
    Train,
)
from app.resources import Resources
from tests.gallery import collection
from tests.workers.test_import import picture, uploaded
from workers.context import Interrupted, JobContext, Later
from workers.handlers import HANDLERS, importing, ingest
from workers.worker import Worker

NAME = "recycled"
BOUND: list[Message] = [
    ImportArchive(collection=NAME, path="/none"),
    ImportEmbeddings(collection=NAME, path="/none"),
    FitFirst(collection=NAME),
    Train(training="t", collection=NAME),
    Publish(collection=NAME, tasks=("identity",), model="m"),
    Compare(collection=NAME, task="identity", models=("a", "b")),
    DiscoverPeople(collection=NAME, min_probability=0.5),
    ExamineGallery(collection=NAME),
    DrawAtlas(collection=NAME, task="identity", method="pca"),
    ForecastGrowth(collection=NAME),
    TakeSnapshot(snapshot="s", collection=NAME),
]
"""One message of each kind that names a collection."""


@pytest.fixture
def made(resources: Resources) -> Resources:
    """Resources that hold the collection."""
    with writing(resources.database) as session:
        collection(session, NAME)
    return resources


def replace_collection(resources: Resources) -> None:
    """Replace the collection by a new one of the same name. Its jobs are not told."""
    with writing(resources.database) as session:
        session.execute(delete(Collection).where(Collection.id == NAME))
        collection(session, NAME)


def add(resources: Resources, message: Message, **options: object) -> str:
    with writing(resources.database) as session:
        return jobs.enqueue(session, message, **options).id  # type: ignore[arg-type]


def read_state(resources: Resources, job: str) -> str:
    with reading(resources.database) as session:
        return session.get_one(Job, job).state


def claim(resources: Resources, queue: str = "default") -> JobContext:
    with writing(resources.database) as session:
        job = jobs.claim(session, queue=queue, worker="w", lease=60.0)
        assert job is not None
        return JobContext.bind(job, jobs.read_message(job), "w", resources)


def count_rows(session: Session, row: type[Face] | type[Subject]) -> int:
    return session.scalar(select(func.count()).select_from(row)) or 0


def test_every_kind_of_job_is_bound_or_works_for_no_collection() -> None:
    through_others = {Evaluate.kind, IngestBatch.kind, Erase.kind, RestoreSnapshot.kind, Sweep.kind}
    assert {message.kind for message in BOUND} | through_others == MESSAGES.keys()
    assert all(message.collections == (NAME,) for message in BOUND)


def test_deleting_a_collection_cancels_its_live_jobs_of_every_kind(made: Resources) -> None:
    evaluation = Evaluate(evaluation="e")
    with writing(made.database) as session:
        collection(session, "other")
    running = add(made, BOUND[0])
    part = add(made, IngestBatch(job=running, first=0, last=1), parent=running)
    claim(made)
    queued = [add(made, message) for message in BOUND]
    queued.append(add(made, RestoreSnapshot(snapshot="s", source="x", collection=NAME)))
    queued += [add(made, evaluation, reads=[NAME]), add(made, Train(training="t", collection="other"), reads=[NAME])]
    kept = [add(made, ExamineGallery(collection="other")), add(made, evaluation, reads=["other"]), add(made, Sweep())]
    kept.append(add(made, Erase(collection=NAME, whole=True)))
    with writing(made.database) as session:
        delete_collection(session, NAME)
    assert [read_state(made, job) for job in (*queued, part)] == ["cancelled"] * (len(queued) + 1)
    assert [read_state(made, job) for job in kept] == ["queued"] * len(kept)
    with reading(made.database) as session:
        assert session.get_one(Job, running).cancel, "a running job stops at its next step"


@pytest.mark.parametrize("message", BOUND, ids=lambda message: message.kind)
def test_a_job_of_an_earlier_collection_of_that_name_is_cancelled_when_it_is_claimed(
    lasting_sqlite: Resources, message: Message
) -> None:
    with writing(lasting_sqlite.database) as session:
        session.execute(delete(Collection))
        collection(session, NAME)
    job = add(lasting_sqlite, message)
    replace_collection(lasting_sqlite)
    assert Worker(lasting_sqlite, message.queue).step()
    assert read_state(lasting_sqlite, job) == "cancelled"


def test_a_job_that_fails_over_the_deletion_of_its_collection_is_cancelled(
    made: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An examination that read the deployment a moment later ended as InternalServerError."""

    def examine(*_: object) -> None:
        with writing(made.database) as session:
            session.execute(delete(Collection).where(Collection.id == NAME))
        raise NoResultFound

    monkeypatch.setitem(HANDLERS, ExamineGallery, examine)
    job = add(made, ExamineGallery(collection=NAME))
    assert Worker(made, "training").step()
    assert read_state(made, job) == "cancelled"


def test_a_job_whose_collection_is_missing_when_it_is_enqueued_is_cancelled(resources: Resources) -> None:
    job = add(resources, ExamineGallery(collection=NAME))
    with writing(resources.database) as session:
        collection(session, NAME)
    assert Worker(resources, "training").step()
    assert read_state(resources, job) == "cancelled"


def test_an_import_that_runs_enrols_nothing_in_a_later_collection(made: Resources) -> None:
    path = uploaded(made, {f"p/{n}.png": picture(n) for n in range(3)})
    message = ImportArchive(collection=NAME, path=str(path), aligned=True)
    job = add(made, message)
    context = claim(made)
    with pytest.raises(Later):
        importing.import_archive(message, context)
    part = claim(made)
    replace_collection(made)
    with pytest.raises(Interrupted):
        ingest.ingest_batch(IngestBatch(job=job, first=0, last=3), part)
    with pytest.raises(Interrupted):
        importing.import_archive(message, context)
    with reading(made.database) as session:
        assert (count_rows(session, Face), count_rows(session, Subject)) == (0, 0)


def test_what_a_job_writes_while_its_collection_is_replaced_is_rolled_back(made: Resources) -> None:
    """The collection is replaced by the job's own transaction, in place of one that is committed just before."""
    add(made, BOUND[0])
    context = claim(made)

    def write() -> None:
        with writing(context.resources.database) as session:
            session.execute(delete(Collection).where(Collection.id == NAME))
            collection(session, NAME)
            session.add(Subject(collection_id=NAME, id="ada"))

    with pytest.raises(Interrupted):
        write()
    with reading(made.database) as session:
        assert count_rows(session, Subject) == 0


def test_an_import_without_its_note_of_the_end_goes_on(made: Resources) -> None:
    """An erasure may have emptied the result of the job."""
    message = ImportArchive(collection=NAME, path=str(Path("/none")), aligned=True)
    job = add(made, message)
    context = claim(made)
    with writing(made.database) as session:
        row = session.get_one(Job, job)
        row.total, row.result = 0, {"note": "erased"}
    result = importing.import_archive(message, context)
    assert result["enrolled"] == 0


def test_an_upload_that_began_before_the_collection_was_replaced_is_not_imported(made: Resources) -> None:
    path = uploaded(made, {"p/0.png": picture(0)})
    with reading(made.database) as session:
        received = ReceivedImport(path, session.get_one(Collection, NAME).created_at)
    options = ImportOptions("gallery", True, None)
    with writing(made.database) as session:
        assert accept_import(made, session, NAME, received, options).state == "queued"
    replace_collection(made)
    with writing(made.database) as session, pytest.raises(NotFound):
        accept_import(made, session, NAME, received, options)

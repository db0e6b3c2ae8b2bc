"""One row that cannot be worked on, as of a collection whose snapshot was altered, holds up nothing of others."""

import pytest
from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Atlas, Collection, Job, Label, Subject, TrainingPolicy, now
from app.queue.jobs import enqueue
from app.queue.messages import DrawAtlas, Sweep
from app.resources import Resources
from tests.gallery import enrol
from tests.rows import GalleryWriter, make_model, people
from workers import schedule
from workers.cleanup import expired_subjects
from workers.context import JobContext
from workers.handlers import sweep
from workers.schedule import Schedule
from workers.worker import Worker


def set_policy(resources: Resources, collection: str, at: str | None = None) -> None:
    """Set a schedule whose next training was due an hour ago."""
    with writing(resources.database) as session:
        session.add(
            TrainingPolicy(
                collection_id=collection, task="identity", trigger="schedule", hours=1.0, at=at, since=now() - 7_200
            )
        )


def label(resources: Resources, collection: str) -> None:
    faces = enrol(resources, collection, range(4), shots=2)
    with writing(resources.database) as session:
        for a, b, same in ((0, 1, True), (0, 2, False)):
            session.add(Label(task="identity", face_a=faces[a].pk, face_b=faces[b].pk, same=same, by="ana"))
        row = session.get_one(Collection, collection)
        row.change += 1
        row.label_change = row.change


def list_failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("step.failed")]


def test_a_policy_that_cannot_be_judged_is_logged_once_and_others_start(
    resources: Resources, caplog: pytest.LogCaptureFixture
) -> None:
    for collection in ("a", "b"):
        label(resources, collection)
    set_policy(resources, "a", at="99:99")
    set_policy(resources, "b")
    ticker = Schedule(resources)
    for _ in range(3):
        ticker.freed_at = 0.0
        ticker.tick()
    with reading(resources.database) as session:
        started = session.scalars(select(Job.collection_id).where(Job.kind == "train")).all()
    assert started == ["b"]
    assert list_failures(caplog) == ["step.failed step=judge policy of identity collection=a"]


def test_an_atlas_that_cannot_be_updated_holds_up_no_other(resources: Resources) -> None:
    model = make_model("m")
    rows, subjects = people(4, 2)
    for collection in ("a", "b"):
        gallery = GalleryWriter(resources, collection).make(model)
        gallery.add({model.id: rows}, subjects)
        with writing(resources.database) as session:
            session.add(
                Atlas(
                    collection_id=collection, task="identity", model_id=model.id, version=1, fitted_faces=8, change=0,
                    method="nope" if collection == "a" else "pca", finished_at=now(),
                )
            )  # fmt: skip
    Schedule(resources).tick()
    with reading(resources.database) as session:
        assert session.scalars(select(Job.collection_id).where(Job.kind == DrawAtlas.kind)).all() == ["b"]


@pytest.mark.parametrize("queue", ["default", "training"])
def test_a_worker_goes_on_whatever_fails_beside_its_jobs(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    monkeypatch.setattr("workers.worker.RETRY_SECONDS", 0.0)
    worker, steps = Worker(resources, queue), list[int]()

    def step() -> bool:
        steps.append(1)
        if len(steps) == 3:
            worker.stopping.set()
        raise ValueError("a row that cannot be read")

    def tick(self: Schedule) -> None:
        raise ValueError("a row that cannot be read")

    monkeypatch.setattr(schedule.Schedule, "tick", tick)
    monkeypatch.setattr(worker, "step", step)
    worker.run()
    assert len(steps) == 3


def test_a_job_whose_message_cannot_be_read_fails(resources: Resources) -> None:
    with writing(resources.database) as session:
        job = enqueue(session, Sweep())
        job.kind = "nope"
    assert Worker(resources, job.queue).step()
    with reading(resources.database) as session:
        assert session.get_one(Job, job.id).state == "failed"


def test_a_collection_that_cannot_be_swept_holds_up_no_other(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    for collection in ("a", "b"):
        GalleryWriter(resources, collection).make(make_model("m"))
    swept = []

    def remove_orphans(context: JobContext, collection: str) -> int:
        swept.append(collection)
        if collection == "a":
            raise ValueError("a row that cannot be read")
        return 0

    monkeypatch.setattr(sweep, "remove_orphans", remove_orphans)
    with pytest.raises(ValueError, match="cannot be read"):
        sweep.sweep_all(Sweep(), JobContext("j", "w", resources))
    assert swept == ["a", "b"]


def test_a_subject_that_cannot_be_erased_keeps_no_other_from_being_erased(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, subjects = people(2, 1)
    model = make_model("m")
    GalleryWriter(resources).make(model).add({model.id: rows}, subjects)
    with writing(resources.database) as session:
        for subject in session.scalars(select(Subject)):
            subject.retain_until = now() - 1
    erase = expired_subjects.erase_subject

    def erase_all_but_first(session, collection, subject):  # type: ignore[no-untyped-def]
        if subject.id == subjects[0]:
            raise ValueError("a row that cannot be read")
        return erase(session, collection, subject)

    monkeypatch.setattr(expired_subjects, "erase_subject", erase_all_but_first)
    assert expired_subjects.erase_expired_subjects(JobContext("j", "w", resources)) == 1
    with reading(resources.database) as session:
        assert session.scalars(select(Subject.id)).all() == [subjects[0]]

"""Sessions that see only the rows of some collections."""

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import delete, exists, func, select, text, update
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import (
    AuditEntry,
    Base,
    Collection,
    Deployment,
    Erasure,
    Evaluation,
    Face,
    Job,
    JobItem,
    KeptSnapshot,
    Key,
    Label,
    ModelRecord,
    Subject,
    Training,
)
from app.db.visibility import ALL_ROWS, UNRESTRICTED, list_unruled_tables
from app.learning.refit import list_models_that_learned
from app.queue.jobs import enqueue
from app.queue.messages import Evaluate, IngestBatch
from app.resources import Resources
from tests.house.source_files import files_of, read
from tests.two_collections import MINE, OTHER, World, open_world

ALIASED = {
    "app/galleries/label_consensus.py": "joined to labels, which are restricted",
    "app/labellers/service.py": "the conditions name the collection",
    "app/labels/collection_consensus.py": "the conditions name the collections",
    "app/labels/withdrawal.py": "joined to labels, which are restricted",
    "app/queue/jobs.py": "runs in workers",
    "app/serving/calibration/learned_gallery.py": "runs without a caller",
    "app/serving/calibration/schedule.py": "runs without a caller",
    "app/snapshots/collection_restore.py": "runs in workers and commands; the conditions name the collections",
}
"""Files that use tables under an alias, which a session does not restrict -> why that shows nothing of others."""


@pytest.fixture(scope="module")
def world(lasting: Resources) -> Iterator[World]:
    with open_world(lasting) as opened:
        yield opened


def read_names(session: Session) -> dict[type[Base], set[str]]:
    """Read of each kind of row a text that contains the name of its collection."""
    return {
        Collection: set(session.scalars(select(Collection.id))),
        Deployment: set(session.scalars(select(Deployment.collection_id))),
        Face: set(session.scalars(select(Face.collection_id))),
        Subject: {subject.id for subject in session.scalars(select(Subject))},
        Label: set(session.scalars(select(Label.by))),
        Training: {row.request["collection"] for row in session.scalars(select(Training))},
        Job: {row.body["collection"] for row in session.scalars(select(Job)) if "collection" in row.body},
        JobItem: set(session.scalars(select(JobItem.name))),
        Key: {key.name for key in session.scalars(select(Key))},
        ModelRecord: set(session.scalars(select(ModelRecord.id).where(ModelRecord.training_id.is_not(None)))),
    }


def test_every_table_has_a_rule() -> None:
    assert list_unruled_tables() == []
    assert all(UNRESTRICTED.values())


def test_each_session_sees_the_rows_of_its_collections_only(world: World) -> None:
    for collection in (MINE, OTHER, MINE):  # the same statements, compiled once, with other collections
        with reading(world.resources.database, (collection,)) as session:
            for kind, names in read_names(session).items():
                assert names, kind
                assert all(name.startswith(collection) for name in names), kind
    with reading(world.resources.database, (MINE, OTHER)) as session:
        assert read_names(session)[Collection] == {MINE, OTHER}
    with reading(world.resources.database) as session:
        assert {MINE, OTHER} <= read_names(session)[Collection]


def test_subqueries_counts_and_keys_are_restricted(world: World) -> None:
    other = world.rows[OTHER]
    with reading(world.resources.database, (MINE,)) as session:
        assert session.get(Job, other.ids["job"]) is None
        assert session.get(Collection, OTHER, with_for_update=True) is None
        assert session.scalar(select(func.count()).where(Face.collection_id == OTHER)) == 0
        assert session.scalar(select(func.count()).select_from(Face)) == 2
        assert not session.scalar(select(exists().where(Face.collection_id == OTHER)))
        owners = select(Collection.id).where(Collection.id.in_(select(Face.collection_id)))
        assert session.scalars(owners).all() == [MINE]
        counted = select(Subject.id, func.count(Face.pk)).join(Face, Face.subject_pk == Subject.pk).group_by(Subject.id)
        assert session.execute(counted).all() == [(world.rows[MINE].subject, 2)]
        everything = select(Collection.id).execution_options(**ALL_ROWS)
        assert set(session.scalars(everything)) == {MINE, OTHER}


def test_what_belongs_to_two_collections_is_seen_by_sessions_of_both(world: World) -> None:
    mine, other = (world.rows[name].faces[0] for name in (MINE, OTHER))
    sources = [{"collection": None, "from": "subjects"}, {"collection": OTHER, "from": "subjects"}]
    with writing(world.resources.database) as session:
        pks = session.scalars(select(Face.pk).where(Face.face_id.in_((mine, other))).order_by(Face.pk)).all()
        label = Label(task="identity", face_a=pks[0], face_b=pks[1], same=False, by="both")
        evaluation = Evaluation(request={"collection": MINE, "training": {"method": "wpca", "sources": sources}})
        session.add_all([label, evaluation])
        session.flush()
    for collections in ((MINE,), (OTHER,), (MINE, OTHER)):
        with reading(world.resources.database, collections) as session:
            is_visible = collections == (MINE, OTHER)
            assert (session.get(Label, label.pk) is not None) == is_visible
            assert (session.get(Evaluation, evaluation.id) is not None) == is_visible
    with writing(world.resources.database) as session:
        session.delete(session.get_one(Label, label.pk))
        session.delete(session.get_one(Evaluation, evaluation.id))


def test_what_a_deleted_collection_left_is_not_shown_to_a_later_one_of_its_name(lasting_sqlite: Resources) -> None:
    request, at = {"collection": "again"}, {"created_at": 50.0}
    entry = {"action": "face.delete", "collection_id": "again", "mac": ""}
    erasure = {"collection_id": "again", "target": "face", "change": 1, "first_change": 1}
    with writing(lasting_sqlite.database) as session:
        job = Job(id="j", kind="import", body=request, **at)
        rows: list[Base] = [
            job,
            Job(id="part", kind="ingest", body={}, parent_id="j", **at),
            JobItem(job_id="j", number=0, name="n"),
            Training(id="t", request=request, **at),
            Evaluation(id="e", request=request, **at),
            Job(id="measures", kind="evaluate", body={"evaluation": "e"}, **at),
            Erasure(id="x", collection_created_at=1.0, requested_at=50.0, **erasure),
            AuditEntry(number=10**9, id="a", at=50.0, **entry),
            KeptSnapshot(id="s", collection_id="again", created_at=50.0),
        ]
        rows[4].job_id = "measures"  # type: ignore[attr-defined]
        session.add_all(rows)
    kinds = (Job, JobItem, Training, Evaluation, Erasure, AuditEntry, KeptSnapshot)
    for created_at, counts in ((None, [3, 1, 1, 1, 1, 1, 1]), (50.0, [3, 1, 1, 1, 1, 1, 1]), (50.5, [0] * 7)):
        with writing(lasting_sqlite.database) as session:
            session.execute(delete(Collection).where(Collection.id == "again"))
            session.add_all([Collection(id="again", created_at=created_at)] if created_at else [])
        with reading(lasting_sqlite.database, ("again",)) as session:
            assert [len(session.scalars(select(kind)).all()) for kind in kinds] == counts, created_at
    with writing(lasting_sqlite.database) as session:
        for kind in (KeptSnapshot, AuditEntry, Erasure, Evaluation, Training, JobItem, Job, Collection):
            session.execute(delete(kind))


def test_the_job_of_an_evaluation_belongs_to_the_collections_that_it_is_bound_to(lasting: Resources) -> None:
    with writing(lasting.database) as session:
        session.add_all([Collection(id=name, created_at=50.0) for name in ("one", "two")])
        jobs = [enqueue(session, Evaluate(evaluation="e"), reads=reads) for reads in (("one",), ("one", "two"))]
        for job in jobs:
            job.created_at = 60.0
    chosen = select(Job.id).where(Job.id.in_([job.id for job in jobs])).order_by(Job.id)
    for collections, seen in ((("one",), jobs[:1]), (("two",), []), (("one", "two"), jobs), (("three",), [])):
        with reading(lasting.database, collections) as session:
            assert session.scalars(chosen).all() == [job.id for job in seen], collections
    with writing(lasting.database) as session:
        session.execute(update(Collection).where(Collection.id == "two").values(created_at=70.0))
    with reading(lasting.database, ("one", "two")) as session:
        assert session.scalars(chosen).all() == [jobs[0].id], "the later collection of the name is another one"
    with writing(lasting.database) as session:
        session.execute(delete(Job).where(Job.id.in_([job.id for job in jobs])))
        session.execute(delete(Collection).where(Collection.id.in_(("one", "two"))))


def test_lists_of_jobs_read_no_requests_for_evaluations(lasting_sqlite: Resources) -> None:
    with writing(lasting_sqlite.database) as session:
        session.add(Collection(id="one"))
        session.add(Evaluation(id="e", request={}))
        job = enqueue(session, Evaluate(evaluation="e"), reads=("one",))
        session.execute(text("UPDATE evaluations SET request = 'no JSON'"))
    for collection, seen in (("one", [job.id]), ("two", [])):
        with reading(lasting_sqlite.database, (collection,)) as session:
            assert session.scalars(select(Job.id)).all() == seen
    with writing(lasting_sqlite.database) as session:
        for kind in (Evaluation, Job, Collection):
            session.execute(delete(kind))


def test_a_part_of_an_import_belongs_to_the_collection_of_the_import(world: World) -> None:
    parent = world.rows[MINE].ids["job"]
    with writing(world.resources.database) as session:
        part = enqueue(session, IngestBatch(job=parent, first=0, last=1), parent=parent, delay=3600.0)
    for collection in (MINE, OTHER):
        with reading(world.resources.database, (collection,)) as session:
            assert (session.get(Job, part.id) is not None) == (collection == MINE)


def test_an_erasure_names_models_of_others_that_have_learned_from_the_subject(world: World) -> None:
    request = {"collection": OTHER, "sources": [{"collection": MINE, "from": "subjects"}]}
    with writing(world.resources.database) as session:
        training = Training(request=request, snapshot={"changes": {MINE: 9, OTHER: 9}}, model="of-both")
        session.add(training)
    with reading(world.resources.database, (MINE,)) as session:
        assert session.get(Training, training.id) is None
        collection, subject = session.get_one(Collection, MINE), session.scalars(select(Subject)).one()
        assert list_models_that_learned(session, collection, subject) == ["of-both"]
    with writing(world.resources.database) as session:
        session.delete(session.get_one(Training, training.id))


def test_changes_reach_only_the_rows_of_its_collections(world: World) -> None:
    with writing(world.resources.database, (MINE,)) as session:
        session.execute(update(Label).values(note="changed"))
        session.execute(delete(JobItem))
        notes = dict(session.execute(select(Label.by, Label.note), execution_options=ALL_ROWS).all())
        assert notes == {f"{MINE}-labeller": "changed", f"{OTHER}-labeller": ""}
        assert set(session.scalars(select(JobItem.name), execution_options=ALL_ROWS)) == {world.rows[OTHER].file}
        session.rollback()  # other tests read these rows


def test_the_files_that_use_tables_under_an_alias_are_known() -> None:
    using = {path.as_posix() for path in files_of("app") if re.search(r"\baliased\(", read(path))}
    assert using == ALIASED.keys()

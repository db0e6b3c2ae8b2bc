"""The erasure of a person erases who was merged into it, and nobody who was enrolled later under the same id."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Engine, create_engine, event, select, update
from sqlalchemy.orm import Session

from app.collections.service import delete_collection
from app.db.migrate import make_config
from app.db.session import reading, writing
from app.db.tables import (
    Deployment,
    Erasure,
    Evaluation,
    Face,
    Job,
    JobItem,
    StoredResponse,
    Subject,
    Training,
    now,
)
from app.galleries import subjects
from app.galleries.erased_names import MERGE_COMMIT_SECONDS, ErasedNames
from app.queue import jobs
from app.queue.messages import Evaluate
from app.resources import Resources
from app.snapshots.collection_restore import RestoreOptions, restore_collection
from app.snapshots.manifest import ROWS, SnapshotManifest
from app.snapshots.reader import check_snapshot
from app.snapshots.writer import write_snapshot
from app.storage.snapshot_folders import locate_snapshot
from app.subjects.service import merge_subjects
from ml.files import hash_file
from tests.workers.test_erase import context, work
from tests.workers.test_erasing import erase_subject, read_state, staff, work_until
from tests.workers.test_kept_snapshots import holds, quiet, take_directly
from workers.erasing import completion
from workers.erasing.completion import complete_erasures

__all__ = ["staff"]

ALIAS, FIRST_ALIAS, BADGE = "alias-of-somebody", "first-alias-of-somebody", "a-vermilion-badge"
EXTERNAL_ID = "personnel-number-550193"


def create(resources: Resources, name: str, **values: Any) -> None:
    with writing(resources.database) as session:
        session.add(Subject(collection_id="staff", id=name, **values))


def merge(resources: Resources, name: str, into: str) -> float:
    """Merge one subject into another, and return a moment after it."""
    with writing(resources.database) as session:
        merge_subjects(session, "staff", name, into, needs_consent=False)
    return now()


def erase(resources: Resources, name: str = "s0") -> Erasure:
    erasure = erase_subject(resources, name)
    work_until(resources, lambda: read_state(resources, erasure) == "final")
    with reading(resources.database) as session:
        return session.get_one(Erasure, erasure)


def list_people(database: Engine) -> list[str]:
    with Session(database) as session:
        return sorted(session.scalars(select(Subject.id)))


def list_kept_people(resources: Resources, name: str) -> list[str]:
    """List the subjects of a snapshot, which must be whole."""
    folder = locate_snapshot(resources.settings.home, name)
    check_snapshot(folder, quiet)
    rows = create_engine(f"sqlite:///{folder / SnapshotManifest.read(folder).rows_file}")
    try:
        return list_people(rows)
    finally:
        rows.dispose()


def test_who_was_merged_into_an_erased_person_is_erased_from_earlier_snapshots(staff: Resources) -> None:
    create(staff, FIRST_ALIAS, external_id=EXTERNAL_ID, attributes={"badge": BADGE})
    create(staff, ALIAS, external_id=ALIAS)
    take_directly(staff, "before", "staff")
    merge(staff, FIRST_ALIAS, ALIAS)
    take_directly(staff, "between", "staff")
    merge(staff, ALIAS, "s0")
    take_directly(staff, "after", "staff")
    folders = [locate_snapshot(staff.settings.home, name) for name in ("before", "between", "after")]
    assert all(holds(folder, FIRST_ALIAS.encode()) for folder in folders)
    create(staff, FIRST_ALIAS, attributes={"floor": 3})
    take_directly(staff, "later", "staff")
    erasure = erase(staff)
    assert [list_kept_people(staff, name) for name in ("before", "between", "after")] == [["s1"]] * 3
    for text in (ALIAS, FIRST_ALIAS, EXTERNAL_ID, BADGE):
        assert not any(holds(folder, text.encode()) for folder in folders)
    assert list_kept_people(staff, "later") == sorted([FIRST_ALIAS, "s1"]), "somebody else of that id"
    assert list_people(staff.database) == sorted([FIRST_ALIAS, "s1"])
    assert (erasure.targets, erasure.contents["removed"]["snapshots_rewritten"]) == ({}, 4)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_somebody_of_the_same_id_who_was_merged_into_another_before_is_kept_in_snapshots(staff: Resources) -> None:
    create(staff, ALIAS)
    take_directly(staff, "before", "staff")
    merge(staff, ALIAS, "s1")
    create(staff, ALIAS)
    merge(staff, ALIAS, "s0")
    erase(staff)
    assert list_kept_people(staff, "before") == [ALIAS, "s1"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("given_back", [0, 1, 2])
def test_a_merged_person_is_kept_in_snapshots_only_if_all_faces_were_given_back(
    staff: Resources, given_back: int
) -> None:
    take_directly(staff, "before", "staff")
    with reading(staff.database) as session:
        faces = session.scalars(select(Face.pk).join(Subject, Subject.pk == Face.subject_pk).where(Subject.id == "s1"))
        chosen = faces.all()[:given_back]
    merge(staff, "s1", "s0")
    create(staff, "s1")
    with writing(staff.database) as session:
        again = subjects.get_subject(session, "staff", "s1").pk
        named = {"subject_pk": again, "external_image_id": "s1/1.png"}
        session.execute(update(Face).where(Face.pk.in_(chosen)).values(**named))
    erase(staff)
    assert list_kept_people(staff, "before") == ["s1"] * (given_back == 2)
    with reading(staff.database) as session:
        assert session.scalars(select(Face.external_image_id)).all() == ["s1/1.png"] * given_back


def give(resources: Resources, name: str, to: str) -> None:
    """Give all faces of a subject to another."""
    with writing(resources.database) as session:
        pks = [subjects.get_subject(session, "staff", one).pk for one in (name, to)]
        session.execute(update(Face).where(Face.subject_pk == pks[0]).values(subject_pk=pks[1]))


@pytest.mark.parametrize("is_recorded_by_earlier_version", [False, True])
def test_a_merged_person_is_erased_from_snapshots_if_all_faces_there_were_given_to_somebody_else(
    staff: Resources, is_recorded_by_earlier_version: bool
) -> None:
    create(staff, ALIAS, external_id=EXTERNAL_ID, attributes={"badge": BADGE})
    give(staff, "s1", ALIAS)
    folder = take_directly(staff, "before", "staff")
    give(staff, ALIAS, "s1")
    merge(staff, ALIAS, "s0")
    erasure = erase_subject(staff)
    if is_recorded_by_earlier_version:
        with writing(staff.database) as session:
            row = session.get_one(Erasure, erasure)
            [merged] = row.targets["merged"]
            row.targets = row.targets | {"merged": [{n: v for n, v in merged.items() if n != "is_enrolled"}]}
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    is_kept = is_recorded_by_earlier_version
    assert list_kept_people(staff, "before") == [ALIAS] * is_kept + ["s1"]
    assert [holds(folder, text.encode()) for text in (ALIAS, EXTERNAL_ID, BADGE)] == [is_kept] * 3
    assert set(restore_people(staff, folder)) == {ALIAS if is_kept else None}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_texts_are_erased_that_name_a_person_by_an_external_id_of_a_merged_one_or_of_a_snapshot(
    staff: Resources,
) -> None:
    create(staff, ALIAS, external_id=EXTERNAL_ID)
    with writing(staff.database) as session:
        subjects.get_subject(session, "staff", "s0").external_id = BADGE
        reasons = [{"at": now(), "reason": f"as {name} asked"} for name in (EXTERNAL_ID, BADGE)]
        session.scalars(select(Deployment)).one().history = reasons
    folder = take_directly(staff, "before", "staff")
    merge(staff, ALIAS, "s0")
    with writing(staff.database) as session:
        subjects.get_subject(session, "staff", "s0").external_id = "another-badge"
    erase(staff)
    with reading(staff.database) as session:
        kept = [move["reason"] for move in session.scalars(select(Deployment.history)).one()]
    assert kept == ["(erased)", f"as {BADGE} asked"], "nobody knows the external id of before, but the snapshot"
    assert not any(holds(folder, name.encode()) for name in (EXTERNAL_ID, BADGE))


def write_while(resources: Resources, name: str, change: Callable[[], object]) -> Path:
    """Write a snapshot into the home, make a change once its files are copied, and return its folder."""
    home = resources.settings.home

    def change_at_the_end(step: str, done: int, total: int | None) -> None:
        if step == "files" and done == total:
            change()

    write_snapshot(resources.database, home, locate_snapshot(home, name), "staff", change_at_the_end)
    return locate_snapshot(home, name)


def restore_people(resources: Resources, folder: Path) -> dict[str | None, tuple[int, float | None]]:
    """Restore a snapshot beside its collection: the subject of its faces -> how many there are, and `retain_until`."""
    options = RestoreOptions(new_face_ids=True)
    restore_collection(resources.database, resources.settings.home, folder, "staff", "copy", quiet, options)
    chosen = (
        select(Subject.id, Subject.retain_until).select_from(Face).outerjoin(Subject, Subject.pk == Face.subject_pk)
    )
    with reading(resources.database) as session:
        rows = session.execute(chosen.where(Face.collection_id == "copy")).all()
    return {row.id: (rows.count(row), row.retain_until) for row in rows}


def test_who_is_merged_while_a_snapshot_is_written_stays_in_it_as_before(staff: Resources) -> None:
    """The faces were nobody's after a restore, without consent and `retain_until`."""
    retain_until = now() + 9_999
    with writing(staff.database) as session:
        subjects.get_subject(session, "staff", "s1").retain_until = retain_until
    folder = write_while(staff, "during", lambda: merge(staff, "s1", "s0"))
    assert restore_people(staff, folder) == {"s0": (2, retain_until), "s1": (2, retain_until)}
    erase(staff)
    assert list_kept_people(staff, "during") == []


def test_faces_that_are_given_to_another_while_a_snapshot_is_written_are_of_that_one(staff: Resources) -> None:
    retain_until, erased = now() + 9_999, list[str]()
    create(staff, ALIAS, retain_until=retain_until)

    def give_and_erase() -> None:
        give(staff, "s1", ALIAS)
        erased.append(erase_subject(staff, "s1"))

    folder = write_while(staff, "during", give_and_erase)
    assert list_kept_people(staff, "during") == [ALIAS, "s0"]
    work_until(staff, lambda: read_state(staff, erased[0]) == "final")
    assert restore_people(staff, folder) == {"s0": (2, None), ALIAS: (2, retain_until)}


def store_texts(resources: Resources, *moments: float) -> None:
    """Store an answer, failed items of an import, reports and a protocol file that name the alias, at each moment."""
    named, request = {"subject": ALIAS}, {"collection": "staff"}
    files = [{"name": "pairs.txt", "text": f"1\n{ALIAS}\t1\t2\n"}]
    with writing(resources.database) as session:
        for number, at in enumerate(moments):
            values = {"created_at": at, "state": "succeeded"}
            body = request | {"path": f"/photos/{ALIAS}"}
            imported = Job(kind="import", body=body, result=named, problem=named, **values)
            session.add(imported)
            session.flush()
            waiting = jobs.enqueue(session, Evaluate(evaluation=f"e{number}"))
            waiting.not_before = at + 3_600
            session.add_all(
                [
                    JobItem(job_id=imported.id, number=0, name=f"{ALIAS}/1.png", state="failed", detail={}),
                    Training(request=request, report=named, curve=[named], created_at=at),
                    Evaluation(request=request, report=named, created_at=at),
                    Evaluation(
                        id=f"e{number}", request=request | {"files": files}, job_id=waiting.id, created_at=at
                    ),
                    StoredResponse(
                        key_id="k", idempotency_key=str(number), fingerprint="", status=200, collection="staff",
                        headers={"location": f"/v1/collections/staff/subjects/{ALIAS}"}, body=b"{}", created_at=at,
                    ),
                ]
            )  # fmt: skip
        deployment = session.scalars(select(Deployment).where(Deployment.collection_id == "staff")).one()
        deployment.history = [{"at": at, "reason": f"finds {ALIAS} better"} for at in moments]


def read_texts(resources: Resources) -> list[Sequence[Any]]:
    """Read what names the alias: of each kind a list in the order of the moments."""
    is_import, has_files = Job.kind == "import", Evaluation.id.in_(["e0", "e1"])
    columns = [
        select(Job.body).where(is_import).order_by(Job.id),
        select(Job.result).where(is_import).order_by(Job.id),
        select(Job.problem).where(is_import).order_by(Job.id),
        select(JobItem.name).order_by(JobItem.job_id),
        select(Training.report).order_by(Training.created_at),
        select(Training.curve).order_by(Training.created_at),
        select(Evaluation.report).where(~has_files).order_by(Evaluation.created_at),
        select(Evaluation.request).where(has_files).order_by(Evaluation.id),
        select(StoredResponse.headers).order_by(StoredResponse.idempotency_key),
    ]
    with reading(resources.database) as session:
        history = session.scalars(select(Deployment.history).where(Deployment.collection_id == "staff")).one()
        return [*([str(value) for value in session.scalars(column)] for column in columns), [str(m) for m in history]]


@pytest.mark.parametrize("seconds_before_commit", [0, 30])
def test_texts_of_before_a_merge_lose_the_merged_id_and_those_of_later_keep_it(
    staff: Resources, seconds_before_commit: int
) -> None:
    """On PostgreSQL, others read the rows of before for as long as the merge is not committed."""
    create(staff, ALIAS)
    before = now()
    after = merge(staff, ALIAS, "s0")
    create(staff, ALIAS)
    store_texts(staff, before + seconds_before_commit, after + MERGE_COMMIT_SECONDS)
    assert [[ALIAS in text for text in texts] for texts in read_texts(staff)] == [[True, True]] * 10
    erasure = erase_subject(staff)
    work(staff)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert [[ALIAS in text for text in texts] for texts in read_texts(staff)] == [[False, True]] * 10
    with reading(staff.database) as session:
        removed = session.get_one(Erasure, erasure).contents["removed"]
        assert subjects.get_subject(session, "staff", ALIAS).id == ALIAS
    assert (removed["answers"], removed["job_items"]) == (1, 1)
    assert removed["reports"] == 7, "body, result, problem, report, curve, report, history"


def test_a_row_that_names_both_is_counted_once(staff: Resources) -> None:
    create(staff, ALIAS)
    with writing(staff.database) as session:
        session.add(Training(request={"collection": "staff"}, report={"subjects": [ALIAS, "s0", "s1"]}))
    merge(staff, ALIAS, "s0")
    assert erase(staff).contents["removed"]["reports"] == 1
    with reading(staff.database) as session:
        assert session.scalars(select(Training.report)).one() == {"subjects": ["(erased)", "(erased)", "s1"]}


def test_the_receipt_recognises_the_names_of_who_was_merged(staff: Resources) -> None:
    create(staff, ALIAS, external_id=EXTERNAL_ID)
    merge(staff, ALIAS, "s0")
    erasure = erase_subject(staff)
    with reading(staff.database) as session:
        targets = session.get_one(Erasure, erasure).targets
    assert {ALIAS, EXTERNAL_ID} <= set(targets["texts"])
    assert {ALIAS, EXTERNAL_ID}.isdisjoint(targets["names"]), "they are names of somebody else after the merge"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_erasures_that_are_completed_together_are_counted_and_not_their_names(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "MAX_ERASURES", 2)
    for name in ("a", "b", "c"):
        create(staff, name)
    for name in ("d", "e", "f"):
        create(staff, name)
        merge(staff, name, "a")
    erasures = [erase_subject(staff, name) for name in ("a", "b", "c")]
    with writing(staff.database) as session:
        for row in session.scalars(select(Erasure)):
            files = {"photos": 0, "crops": 0, "descriptors": 0}
            row.targets = row.targets | {"removed_files": files, "fingerprints": {}, "unserved_at": now()}
    complete_erasures(context(staff))
    assert [read_state(staff, erasure) == "pending" for erasure in erasures] == [False, False, True]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_erasure_that_an_earlier_version_has_recorded_names_nobody_merged(staff: Resources) -> None:
    erasure = erase_subject(staff)
    with writing(staff.database) as session:
        row = session.get_one(Erasure, erasure)
        row.targets = {name: value for name, value in row.targets.items() if name != "merged"}
        assert ErasedNames.list_of(row) == [ErasedNames.of(row)]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_deleted_collection_takes_the_names_of_merged_people_along(staff: Resources) -> None:
    create(staff, ALIAS)
    with writing(staff.database) as session:
        session.add(Training(request={"collection": "staff"}, report={"subjects": [ALIAS, "another"]}))
    merge(staff, ALIAS, "s0")
    with writing(staff.database) as session:
        delete_collection(session, "staff")
    with reading(staff.database) as session:
        [erasure] = session.scalars(select(Erasure.id))
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    with reading(staff.database) as session:
        assert session.scalars(select(Training.report)).one() == {"subjects": ["(erased)", "another"]}


def read_merged(database: Engine) -> list[str]:
    with Session(database) as session:
        merged = session.scalars(select(Subject.merged_subjects)).all()
    return sorted(one["id"] for entries in merged for one in entries)


@pytest.mark.parametrize("again", [ALIAS, "a-new-id-of-the-alias"])
def test_an_erased_person_stays_in_no_record_of_a_merge_that_was_undone(staff: Resources, again: str) -> None:
    another = "somebody-else"
    create(staff, ALIAS, external_id=EXTERNAL_ID)
    create(staff, another)
    merge(staff, another, "s0")
    merge(staff, ALIAS, "s0")
    create(staff, again, external_id=EXTERNAL_ID)
    folder = take_directly(staff, "undone", "staff")
    assert holds(folder, ALIAS.encode())
    erasure = erase(staff, again)
    assert read_merged(staff.database) == [another]
    assert not any(holds(folder, name.encode()) for name in (ALIAS, EXTERNAL_ID))
    assert holds(folder, another.encode())
    assert erasure.contents["removed"]["snapshots_rewritten"] == 1
    assert list_kept_people(staff, "undone") == ["s0", "s1"]


def test_the_erasure_of_many_merged_people_looks_for_their_ids_with_one_statement(staff: Resources) -> None:
    for name in ("x1", "decompose\u0301"):
        create(staff, name)
    ids = [f"x{n}" for n in range(300)] + ["decompos\u00e9"]
    with writing(staff.database) as session:
        erased = session.scalars(select(Subject).where(Subject.id == "s0")).one()
        erased.merged_subjects = [
            {"pk": n, "id": name, "external_id": None, "created_at": 1.0, "merged_at": 2.0}
            for n, name in enumerate([*ids, "s0"])
        ]
    statements: list[str] = []
    with note_statements(statements):
        erasure = erase_subject(staff)
    assert len([text for text in statements if "FROM subjects" in text]) < 10
    with reading(staff.database) as session:
        merged = session.get_one(Erasure, erasure).targets["merged"]
    assert len(merged) == 302
    assert [one["id"] for one in merged if one["is_enrolled"]] == ["x1", "decompos\u00e9"]


@contextmanager
def note_statements(statements: list[str]) -> Iterator[None]:
    def note(*values: Any) -> None:
        statements.append(values[2])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_snapshot_that_names_an_erased_person_in_the_record_of_a_merge_alone_is_rewritten(staff: Resources) -> None:
    create(staff, ALIAS)
    merge(staff, ALIAS, "s0")
    folder = take_directly(staff, "undone", "staff")
    create(staff, ALIAS)
    erase(staff, ALIAS)
    assert not holds(folder, ALIAS.encode())
    assert list_kept_people(staff, "undone") == ["s0", "s1"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_who_is_merged_after_an_erasure_of_the_same_name_stays_recorded(staff: Resources) -> None:
    create(staff, ALIAS)
    erasure = erase_subject(staff, ALIAS)
    create(staff, ALIAS)
    merge(staff, ALIAS, "s0")
    folder = take_directly(staff, "later", "staff")
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert read_merged(staff.database) == [ALIAS]
    assert holds(folder, ALIAS.encode())


def test_texts_of_before_an_undone_merge_are_erased_with_either(staff: Resources) -> None:
    """The person into whom the erased one was merged by mistake does not know of it any more."""
    create(staff, "an-earlier-id", external_id=ALIAS)
    with writing(staff.database) as session:
        session.add(Training(request={"collection": "staff"}, report={"subjects": ["an-earlier-id", "s1"]}))
    merge(staff, "an-earlier-id", "s0")
    create(staff, ALIAS, external_id=ALIAS)
    erase(staff, ALIAS)
    with reading(staff.database) as session:
        assert session.scalars(select(Training.report)).one() == {"subjects": ["(erased)", "s1"]}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_restored_person_still_records_who_was_merged(staff: Resources) -> None:
    create(staff, ALIAS, external_id=EXTERNAL_ID)
    merge(staff, ALIAS, "s0")
    folder = take_directly(staff, "after", "staff")
    erase(staff, "s1")
    options = RestoreOptions(new_face_ids=True)
    restore_collection(staff.database, staff.settings.home, folder, "staff", "copy", quiet, options)
    with reading(staff.database) as session:
        [source, copy] = session.scalars(select(Subject).where(Subject.id == "s0").order_by(Subject.pk))
        assert source.merged_subjects == copy.merged_subjects
        assert [merged["id"] for merged in copy.merged_subjects] == [ALIAS]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_snapshot_of_an_earlier_version_is_restored_and_erased_from(staff: Resources) -> None:
    create(staff, ALIAS)
    folder = take_directly(staff, "before", "staff")
    command.downgrade(make_config(f"sqlite:///{folder / ROWS}"), "0027")
    manifest = SnapshotManifest.read(folder)
    replace(manifest, schema="0027", rows_sha256=hash_file(folder / ROWS)).write(folder)
    merge(staff, ALIAS, "s0")
    erase(staff)
    assert list_kept_people(staff, "before") == ["s1"]
    options = RestoreOptions(new_face_ids=True)
    restored = restore_collection(staff.database, staff.settings.home, folder, "staff", "copy", quiet, options)
    assert restored.faces == 2

"""What scrubbing removes from answers, job items and reports, and what it leaves. No job runs."""

import gc
import json
import time
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from weakref import WeakSet

import pytest
from sqlalchemy import delete, event, select, update

from app.collections.service import delete_collection
from app.db.session import reading, writing
from app.db.tables import (
    Collection,
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
from app.galleries import answer_scrubbing, erasures, scrubbing, subjects
from app.galleries.answer_scrubbing import scrub_answers
from app.galleries.erased_names import NAME_FIELDS, ErasedNames, has_form, scrub
from app.galleries.protocol_files import scrub_queued_evaluations
from app.galleries.scrubbing import scrub_job_items, scrub_reports
from app.publishing import pointers
from app.queue.messages import Erase, Evaluate, Sweep
from app.resources import Resources
from app.snapshots.erased_rows import erase_from_rows
from app.storage.model_cache import LBP_MODEL
from tests.databases import is_write_locked
from tests.workers.test_erase import context
from workers.context import Interrupted, JobContext

FACE, OTHER_FACE = (f"{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "ab")
REQUESTED_AT = 1_000.0


def proceed() -> None:
    """Let the work go on."""


def erased(**values: Any) -> ErasedNames:
    """The names of an erasure of the subject ann, with one face, in the collection staff."""
    usual = {
        "erasure_id": "e1", "collection": "staff", "is_whole": False, "until": REQUESTED_AT,
        "faces": frozenset({FACE}), "subject": "ann", "names": frozenset({"ann", "badge-1"}),
    }  # fmt: skip
    return ErasedNames(**usual | values)


@pytest.fixture
def resources(lasting_sqlite: Resources) -> Iterator[Resources]:
    yield lasting_sqlite
    with writing(lasting_sqlite.database) as session:
        for table in (StoredResponse, JobItem, Job, Training, Evaluation, Erasure, Face, Deployment, Collection):
            session.execute(delete(table))


def interrupted(resources: Resources) -> JobContext:
    stopped = context(resources)
    stopped.interrupted.set()
    return stopped


def test_the_names_are_read_from_the_targets_of_an_erasure() -> None:
    targets = {"faces": [FACE], "subject": "ann", "names": ["ann", "badge-1"], "images": ["i"]}
    row = Erasure(id="e1", collection_id="staff", target="subject", requested_at=REQUESTED_AT, targets=targets)
    assert ErasedNames.of(row) == erased()
    row.target = "collection"
    assert ErasedNames.of(row) == erased(is_whole=True)


@pytest.mark.parametrize("field", sorted(NAME_FIELDS))
def test_a_name_is_replaced_in_the_fields_that_hold_names(field: str) -> None:
    report = {field: "ann", "list": [{field: ["bob", "badge-1"]}]}
    assert scrub(report, erased()) == {field: "(erased)", "list": [{field: ["bob", "(erased)"]}]}


def test_a_name_is_kept_where_it_is_another_word() -> None:
    report = {"task": "ann", "subjects": ["annabel", {"task": "ann"}], "count": 3, "share": None, "ann": "ann"}
    assert scrub(report, erased()) == report
    assert scrub("ann", erased()) == "ann"


def test_a_name_is_replaced_where_it_is_a_folder_of_a_photo() -> None:
    """The photo may have been given to somebody else since."""
    entry = {"external_image_id": "photos/ann/1.png", "subject": "bob"}
    assert scrub(entry, erased()) == {"external_image_id": "(erased)", "subject": "bob"}
    assert scrub({"external_image_id": "ann-maria/1.png"}, erased()) == {"external_image_id": "ann-maria/1.png"}


def test_a_quoted_subject_and_the_id_of_a_face_are_replaced_in_any_text() -> None:
    report = {"advice": "merge 'ann' into 'bob'", "why": f"like face {FACE}", "faces": [FACE, OTHER_FACE]}
    scrubbed = {"advice": "(erased)", "why": "(erased)", "faces": ["(erased)", OTHER_FACE]}
    assert scrub(report, erased()) == scrubbed
    without_subject = erased(subject=None, names=frozenset())
    assert scrub(report, without_subject) == scrubbed | {"advice": report["advice"]}
    assert scrub({"why": f"like {OTHER_FACE}"}, erased()) == {"why": f"like {OTHER_FACE}"}


@pytest.mark.parametrize(
    ("subject", "text", "is_named"),
    [
        ("Ada Example", "photo Ada_Example/Ada_Example_0001.jpg", True),
        ("Ada Example", "of ada.example", True),
        ("Ada Example", "of Ada Examples", False),
        ("Zoë", "of Zoe\u0308, decomposed", True),
        ('A "B" C', json.dumps(json.dumps('so\nA "B" C')), True),
        ("ann", "1\\nann\\t2", True),
        ("ann", "/v1/x%2Fann", True),
        ("ann", "annabel and joann", False),
        ("17", "17 faces", False),
        ("55019", "number 55019", True),
        ("---", "a --- b", True),
        ("...", "a b", False),
        ("王小明", "按王小明的要求重新发布", True),
        ("王小明", json.dumps("按王小明的要求"), True),
        ("王小明", quote("按王小明的要求"), True),
        ("王小明", "按王小亮的要求", False),
        ("王伟", "王伟/x.png", True),
        ("王", "王伟", False),
        ("김철수", "김철수를 위해 다시 게시", True),
        ("김철수", unicodedata.normalize("NFD", "김철수를 위해"), True),
        ("山田 太郎", "写真は山田・太郎さんです", True),
        ("タナカ", "ﾀﾅｶさん", True),
        ("สมชาย", "รูปของสมชายคนนี้", True),
        ("王小明-1", "给王小明-1看", True),
        ("王小明-1", "给王小明-12看", False),
        ("ada-01", "由ada-01确认", True),
        ("ada-01", json.dumps("由ada-01确认"), True),
        ("Li", "for Li as asked", False),
    ],
)
def test_a_subject_is_recognised_as_words_of_a_text(subject: str, text: str, is_named: bool) -> None:
    assert erased(subject=subject).has_subject(text) == is_named
    assert (scrub({"detail": text}, erased(subject=subject, names=frozenset())) == {"detail": "(erased)"}) == is_named


def test_a_text_without_spaces_is_looked_through_where_its_script_has_none(resources: Resources) -> None:
    ming = erased(subject="王小明", names=frozenset({"王小明"}))
    assert scrub({"why": "王小明已确认", "subject": "王小明子"}, ming) == {"why": "(erased)", "subject": "王小明子"}
    store_answer(resources, "free text", {"why": "王小明已确认"})
    store_answer(resources, "another", {"why": "王小亮已确认"})
    assert scrub_answers(resources.database, [ming], proceed) == {"e1": 1}


@pytest.mark.parametrize(
    ("external_id", "value", "is_named"),
    [
        ("personnel-550193", {"reason": "as personnel-550193 asked"}, True),
        ("personnel-550193", {"detail": "'scans/personnel-550193.png' is a link"}, True),
        ("personnel-550193", {"path": "/photos/Personnel_550193/1.png"}, True),
        ("7", {"path": "photos/7/1.png", "detail": "no photo of '7', and 7 of 9"}, False),
        ("7", {"external_id": "7"}, True),
    ],
)
def test_a_subject_is_recognised_by_its_external_id(external_id: str, value: dict[str, str], is_named: bool) -> None:
    targets = {"faces": [], "subject": "ann", "names": ["ann", external_id], "external_id": external_id}
    [named] = ErasedNames.list_of(Erasure(id="e1", collection_id="staff", requested_at=REQUESTED_AT, targets=targets))
    assert scrub(value, named) == (dict.fromkeys(value, "(erased)") if is_named else value)


def test_a_short_subject_is_recognised_where_a_name_stands_alone() -> None:
    short = erased(subject="o1", names=frozenset({"o1"}))
    named = {"missing_queries": ["o1/o1_0001.jpg", "o2/o1.jpg"], "subject": "o1", "detail": "no photo of 'o1'"}
    assert scrub(named, short) == {
        "missing_queries": ["(erased)", "o2/o1.jpg"], "subject": "(erased)", "detail": "(erased)",
    }  # fmt: skip
    assert scrub({"detail": "o1 of 3"}, short) == {"detail": "o1 of 3"}


def test_the_name_of_a_file_is_recognised_by_one_word_of_the_subject() -> None:
    ada = erased(subject="Ada Example")
    assert [ada.shares_word(name) for name in ("Example", "of_ada-example", "ada", "examples", "pairs")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert not erased(subject=None).shares_word("Example")
    taro = erased(subject="山田 太郎")
    assert [taro.shares_word(name) for name in ("山田", "pairs-of-太郎", "山口")] == [True, True, False]


def test_somebody_whose_name_begins_with_the_same_word_is_kept(resources: Resources) -> None:
    other = {"subject": "ann-maria", "subjects": ["ann", "ann maria"], "external_image_id": "ann-maria/1.png"}
    assert scrub(other, erased()) == other | {"subjects": ["(erased)", "ann maria"]}
    store_answer(resources, "other", {"subject": "ann-maria"})
    assert scrub_answers(resources.database, [erased()], proceed) == {"e1": 0}


def store_answer(resources: Resources, name: str, body: Any, **values: Any) -> None:
    usual = {"key_id": "k", "fingerprint": "", "status": 200, "headers": {"location": "/x"}, "created_at": 0.0}
    encoded = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    with writing(resources.database) as session:
        session.add(StoredResponse(idempotency_key=name, body=encoded, **usual | values))


def list_erased(resources: Resources) -> list[str]:
    """List the names of the answers that are erased, and check that nothing is left of them."""
    with reading(resources.database) as session:
        rows = session.scalars(select(StoredResponse).where(StoredResponse.status == 410)).all()
    assert all((row.headers, row.body) == ({}, b"") for row in rows if row.idempotency_key != "erased before")
    return sorted(row.idempotency_key for row in rows)


def test_answers_that_name_a_face_or_a_person_are_erased_and_counted(resources: Resources) -> None:
    store_answer(resources, "face", {"matches": [{"face_id": FACE}]})
    store_answer(resources, "name", {"external_id": "badge-1"})
    store_answer(resources, "folder", {"subject": "bob", "external_image_id": "photos/ann/1.jpg"})
    store_answer(resources, "other folder", {"subject": "bob", "external_image_id": "photos/ann-maria/ann.jpg"})
    store_answer(resources, "other", {"face_id": OTHER_FACE, "subject": "annabel", "note": f"not {FACE}"})
    store_answer(resources, "bytes", b'{"\xff": "' + b"\xfe" * 9)
    store_answer(resources, "running", {"subject": "ann"}, status=None)
    store_answer(resources, "erased before", {"subject": "ann"}, status=410)
    assert scrub_answers(resources.database, [erased()], proceed) == {"e1": 3}
    assert list_erased(resources) == ["erased before", "face", "folder", "name"]
    assert scrub_answers(resources.database, [erased()], proceed) == {"e1": 0}


@pytest.mark.parametrize("subject", ['Anna "Nan" Li', "Zoë", "李安娜 😀", r"back\slash", "a/b", "tab\there"])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_a_name_is_recognised_in_an_answer_however_json_writes_it(
    resources: Resources, subject: str, is_ascii: bool
) -> None:
    store_answer(resources, "name", json.dumps({"subject": subject}, ensure_ascii=is_ascii).encode())
    store_answer(resources, "slash", json.dumps({"s": subject}).replace("/", "\\/").encode())
    named = erased(subject=subject, names=frozenset({subject}))
    assert scrub_answers(resources.database, [named], proceed) == {"e1": 2}


def test_each_answer_counts_for_the_first_erasure_that_it_is_about(resources: Resources) -> None:
    store_answer(resources, "both", ["ann", "bob"])
    store_answer(resources, "second", ["bob"])
    both = [erased(), erased(erasure_id="e2", names=frozenset({"bob"}))]
    assert scrub_answers(resources.database, both, proceed) == {"e1": 1, "e2": 1}
    assert scrub_answers(resources.database, [], proceed) == {}


def test_answers_are_read_in_steps_and_none_is_left_out(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_scrubbing, "ROWS_PER_STEP", 1)
    for key in ("00f3", "k2"):
        for name in "ab":
            store_answer(resources, name, ["ann"], key_id=key)
    with pytest.raises(Interrupted):
        scrub_answers(resources.database, [erased()], interrupted(resources).check)
    assert list_erased(resources) == []
    assert scrub_answers(resources.database, [erased()], proceed) == {"e1": 4}
    assert list_erased(resources) == ["a", "a", "b", "b"]


def test_answers_of_a_deleted_collection_are_erased_if_they_are_older(resources: Resources) -> None:
    with writing(resources.database) as session:
        session.add(Collection(id="other", change=0))
        session.flush()
        face = {"image_id": "i", "bounding_box": {}, "landmarks": [], "quality": {}, "change": 0}
        session.add(Face(face_id=OTHER_FACE, collection_id="other", **face))
    store_answer(resources, "own", [], collection="staff", created_at=REQUESTED_AT)
    store_answer(resources, "later", [], collection="staff", created_at=REQUESTED_AT + 1)
    store_answer(resources, "of another", [FACE[::-1]], collection="other")
    store_answer(resources, "lost face", [OTHER_FACE, "c" + FACE[1:]])
    store_answer(resources, "stored face", [OTHER_FACE])
    store_answer(resources, "no face", ["x"])
    whole = erased(is_whole=True, faces=frozenset(), subject=None, names=frozenset({"bob"}))
    store_answer(resources, "later, by name", ["bob"], collection="staff", created_at=REQUESTED_AT + 1)
    assert scrub_answers(resources.database, [whole], proceed) == {"e1": 3}
    assert list_erased(resources) == ["later, by name", "lost face", "own"]
    named = erased(faces=frozenset(), names=frozenset())
    assert scrub_answers(resources.database, [named], proceed) == {"e1": 0}, (
        "only a whole collection takes answers by their age"
    )


def test_answers_from_while_a_collection_was_being_deleted_are_erased(resources: Resources) -> None:
    for name, seconds in (("meanwhile", 1), ("later", 3)):
        store_answer(resources, name, [], collection="staff", created_at=REQUESTED_AT + seconds)
    whole = erased(is_whole=True, faces=frozenset(), subject=None, names=frozenset(), begun_at=REQUESTED_AT + 2)
    assert scrub_answers(resources.database, [whole], proceed) == {"e1": 1}
    assert list_erased(resources) == ["meanwhile"]


def store_job(resources: Resources, *items: tuple[str, dict[str, Any]], state: str = "done", **values: Any) -> str:
    usual = {"kind": "import", "body": {"collection": "staff"}, "created_at": REQUESTED_AT}
    with writing(resources.database) as session:
        session.add(job := Job(**usual | values))
        session.flush()
        for number, (name, detail) in enumerate(items):
            session.add(JobItem(job_id=job.id, number=number, name=name, state=state, detail=detail))
        return job.id


def read_items(resources: Resources, job: str) -> list[tuple[str, dict[str, Any]]]:
    with reading(resources.database) as session:
        rows = session.scalars(select(JobItem).where(JobItem.job_id == job).order_by(JobItem.number))
        return [(row.name, row.detail) for row in rows]


GONE = ("(erased)", {"reasons": ["(erased)"]})
OWN_ITEMS = [
    ("1.png", {"face_ids": [OTHER_FACE, FACE]}),
    ("badge-1", {}),
    ("people/ann/2.png", {"reasons": ["no face"]}),
]
OTHER_ITEMS = [("bob/ann", {}), ("annabel/1.png", {"face_ids": [OTHER_FACE]}), ("ann.png", {})]


def test_items_that_name_a_face_or_a_person_are_erased(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    job = store_job(resources, *OWN_ITEMS, *OTHER_ITEMS)
    with pytest.raises(Interrupted):
        scrub_job_items(resources.database, [erased()], interrupted(resources).check)
    assert sum(scrub_job_items(resources.database, [erased()], proceed).values()) == 3
    assert read_items(resources, job) == [GONE, GONE, GONE, *OTHER_ITEMS]
    assert sum(scrub_job_items(resources.database, [erased()], proceed).values()) == 0
    monkeypatch.setattr(scrubbing, "ROWS_PER_STEP", 1)
    many = [store_job(resources, *OTHER_ITEMS, *OWN_ITEMS) for _ in range(2)]
    assert sum(scrub_job_items(resources.database, [erased()], proceed).values()) == 6
    assert [read_items(resources, job) for job in many] == [[*OTHER_ITEMS, GONE, GONE, GONE]] * 2
    nobody = erased(subject=None, names=frozenset(), faces=frozenset())
    assert sum(scrub_job_items(resources.database, [nobody], proceed).values()) == 0


def test_items_of_many_jobs_are_read_together(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    """The imports of a day are looked through for each erasure, and each may be of a few photos."""
    jobs = [store_job(resources, *OWN_ITEMS, *OTHER_ITEMS) for _ in range(30)]
    names = erased(subject=None, faces=frozenset(), names=frozenset({"badge-1"}))
    reads = list[str]()

    def note(*values: Any) -> None:
        reads.extend([values[2]] if values[2].startswith("SELECT") else [])

    event.listen(resources.database, "before_cursor_execute", note)
    try:
        assert scrub_job_items(resources.database, [names], proceed) == {"e1": 30}
        assert len(reads) == 2
        monkeypatch.setattr(scrubbing, "ROWS_PER_STEP", 50)  # ends within a job
        assert scrub_job_items(resources.database, [erased()], proceed) == {"e1": 60}
    finally:
        event.remove(resources.database, "before_cursor_execute", note)
    assert all(read_items(resources, job) == [GONE, GONE, GONE, *OTHER_ITEMS] for job in jobs)


NORMAL_FORMS = ["NFC", "NFD", "NFKC", "NFKD"]


@pytest.mark.parametrize("form", NORMAL_FORMS)
@pytest.mark.parametrize("subject", ["Zoë", 'O\'Brüen "Q"', "İpek", "ﬁlip", "Å1"])
def test_a_subject_is_recognised_in_every_normal_form(resources: Resources, subject: str, form: Any) -> None:
    photo = f"Photo of {subject}.jpg"
    written, photo_written = (unicodedata.normalize(form, text) for text in (subject, photo))
    own = [(f"{written}/bad.png", {"reasons": ["INVALID_PHOTO"]}), (f"2/ {written} /3.png", {}), (photo_written, {})]
    others = [(f"{written}2/1.png", {}), (f"of {written}/1.png", {})]
    job = store_job(resources, *own, *others)
    store_answer(resources, "subject", {"subject": written})
    named = ErasedNames.of(
        Erasure(
            id="e1", collection_id="staff", target="subject", requested_at=REQUESTED_AT,
            targets={"faces": [], "subject": subject, "names": [subject, photo]},
        )
    )  # fmt: skip
    assert sum(scrub_job_items(resources.database, [named], proceed).values()) == 3
    assert read_items(resources, job) == [GONE, GONE, GONE, *others]
    assert scrub_answers(resources.database, [named], proceed) == {"e1": 1}
    report = {"subjects": [written], "advice": f"merge {written!r} into 'bob'"}
    assert scrub(report, named) == {"subjects": ["(erased)"], "advice": "(erased)"}


def test_items_of_a_deleted_collection_are_all_erased(resources: Resources) -> None:
    job = store_job(resources, *OTHER_ITEMS)
    assert sum(scrub_job_items(resources.database, [erased(is_whole=True)], proceed).values()) == 3
    assert read_items(resources, job) == [GONE] * 3


@pytest.mark.parametrize(
    "values",
    [
        {"body": {"collection": "other"}},
        {"body": {}},
        {"created_at": REQUESTED_AT + 1},
        {"kind": "erase"},
        {"kind": "sweep"},
        {"state": "queued"},
    ],
    ids=str,
)
def test_items_of_others_and_of_what_is_to_come_are_kept(resources: Resources, values: dict[str, Any]) -> None:
    job = store_job(resources, *OWN_ITEMS, **values)
    assert sum(scrub_job_items(resources.database, [erased(is_whole=True)], proceed).values()) == 0
    assert read_items(resources, job) == OWN_ITEMS


FAILED_ITEMS = [
    ("ann.png", {"reasons": ["INVALID_PHOTO"]}),
    ("scan of Ann 2.png", {"reasons": ["DUPLICATE"], "face_ids": [OTHER_FACE]}),
    ("x/personnel-550193-2.png", {"reasons": ["no face"]}),
    ("annabel.png", {"reasons": ["no face"]}),
]


def test_failed_items_are_erased_if_the_name_of_the_file_names_the_person(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of the archive said who it was, and the items do not."""
    named = erased(names=frozenset({"ann", "personnel-550193"}), other_ids=frozenset({"personnel-550193"}))
    job = store_job(resources, *FAILED_ITEMS, state="failed")
    done = store_job(resources, *OTHER_ITEMS)
    folds = list[str]()
    monkeypatch.setattr(scrubbing, "fold", lambda text: folds.append(text) or text.casefold())
    others = [erased(subject=f"number-{number}", names=frozenset(), faces=frozenset()) for number in range(9)]
    assert scrub_job_items(resources.database, [*others, named], proceed) == {"e1": 3}
    assert read_items(resources, job) == [GONE, GONE, GONE, FAILED_ITEMS[-1]]
    assert read_items(resources, done) == OTHER_ITEMS
    assert len(folds) == len(FAILED_ITEMS), "each name is folded once"


UPLOADED = {"collection": "staff", "path": "/gone", "remove_after": True, "source": "camera of ann"}


def store_import(
    resources: Resources, state: str, *items: tuple[str, str, dict[str, Any]], part_state: str | None = None
) -> str:
    """Store an import with a part, if it has a state, and items: (state, name, detail)."""
    with writing(resources.database) as session:
        session.add(job := Job(kind="import", body=UPLOADED, state=state, created_at=REQUESTED_AT))
        session.flush()
        for number, (item_state, name, detail) in enumerate(items):
            session.add(JobItem(job_id=job.id, number=number, name=name, state=item_state, detail=detail))
        if part_state is not None:
            session.add(Job(kind="ingest", body={}, state=part_state, parent_id=job.id, created_at=REQUESTED_AT))
        return job.id


@pytest.mark.parametrize("state", ["cancelled", "failed"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_items_that_an_ended_import_never_reached_are_erased(resources: Resources, state: str, is_whole: bool) -> None:
    """They stay queued, and so does their entry of the manifest, which may name the person."""
    listed = [
        ("ann/1.png", {"place": [0], "size": 9, "subject": "ann"}),
        ("1.png", {"place": [1], "size": 9, "subject": "ann"}),
        ("2.png", {"place": [2], "size": 9, "subject": "bob", "external_id": "badge-1"}),
        ("3.png", {"place": [3], "size": 9, "subject": "bob", "metadata": {"of": "sister of ann"}}),
        ("4.png", {"place": [4], "size": 9, "subject": "bob"}),
    ]
    job = store_import(resources, state, *(("queued", *item) for item in listed), part_state="succeeded")
    count = 5 if is_whole else 4
    assert scrub_job_items(resources.database, [erased(is_whole=is_whole)], proceed) == {"e1": count}
    assert read_items(resources, job) == [GONE] * count + listed[count:]


@pytest.mark.parametrize(("import_state", "part_state"), [("running", None), ("cancelled", "running")])
def test_items_that_an_import_has_still_to_enrol_are_kept_but_in_a_snapshot(
    resources: Resources, import_state: str, part_state: str | None
) -> None:
    """A restore cancels the jobs that ran when the snapshot was taken."""
    items = (("done", "ann/0.png", {}), ("queued", "ann/1.png", {}))
    job = store_import(resources, import_state, *items, part_state=part_state)
    assert scrub_job_items(resources.database, [erased()], proceed) == {"e1": 1}
    assert read_items(resources, job) == [GONE, ("ann/1.png", {})]
    assert erase_from_rows(resources.database, [erased()], proceed) == {"e1"}
    assert read_items(resources, job) == [GONE, GONE]
    with reading(resources.database) as session:
        assert session.get_one(Job, job).body["source"] == "(erased)"


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(
    ("kind", "is_there", "is_kept"),
    [("import", True, True), ("import", False, False), ("folder", True, False), ("import-embeddings", True, True)],
)
def test_an_ended_import_keeps_the_path_of_an_upload_that_is_still_there(
    resources: Resources, tmp_path: Path, kind: str, is_there: bool, is_kept: bool, is_whole: bool
) -> None:
    """Whoever removes uploads finds them by it."""
    upload = tmp_path / "ann" / "upload"
    upload.parent.mkdir()
    if is_there:
        upload.touch()
    body = UPLOADED | {"path": str(upload), "remove_after": kind != "folder"}
    with writing(resources.database) as session:
        kind = kind.replace("folder", "import")
        session.add(row := Job(kind=kind, body=body, state="cancelled", created_at=REQUESTED_AT))
    scrub_reports(resources.database, [erased(is_whole=is_whole)])
    with reading(resources.database) as session:
        assert session.get_one(Job, row.id).body["path"] == (str(upload) if is_kept else "(erased)")


def store_reports(resources: Resources, collection: str, created_at: float = REQUESTED_AT) -> None:
    """Store everything that may hold a report, with the subject ann in each."""
    named = {"subject": "ann", "n": 1}
    request = {"collection": collection}
    with writing(resources.database) as session:
        session.add(Collection(id=collection, change=0))
        session.flush()
        session.add_all(
            [
                Job(kind="examine", body=request, result=named, created_at=created_at),
                Job(kind="examine", body=request, problem=named, created_at=created_at),
                Training(request=request, report=named, curve=[named]),
                Evaluation(request=request, report=named),
                Deployment(collection_id=collection, task="identity", champion=LBP_MODEL, history=[named]),
            ]
        )


def read_reports(resources: Resources, collection: str) -> list[Any]:
    request = {"collection": collection}
    with reading(resources.database) as session:
        jobs = session.scalars(select(Job).where(Job.body["collection"].as_string() == collection).order_by(Job.id))
        first, second = jobs.all()
        [training] = [row for row in session.scalars(select(Training)) if row.request == request]
        [evaluation] = [row for row in session.scalars(select(Evaluation)) if row.request == request]
        history = session.get_one(Deployment, (collection, "identity")).history
        values = [first.result, second.problem, training.report, evaluation.report, training.curve[0], history[0]]
        assert (first.problem, second.result) == (None, None)
        return values


def test_results_problems_reports_curves_and_histories_are_scrubbed(resources: Resources) -> None:
    for collection in ("staff", "other"):
        store_reports(resources, collection)
    assert sum(scrub_reports(resources.database, [erased()]).values()) == 6
    assert read_reports(resources, "staff") == [{"subject": "(erased)", "n": 1}] * 6
    assert read_reports(resources, "other") == [{"subject": "ann", "n": 1}] * 6
    assert sum(scrub_reports(resources.database, [erased()]).values()) == 0, "nothing changes any more"


def test_results_of_later_jobs_are_kept(resources: Resources) -> None:
    store_reports(resources, "staff", created_at=REQUESTED_AT + 1)
    assert sum(scrub_reports(resources.database, [erased()]).values()) == 4
    assert read_reports(resources, "staff")[:2] == [{"subject": "ann", "n": 1}] * 2


def test_all_results_of_a_deleted_collection_are_erased(resources: Resources) -> None:
    store_reports(resources, "staff")
    with writing(resources.database) as session:
        session.add(Job(kind="examine", body={"collection": "staff"}, result={}, created_at=0.0))
    whole = erased(is_whole=True, faces=frozenset(), subject=None, names=frozenset())
    assert sum(scrub_reports(resources.database, [whole]).values()) == 2
    with reading(resources.database) as session:
        results = session.scalars(select(Job.result).where(Job.result.is_not(None))).all()
    assert sorted(results, key=str) == [{"erased": True}, {}]
    kept = [{"subject": "ann", "n": 1}] * 4
    with reading(resources.database) as session:
        training, evaluation = session.scalars(select(Training)).one(), session.scalars(select(Evaluation)).one()
        assert [training.report, training.curve[0], evaluation.report] == kept[:3]


@pytest.mark.parametrize(
    ("faces", "subject", "changes"), [({FACE}, None, 0), (set(), "ann", 6), (set(), None, 0)], ids=str
)
def test_reports_are_scrubbed_by_whatever_is_erased(
    resources: Resources, faces: set[str], subject: str | None, changes: int
) -> None:
    store_reports(resources, "staff")
    names = erased(faces=frozenset(faces), subject=subject, names=frozenset({"ann"} if subject else ()))
    assert sum(scrub_reports(resources.database, [names]).values()) == changes


@contextmanager
def count_loaded(table: type[Job | Erasure]) -> Iterator[list[int]]:
    """Yield how many rows of a table were in memory each time that another was read."""
    alive, counts = WeakSet[Any](), list[int]()

    def note_row(row: Any, _: object) -> None:
        alive.add(row)
        counts.append(len(alive))

    event.listen(table, "load", note_row)
    try:
        yield counts
    finally:
        event.remove(table, "load", note_row)


def test_results_of_earlier_erasures_are_not_read(resources: Resources) -> None:
    """They name nobody, and a day's deletions leave thousands, which every erasure would read."""
    with writing(resources.database) as session:
        for kind in (Erase.kind, Sweep.kind):
            results = {"body": {"collection": "staff"}, "state": "succeeded", "result": {"files": 3}, "created_at": 0.0}
            session.add(Job(kind=kind, **results))
    with count_loaded(Job) as counts:
        scrub_reports(resources.database, [erased()])
    assert counts == []


def test_erasures_are_not_read_where_no_evaluation_waits(resources: Resources) -> None:
    targets = {"faces": [FACE], "subject": None, "names": [], "images": []}
    with writing(resources.database) as session:
        usual = {"collection_created_at": 1.0, "change": 1, "first_change": 1, "requested_at": REQUESTED_AT}
        session.add(Erasure(collection_id="staff", target="face", targets=targets, **usual))
    with count_loaded(Erasure) as counts:
        scrub_queued_evaluations(resources.database)
    assert counts == []
    with writing(resources.database) as session:
        job = Job(kind=Evaluate.kind, body={}, queue="training")
        session.add(job)
        session.flush()
        session.add(Evaluation(request={"collection": "staff"}, job_id=job.id))
    with count_loaded(Erasure) as counts:
        scrub_queued_evaluations(resources.database)
    assert counts == [1]


def test_results_are_read_in_steps(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "ROWS_PER_STEP", 10)
    with writing(resources.database) as session:
        for _ in range(100):
            session.add(Job(kind="import", body={"collection": "staff"}, result={"subject": "bob"}, created_at=0.0))
    with count_loaded(Job) as counts:
        scrub_reports(resources.database, [erased()])
    assert len(counts) == 100
    assert max(counts) <= 20


@pytest.fixture
def looks(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What was looked through for the subject, and whether others could not write meanwhile."""
    looks, has_subject = list[tuple[str, bool]](), ErasedNames.has_subject

    def look(names: ErasedNames, text: str, *folded: str) -> bool:
        looks.append((text, is_write_locked(resources)))
        return has_subject(names, text, *folded)

    monkeypatch.setattr(ErasedNames, "has_subject", look)
    return looks


def test_others_can_write_while_answers_and_reports_are_looked_through(
    resources: Resources, looks: list[tuple[str, bool]]
) -> None:
    store_reports(resources, "staff")
    for number, text in enumerate(["so is ann", "so is bob"] * 2):
        store_answer(resources, str(number), {"detail": text})
        with writing(resources.database) as session:
            results = {"result": {"detail": text}, "created_at": 0.0}
            session.add(Job(kind="examine", body={"collection": "staff"}, state="succeeded", **results))
    assert scrub_answers(resources.database, [erased()], proceed) == {"e1": 2}
    assert scrub_reports(resources.database, [erased()]) == {"e1": 8}
    assert [text for text, _ in looks].count("so is bob") == 4
    assert not any(is_locked for _, is_locked in looks)


@pytest.mark.parametrize("state", ["succeeded", "queued"])
def test_only_evaluations_with_names_keep_others_from_writing(
    resources: Resources, looks: list[tuple[str, bool]], state: str
) -> None:
    queued = {"first_change": 1, "requested_at": REQUESTED_AT, "collection_created_at": 1.0, "change": 1}
    targets = {"faces": [], "subject": "ann", "names": [], "images": [], "until": REQUESTED_AT}
    with writing(resources.database) as session:
        session.add(Erasure(collection_id="staff", target="subject", targets=targets, **queued))
        for text in ("of ann", "(erased)", "of ann too", "(erased)"):
            files = [{"name": "erased" if text == "(erased)" else "pairs", "text": text}]
            session.add(job := Job(kind=Evaluate.kind, body={}, state=state))
            session.flush()
            session.add(Evaluation(request={"collection": "staff", "files": files}, job_id=job.id))
    if state == "queued":
        scrub_queued_evaluations(resources.database)
    else:
        assert scrub_reports(resources.database, [erased()]) == {"e1": 2}
    with reading(resources.database) as session:
        assert {row.request["files"][0]["text"] for row in session.scalars(select(Evaluation))} == {"(erased)"}
    texts = {"of ann", "of ann too"} if state == "queued" else set[str]()
    assert {text for text, is_locked in looks if is_locked} == {"pairs", *texts}
    assert {text for text, is_locked in looks if not is_locked} > {"pairs", *texts}


@pytest.mark.parametrize("state", ["cancelled", "queued"])
def test_the_files_of_evaluations_from_while_a_collection_was_being_deleted_are_erased(
    resources: Resources, state: str
) -> None:
    files = [{"name": "pairs", "text": "ann/1.jpg"}]
    queued = {"first_change": 1, "requested_at": REQUESTED_AT, "collection_created_at": 1.0, "change": 1}
    targets = {"faces": [], "subject": None, "names": [], "until": REQUESTED_AT, "begun_at": REQUESTED_AT + 2}
    with writing(resources.database) as session:
        session.add(erasure := Erasure(collection_id="staff", target="collection", targets=targets, **queued))
        for seconds in (1, 3):
            session.add(job := Job(kind=Evaluate.kind, body={}, state=state))
            session.flush()
            request = {"collection": "staff", "files": files}
            session.add(Evaluation(request=request, job_id=job.id, created_at=REQUESTED_AT + seconds))
    if state == "queued":
        scrub_queued_evaluations(resources.database)
    else:
        scrub_reports(resources.database, [ErasedNames.of(erasure)])
    with reading(resources.database) as session:
        requests = session.scalars(select(Evaluation.request).order_by(Evaluation.created_at)).all()
    assert [request["files"][0]["text"] for request in requests] == ["(erased)", "ann/1.jpg"]


def change_when_first_read(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    changes, has_subject = [change], ErasedNames.has_subject

    def change_once(names: ErasedNames, *texts: str) -> bool:
        while changes:
            changes.pop()()
        return has_subject(names, *texts)

    monkeypatch.setattr(ErasedNames, "has_subject", change_once)


@pytest.mark.parametrize(
    ("written", "scrubbed"),
    [("ann again", "(erased)"), ("of bob", "of bob"), (None, None)],
    ids=str,
)
def test_a_result_that_is_written_meanwhile_is_looked_through_again(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, written: str | None, scrubbed: str | None
) -> None:
    with writing(resources.database) as session:
        session.add(
            job := Job(kind="examine", body={"collection": "staff"}, result={"detail": "of ann"}, created_at=0.0)
        )

    def change() -> None:
        with writing(resources.database) as session:
            session.get_one(Job, job.id).result = written and {"detail": written, "n": 2}

    change_when_first_read(monkeypatch, change)
    scrub_reports(resources.database, [erased()])
    with reading(resources.database) as session:
        assert session.get_one(Job, job.id).result == (scrubbed and {"detail": scrubbed, "n": 2})


def test_a_job_that_runs_again_meanwhile_keeps_its_message(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"collection": "staff", "name": "photo of ann"}
    with writing(resources.database) as session:
        session.add(job := Job(kind="examine", body=body, state="failed", created_at=0.0))

    def change() -> None:
        with writing(resources.database) as session:
            session.get_one(Job, job.id).state = "queued"

    change_when_first_read(monkeypatch, change)
    assert scrub_reports(resources.database, [erased()]) == {"e1": 0}
    with reading(resources.database) as session:
        assert session.get_one(Job, job.id).body == body


@pytest.mark.parametrize(
    ("values", "is_erased"),
    [
        ({"body": b'["ann again"]'}, True),
        ({"body": b'["of bob"]'}, False),
        ({"status": None, "body": b""}, False),
    ],
    ids=str,
)
def test_an_answer_that_is_written_meanwhile_is_looked_through_again(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], is_erased: bool
) -> None:
    store_answer(resources, "one", {"detail": "of ann"})

    def change() -> None:
        with writing(resources.database) as session:
            session.execute(update(StoredResponse).values(**values))

    change_when_first_read(monkeypatch, change)
    assert scrub_answers(resources.database, [erased()], proceed) == {"e1": int(is_erased)}
    assert list_erased(resources) == ["one"] * is_erased


MANY = 5
SUBJECTS, PHOTOS = ([f"{kind}-{number}" for number in range(MANY)] for kind in ("person", "photo"))


@pytest.fixture
def many(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> Resources:
    """More faces than are fingerprinted, and a report that names all of them."""
    for limit in ("MAX_FINGERPRINTED_FACES", "NAMES_PER_BATCH"):
        monkeypatch.setattr(erasures, limit, 2)
    store_reports(resources, "staff", created_at=0.0)
    with writing(resources.database) as session:
        for name, photo in zip(SUBJECTS, PHOTOS, strict=True):
            subject = Subject(collection_id="staff", id=name, external_id=f"number of {name}")
            session.add(subject)
            session.flush()
            values = {"bounding_box": {}, "landmarks": [], "quality": {}, "change": 0, "external_image_id": photo}
            session.add(Face(collection_id="staff", subject_pk=subject.pk, image_id=photo, **values))
        session.add(Subject(collection_id="staff", id="faceless", external_id="faceless"))
        [training] = session.scalars(select(Training))
        training.report = {"subjects": [*SUBJECTS, "faceless"], "file": PHOTOS}
    return resources


def scrub_latest(resources: Resources) -> Any:
    """Scrub by what the erasure has written down, and return the report of the training."""
    with reading(resources.database) as session:
        [erasure] = session.scalars(select(Erasure))
    scrub_reports(resources.database, [ErasedNames.of(erasure)])
    with reading(resources.database) as session:
        return session.scalars(select(Training.report)).one()


def test_the_names_of_all_faces_and_people_of_a_deleted_collection_are_erased(many: Resources) -> None:
    with writing(many.database) as session:
        delete_collection(session, "staff")
    assert scrub_latest(many) == {"subjects": ["(erased)"] * (MANY + 1), "file": ["(erased)"] * MANY}


def test_the_names_of_all_erased_faces_are_erased(many: Resources) -> None:
    with writing(many.database) as session:
        subjects.erase_faces(session, pointers.lock_collection(session, "staff"), Face.external_image_id != PHOTOS[0])
    named = {"subjects": [*SUBJECTS, "faceless"], "file": [PHOTOS[0], *["(erased)"] * (MANY - 1)]}
    assert scrub_latest(many) == named


def test_a_deleted_collection_takes_the_names_along_that_it_had_in_a_snapshot(many: Resources) -> None:
    known_by_none = erased(is_whole=True, until=now() + 1, faces=frozenset(), subject=None, names=frozenset())
    assert erase_from_rows(many.database, [known_by_none], proceed) == {"e1"}
    with reading(many.database) as session:
        report = session.scalars(select(Training.report)).one()
    assert report == {"subjects": ["(erased)"] * (MANY + 1), "file": ["(erased)"] * MANY}


def test_a_text_is_searched_for_thousands_of_names_in_little_time() -> None:
    """To list the encodings of a name takes up to 3 ms, and those of a batch of erasures are listed once."""
    text = "nothing of any of them, but of subject person-00007-name " * 9
    for seconds in (4.0, 0.5):
        start = time.process_time()
        assert sum(has_form(text, f"person-{number:05}-name") for number in range(2_000)) == 1
        assert time.process_time() - start < seconds


LONG_ID = '"\ufb01\U0001f600\u00e9\\' * 50


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        (f"of {LONG_ID}5", True),
        (json.dumps(json.dumps(f"of {LONG_ID}5")), True),
        (quote(f"of {LONG_ID}5"), True),
        (f"no photo of {f'{LONG_ID}5'!r}", True),
        (f"of {LONG_ID}55", False),
        (f"of {LONG_ID}", False),
        (f"of {LONG_ID}4", False),
    ],
)
def test_a_long_id_is_recognised_by_all_of_it(text: str, is_named: bool) -> None:
    assert erased(subject=f"{LONG_ID}5").has_subject(text) == is_named
    assert erased(subject=f"{LONG_ID}5").is_quoted(text) == text.startswith("no photo")


def test_little_is_kept_in_memory_of_the_encodings_of_long_ids() -> None:
    """All encodings of one have 110 KB, and those of 16,384 were kept."""
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(512):
            named = erased(subject=f"{LONG_ID}{number}")
            assert not named.has_subject("nobody") | named.is_quoted("nobody")
        gc.collect()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 24_000_000

"""The steps of an erasure, one by one: what it waits for, which files go, and what its receipt says. No job runs."""

import base64
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, event, select

from app.db.session import reading, writing
from app.db.tables import (
    Collection,
    Deployment,
    Erasure,
    Evaluation,
    Face,
    Follower,
    Job,
    JobItem,
    ModelRecord,
    StoredResponse,
    Training,
    now,
)
from app.galleries import erasures
from app.galleries.deletion import delete_collection
from app.galleries.erasure_receipts import build_receipt, hash_photo, hash_subject, is_receipt_signed
from app.learning.plan import ComponentChoice, Plan, Source
from app.queue import jobs
from app.queue.messages import Compare, Erase, Evaluate, ExamineGallery, ImportArchive, Publish, Sweep, Train
from app.resources import Resources
from app.serving.reporter import ALIVE_SECONDS
from app.snapshots.erasure import has_pending_erasures, list_pending_erasures
from app.storage.audit_log.spool import AuditSpool
from app.storage.blob_store import Blobs
from app.storage.fingerprints import Fingerprinter
from app.storage.model_cache import LBP_MODEL
from app.storage.text_encodings import list_text_encodings
from tests.killed_process import kill_process, kill_saving_process
from tests.service import USUAL_ERASURE_SECONDS
from tests.workers.test_erase import context
from tests.workers.test_scrubbing import count_loaded
from workers.context import Interrupted, Later
from workers.erasing import blockers, completion, resumption
from workers.erasing.blockers import Blocker, find_blocker, list_collections
from workers.erasing.completion import complete_erasures
from workers.erasing.erased_files import get_kind, read_sample, remove_erased_files
from workers.handlers import erase

NOW = 1_700_000_000.0
FIRST, SECOND = "a1" * 32, "b2" * 32
"""Ids of photos."""
FACE = "11111111-2222-3333-4444-555555555555"


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    standing = Clock()
    for module in (blockers, completion, resumption, erase):
        monkeypatch.setattr(module, "now", standing)
    monkeypatch.setattr(blockers, "find_latest_moment", lambda session: standing())
    return standing


@pytest.fixture
def resources(lasting_sqlite: Resources, clock: Clock) -> Iterator[Resources]:
    with writing(lasting_sqlite.database) as session:
        session.add(Collection(id="staff", change=9, created_at=5.0))
    yield lasting_sqlite
    with writing(lasting_sqlite.database) as session:
        for table in (Erasure, StoredResponse, JobItem, Job, Training, Evaluation, Follower, Face, Collection):
            session.execute(delete(table))
        session.execute(delete(ModelRecord).where(ModelRecord.id.in_(["m", "n", "o"])))
    lasting_sqlite.blobs.set_aside("staff")
    lasting_sqlite.blobs.empty_trash()


def make_erasure(resources: Resources, target: str = "subject", **values: Any) -> Erasure:
    """Store an erasure of the subject ann, whose face is the first of the photo FIRST. targets: replaced or added"""
    targets = {
        "faces": [FACE], "images": [FIRST], "files": [[FIRST, 0]], "subject": "ann", "subject_pk": 7,
        "names": ["ann"], "texts": ["ann", "a badge of hers"], "vectors": [base64.b64encode(bytes(range(64))).decode()],
    } | values.pop("targets", {})  # fmt: skip
    removed = {"faces": 1, "labels": 2, "embeddings": 3, "coordinates": 4}
    usual = {
        "collection_id": "staff", "collection_created_at": 5.0, "change": 9, "first_change": 3,
        "requested_at": NOW - 100, "contents": {"removed": removed},
    }  # fmt: skip
    with writing(resources.database) as session:
        session.add(erasure := Erasure(target=target, targets=targets, **usual | values))
    return read(resources, erasure.id)


def read(resources: Resources, erasure_id: str) -> Erasure:
    with reading(resources.database) as session:
        return session.get_one(Erasure, erasure_id)


def add(resources: Resources, *rows: Any) -> None:
    with writing(resources.database) as session:
        session.add_all(rows)


def find(resources: Resources, erasure: Erasure) -> Blocker:
    with reading(resources.database) as session:
        return find_blocker(session, erasure, resources.audit)


def test_an_erasure_waits_for_the_indexes_of_living_processes(resources: Resources) -> None:
    erasure = make_erasure(resources)
    follower = {"collection_id": "staff", "task": "identity", "model_id": "m", "vectors": 0}
    assert find(resources, erasure) == Blocker(None, NOW)
    add(resources, Follower(process="p", change=8, **follower))
    assert find(resources, erasure) == Blocker("indexes", None)
    known = make_erasure(resources, targets={"unserved_at": NOW - 50})
    assert find(resources, known) == Blocker(None, NOW - 50), "it is not looked up again"
    with writing(resources.database) as session:
        session.scalars(select(Follower)).one().change = 9
    assert find(resources, erasure) == Blocker(None, NOW)


@pytest.mark.parametrize(("seconds", "name"), [(0.0, "indexes"), (1.0, "indexes"), (1.1, None)])
def test_a_deleted_collection_is_served_for_a_second(resources: Resources, seconds: float, name: str | None) -> None:
    erasure = make_erasure(resources, "collection", requested_at=NOW - seconds)
    assert find(resources, erasure) == Blocker(name, None if name else NOW)


def test_the_erasure_of_a_subject_waits_for_the_indexes_of_its_deleted_collection(resources: Resources) -> None:
    """With the collection, the rows of its followers are deleted."""
    erasure = make_erasure(resources)
    add(resources, Follower(collection_id="staff", task="identity", model_id="m", vectors=0, process="p", change=8))
    with writing(resources.database) as session:
        deletion = delete_collection(session, session.get_one(Collection, "staff")).id
        session.get_one(Erasure, deletion).requested_at = NOW - 1.1
    assert find(resources, erasure) == Blocker("indexes")
    with writing(resources.database) as session:
        erasures.strike_out(session, "p", {("staff", 5.0)})
    assert find(resources, erasure) == Blocker(None, NOW)


@pytest.mark.parametrize(("silent_seconds", "name"), [(ALIVE_SECONDS - 5, "indexes"), (ALIVE_SECONDS + 1, None)])
def test_a_deleted_collection_is_served_by_a_living_process_until_it_has_dropped_it(
    resources: Resources, silent_seconds: float, name: str | None
) -> None:
    served_by = {"p": now() - silent_seconds, "dead": now() - 60}
    erasure = make_erasure(resources, "collection", targets={erasures.SERVED_BY: served_by})
    assert find(resources, erasure) == Blocker(name, None if name else NOW)
    with writing(resources.database) as session:
        erasures.strike_out(session, "p", {("staff", 4.0), ("other", 5.0)})
    assert find(resources, read(resources, erasure.id)).name == name, "it has dropped others"
    with writing(resources.database) as session:
        erasures.strike_out(session, "p", {("staff", 5.0)})
    assert find(resources, read(resources, erasure.id)) == Blocker(None, NOW)


def test_a_later_collection_of_the_same_name_holds_up_no_erasure(resources: Resources) -> None:
    """Its changes are counted anew, so that its followers would have caught up only after as many."""
    erasure = make_erasure(resources, collection_created_at=4.0, requested_at=NOW - 1.2)
    add(resources, Follower(collection_id="staff", task="identity", model_id="m", vectors=0, process="p", change=0))
    assert find(resources, erasure) == Blocker(None, NOW)
    make_erasure(resources, "collection", collection_created_at=4.0, requested_at=NOW - 0.9)
    make_erasure(resources, "collection", collection_created_at=3.0, requested_at=NOW - 50)
    assert find(resources, erasure) == Blocker("indexes"), "a process may still serve the deleted one"


@pytest.mark.parametrize(
    ("status", "created_at", "waits"),
    [
        (None, NOW - 10, True),
        (None, NOW, True),
        (None, NOW + 1, False),  # after the faces had gone from the indexes
        (200, NOW - 10, False),
        (None, NOW - 299, True),
        (None, NOW - 300, False),  # its process has died
    ],
)
def test_an_erasure_waits_for_requests_that_may_still_name_the_faces(
    resources: Resources, status: int | None, created_at: float, waits: bool
) -> None:
    add(
        resources, StoredResponse(key_id="k", idempotency_key="i", fingerprint="", status=status, created_at=created_at)
    )
    assert find(resources, make_erasure(resources)) == Blocker("requests" if waits else None, NOW)


def test_an_erasure_does_not_wait_for_requests_of_a_killed_process(resources: Resources) -> None:
    living = AuditSpool(resources.audit)
    reserved = {"fingerprint": "", "created_at": NOW - 10}
    add(resources, StoredResponse(key_id="k", idempotency_key="1", process=kill_process(resources.audit), **reserved))
    for _ in range(2):
        assert find(resources, make_erasure(resources)) == Blocker(None, NOW)
    add(resources, StoredResponse(key_id="k", idempotency_key="2", process=living.process, **reserved))
    assert find(resources, make_erasure(resources)) == Blocker("requests", NOW)
    living.close()
    assert find(resources, make_erasure(resources)) == Blocker("requests", NOW), "a thread of it may still run"


EARLIER = NOW - 200


@pytest.mark.parametrize(
    ("values", "waits"),
    [
        ({}, True),
        ({"state": "queued"}, True),  # put back: it may have written down something
        ({"state": "succeeded"}, False),
        ({"started_at": NOW - 100}, True),
        ({"started_at": NOW - 99}, False),
        ({"started_at": None}, False),
        ({"body": {"collection": "other"}}, False),
        ({"body": {}}, False),
        ({"kind": "erase"}, False),
        ({"kind": "sweep"}, False),
    ],
    ids=str,
)
def test_an_erasure_waits_for_jobs_that_may_have_read_the_faces(
    resources: Resources, values: dict[str, Any], waits: bool
) -> None:
    usual = {"id": "j2", "kind": "examine", "body": {"collection": "staff"}, "state": "running", "started_at": EARLIER}
    add(resources, Job(**usual | values))
    assert find(resources, make_erasure(resources)) == Blocker("j2" if waits else None, NOW)


@pytest.mark.parametrize(
    ("later", "begun_at"), [({}, NOW), ({"created_at": NOW - 60}, NOW - 60), ({"created_at": 4.0}, NOW)], ids=str
)
def test_jobs_that_began_before_the_first_run_count_unless_they_are_of_a_later_collection(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, later: dict[str, float], begun_at: float
) -> None:
    monkeypatch.setattr(erasures, "find_latest_moment", lambda session: NOW)
    with writing(resources.database) as session:
        for name, value in later.items():
            setattr(session.get_one(Collection, "staff"), name, value)
    erasure = make_erasure(resources)
    postpone(resources, erasure.id)
    begun = read(resources, erasure.id)
    assert begun.targets["begun_at"] == pytest.approx(begun_at, abs=1e-5)
    add(resources, Job(id="j", kind="examine", body={"collection": "staff"}, state="running", started_at=NOW - 50))
    assert find(resources, begun) == Blocker("j" if begun_at == NOW else None, NOW)
    postpone(resources, make_erasure(resources, targets=begun.targets).id)
    assert read(resources, erasure.id).targets["begun_at"] == begun.targets["begun_at"]


def test_the_first_of_several_jobs_is_named_and_parts_of_a_cancelled_import_count(resources: Resources) -> None:
    usual = {"kind": "examine", "body": {"collection": "staff"}, "state": "running", "started_at": EARLIER}
    add(resources, Job(id="j3", **usual), Job(id="j2", **usual), Job(id="j0", **usual | {"state": "cancelled"}))
    erasure = make_erasure(resources)
    assert find(resources, erasure) == Blocker("j2", NOW)
    part = {"kind": "ingest", "body": {"job": "j0", "first": 0, "last": 9, "bound_to": {"staff": EARLIER}}}
    add(resources, Job(id="j1", parent_id="j0", **usual | part))
    assert find(resources, erasure) == Blocker("j1", NOW)


def test_parts_that_began_later_count_if_their_import_began_before(resources: Resources) -> None:
    """Such a part reads the archive still, though the import was cancelled after the deletion."""
    erasure = make_erasure(resources)
    imports = {"kind": "import", "body": {"collection": "staff"}, "state": "cancelled"}
    add(resources, Job(id="j0", started_at=EARLIER, **imports), Job(id="j1", started_at=NOW, **imports))
    body = {"first": 0, "last": 9, "bound_to": {"staff": EARLIER}}
    parts = {"kind": "ingest", "body": body, "started_at": NOW, "state": "running"}
    add(resources, Job(id="p1", parent_id="j1", **parts))
    assert find(resources, erasure) == Blocker(None, NOW)
    add(resources, Job(id="p0", parent_id="j0", **parts))
    assert find(resources, erasure) == Blocker("p0", NOW)


def test_the_collections_of_a_job_are_those_of_its_run_or_of_its_message(resources: Resources) -> None:
    sources = (Source(origin="subjects"), Source(origin="subjects", collection="borrowed"))
    plan = Plan(
        collection="own", method="wpca", descriptors=(ComponentChoice(name="lbp"),), options={}, sources=sources,
        holdout=0.2,
    )  # fmt: skip
    request = plan.model_dump(mode="json", by_alias=True)
    add(resources, Training(id="t", request=request), Evaluation(id="e", request={"collection": "measured"}))
    add(resources, *(Training(id=f"from-{model}", request=request | {"start_from": model}) for model in ("m", "gone")))
    add(resources, Evaluation(id="without", request={}), Evaluation(id="f", request={"collection": "measured"}))
    learned = {"training": "t", "changes": {"examined": 3, "learned": 1}, "continued_changes": {"continued": 2}}
    add(resources, ModelRecord(id="m", manifest={"facts": learned}), ModelRecord(id="n", manifest={"facts": {}}))
    facts = {"training": "u", "changes": {"served": 1}}
    add(resources, ModelRecord(id="o", manifest={"facts": facts}), Collection(id="examined"), Collection(id="borrowed"))
    add(resources, Deployment(collection_id="examined", task="identity", champion="o"))
    publish: dict[str, Any] = {"collection": "examined", "model": "m"}
    expected = (
        (Train(training="t", collection="own"), ["own", "borrowed"]),
        (Train(training="from-m", collection="own"), ["own", "borrowed", "examined", "continued", "learned"]),
        (Train(training="from-gone", collection="own"), ["own", "borrowed"]),
        (Train(training="gone", collection="own"), []),
        (Evaluate(evaluation="e"), ["measured"]),
        (Evaluate(evaluation="without"), [""]),
        (Evaluate(evaluation="gone"), []),
        (ExamineGallery(collection="examined"), ["examined"]),
        (Publish(tasks=("identity",), **publish), ["examined", "continued", "learned", "served"]),
        (Publish(tasks=("other",), **publish), ["examined", "continued", "learned"]),
        (Compare(collection="examined", task="identity", models=("n", "o")), ["examined", "served"]),
        (Sweep(), [""]),
    )
    with writing(resources.database) as session:
        for message, collections in expected:
            assert set(list_collections(session, jobs.enqueue(session, message))) == set(collections), message
        reading_another = jobs.enqueue(session, Evaluate(evaluation="f"), reads=["measured", "borrowed"])
        assert list_collections(session, reading_another) == ["measured", "borrowed"]


def test_a_training_that_continues_a_model_counts_for_the_collections_that_the_model_has_learned_from(
    resources: Resources,
) -> None:
    plan = Plan(
        collection="other", method="stiefel", descriptors=(), options={}, sources=(Source(origin="subjects"),),
        holdout=0.2, start_from="m",
    )  # fmt: skip
    add(resources, ModelRecord(id="m", manifest={"facts": {"training": "u", "changes": {"staff": 3}}}))
    add(resources, Training(id="t", request=plan.model_dump(mode="json", by_alias=True)))
    body = {"training": "t", "collection": "other"}
    add(resources, Job(id="j", kind="train", body=body, state="running", started_at=EARLIER))
    assert find(resources, make_erasure(resources)) == Blocker("j", NOW)


NAMES = {
    "photo": Blobs.photo(FIRST),
    "crop": Blobs.crop(FIRST, 0, "grey"),
    "descriptor": Blobs.described(FIRST, 0, "sift"),
    "other crop": Blobs.crop(FIRST, 1, "grey"),
    "other photo": Blobs.photo(SECOND),
}


def put_files(resources: Resources) -> dict[str, str]:
    """Store a photo with the files of two faces, and another photo. Returns name -> MAC of the fingerprint."""
    contents = {name: bytes((n * 7 + i) % 251 for i in range(100)) for n, name in enumerate(NAMES.values())}
    resources.blobs.put("staff", contents.items())
    fingerprinter = Fingerprinter(resources.installation_key)
    made = {name: fingerprinter.make(get_kind(name), data) for name, data in contents.items()}
    return {name: fingerprint.mac for name, fingerprint in made.items() if fingerprint}


def list_files(resources: Resources) -> set[str]:
    return {kind for kind, name in NAMES.items() if resources.blobs.has("staff", [name])}


def add_face(resources: Resources, image: str, number: int) -> None:
    values = {"bounding_box": {}, "landmarks": [], "quality": {}, "change": 0}
    add(resources, Face(collection_id="staff", image_id=image, number=number, **values))


def test_the_files_of_erased_photos_are_fingerprinted_counted_and_removed(resources: Resources) -> None:
    macs = put_files(resources)
    erasure = make_erasure(resources)
    remove_erased_files(context(resources), erasure)
    assert list_files(resources) == {"other photo"}
    targets = read(resources, erasure.id).targets
    assert targets == erasure.targets
    assert targets["removed_files"] == {"photos": 1, "crops": 2, "descriptors": 1, "photos_kept": 0}
    fingerprints = {name: (value["kind"], value["mac"]) for name, value in targets["fingerprints"].items()}
    assert fingerprints == {NAMES[kind]: (kind, macs[NAMES[kind]]) for kind in ("photo", "crop", "descriptor")}
    remove_erased_files(context(resources), read(resources, erasure.id))
    assert read(resources, erasure.id).targets == targets, "a second run finds the numbers of the first"


def test_files_of_a_face_that_stays_are_neither_removed_nor_counted(resources: Resources) -> None:
    put_files(resources)
    add_face(resources, FIRST, 1)
    erasure = make_erasure(resources, "face")
    remove_erased_files(context(resources), erasure)
    assert list_files(resources) == {"photo", "other crop", "other photo"}
    assert erasure.targets["removed_files"] == {"photos": 0, "crops": 1, "descriptors": 1, "photos_kept": 1}
    assert set(erasure.targets["fingerprints"]) == {NAMES["crop"], NAMES["descriptor"]}


def test_the_removal_of_files_can_be_interrupted_and_taken_up(resources: Resources) -> None:
    put_files(resources)
    erasure = make_erasure(resources)
    stopped = context(resources)
    stopped.interrupted.set()
    with pytest.raises(Interrupted):
        remove_erased_files(stopped, erasure)
    whole = make_erasure(resources, "collection")
    age_files(resources, 200)
    with pytest.raises(Interrupted):
        remove_erased_files(stopped, whole)
    assert list_files(resources) == set(NAMES)


def age_files(resources: Resources, seconds: float, *kinds: str) -> None:
    for kind in kinds or NAMES:
        os.utime(resources.blobs.root / "c-staff" / NAMES[kind], (NOW - seconds, NOW - seconds))


def test_all_files_of_a_deleted_collection_are_removed(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    put_files(resources)
    with writing(resources.database) as session:
        session.execute(delete(Collection))
    monkeypatch.setattr("app.storage.blob_store.time.time", lambda: NOW)
    monkeypatch.setattr("workers.erasing.erased_files.now", lambda: NOW)
    age_files(resources, 200)
    erasure = make_erasure(resources, "collection", targets={"images": []})
    remove_erased_files(context(resources), erasure)
    assert list_files(resources) == set()
    assert erasure.targets["removed_files"] == {"photos": 2, "crops": 2, "descriptors": 1, "photos_kept": 0}
    assert len(erasure.targets["fingerprints"]) == 3


def test_files_of_a_new_collection_of_the_same_name_are_kept(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_files(resources)
    monkeypatch.setattr("app.storage.blob_store.time.time", lambda: NOW)
    monkeypatch.setattr("workers.erasing.erased_files.now", lambda: NOW)
    age_files(resources, 200)
    age_files(resources, 100, "other photo")
    add_face(resources, FIRST, 1)
    erasure = make_erasure(resources, "collection", targets={"images": []})
    remove_erased_files(context(resources), erasure)
    assert list_files(resources) == {"photo", "other crop", "other photo"}
    assert erasure.targets["removed_files"] == {"photos": 0, "crops": 1, "descriptors": 1, "photos_kept": 1}


def test_a_sample_is_taken_from_the_middle_of_a_file(tmp_path: Path) -> None:
    data, blobs = bytes(i // 8 % 256 for i in range(1_000)), Blobs(tmp_path)
    blobs.put("staff", [("photos/lo/long", data), ("photos/sh/short", data[:100])])
    assert read_sample(blobs, "staff", "photos/lo/long") == data[372:628]
    assert read_sample(blobs, "staff", "photos/sh/short") == data[:100]
    assert read_sample(blobs, "staff", "photos/no/none") == b""


PRINT = {"kind": "photo", "length": 8, "prefix": 1, "mac": "f"}
READY = {"removed_files": {"photos": 1, "crops": 2, "descriptors": 0}, "fingerprints": {"photos/x": PRINT}}


def test_a_complete_erasure_has_a_signed_receipt_and_no_names(resources: Resources) -> None:
    key = resources.installation_key
    erasure = make_erasure(resources, targets=READY)
    follower = {"collection_id": "staff", "task": "identity", "model_id": "m", "vectors": 0, "change": 9}
    add(resources, *(Follower(process=name, **follower) for name in "pq"))
    add(resources, Job(id="j", kind="examine", body={"collection": "staff"}, result={"subject": "ann"}, created_at=1.0))
    body = f'["{FACE}"]'.encode()
    add(resources, StoredResponse(key_id="k", idempotency_key="i", fingerprint="", status=200, body=body))
    add(resources, Training(request={}, model="later", snapshot={"changes": {"staff": 8}}))
    complete_erasures(context(resources))
    final = read(resources, erasure.id)
    assert (final.state, final.targets, final.finished_at) == ("final", {}, NOW)
    assert final.contents == {
        "removed": {
            "answers": 1, "coordinates": 4, "crops": 2, "descriptors": 0, "embeddings": 3, "faces": 1,
            "index_entries": 2, "job_items": 0, "labels": 2, "photos": 1, "reports": 1, "snapshots": 0,
            "snapshots_deleted": 0, "snapshots_rewritten": 0,
        },
        "subject": hash_subject(key, "staff", "ann"),
        "faces": [FACE],
        "photos": [hash_photo(key, FIRST)],
        "models": ["later"],
    }  # fmt: skip
    assert list(final.contents["removed"]) == sorted(final.contents["removed"])
    assert is_receipt_signed(key, build_receipt(final), final.signature)
    fingerprinter = Fingerprinter(key)
    texts = (b"a badge of hers", b"a%20badge%20of%20hers")
    made = [*fingerprinter.make_all("text", texts), fingerprinter.make("vector", bytes(range(64)))]
    assert final.fingerprints == [*(print.to_dict() for print in made if print), PRINT]


def test_an_erasure_without_a_subject_and_with_many_faces_lists_the_first(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "MAX_LISTED_IDS", 2)
    targets = {"subject": None, "subject_pk": None, "faces": ["f1", "f2", "f3"], "images": ["i3", "i1", "i2"]}
    erasure = make_erasure(resources, "face", targets=READY | targets)
    complete_erasures(context(resources))
    contents, key = read(resources, erasure.id).contents, resources.installation_key
    assert (contents["subject"], contents["faces"]) == (None, ["f1", "f2"])
    assert contents["photos"] == sorted(hash_photo(key, image) for image in ("i3", "i1"))
    assert contents["removed"]["index_entries"] == 0


def test_what_waits_is_scrubbed_at_once_and_again_when_it_is_ready(resources: Resources, clock: Clock) -> None:
    erasure = make_erasure(resources, targets=READY)
    message, times = {"collection": "staff"}, {"created_at": EARLIER, "started_at": EARLIER}
    running = Job(id="j", kind="examine", body=message, state="running", **times)
    add(resources, running, StoredResponse(key_id="k", idempotency_key="1", fingerprint="", status=200, body=b'"ann"'))
    complete_erasures(context(resources))
    waiting = read(resources, erasure.id)
    assert (waiting.state, waiting.targets["unserved_at"]) == ("pending", NOW)
    counts = {"answers": 1, "job_items": 0, "reports": 0, "snapshots": 0}
    assert waiting.targets["counts"] == counts
    add(resources, StoredResponse(key_id="k", idempotency_key="2", fingerprint="", status=200, body=b'"ann"'))
    clock.at = NOW + 5
    complete_erasures(context(resources))
    assert read(resources, erasure.id).targets == waiting.targets, "it waits, and has been scrubbed before"
    with writing(resources.database) as session:
        jobs.end(session, "j", "succeeded", result={"subject": "ann"})
    complete_erasures(context(resources))
    final = read(resources, erasure.id)
    assert (final.state, final.finished_at) == ("final", NOW + 5)
    removed = final.contents["removed"]
    assert (removed["answers"], removed["reports"]) == (2, 1)


@pytest.mark.parametrize("target", ["subject", "collection"])
def test_files_that_were_written_after_the_first_removal_are_gone_before_the_receipt_is_signed(
    resources: Resources, target: str
) -> None:
    put_files(resources)
    add_face(resources, SECOND, 0)
    add(
        resources, Deployment(collection_id="staff", task="identity", champion=LBP_MODEL)
    )  # it was not reserved by a restore
    targets = READY | ({"images": []} if target == "collection" else {})
    erasure = make_erasure(resources, target, targets=targets)
    add(resources, Job(id="j", kind="examine", body={"collection": "staff"}, state="running", started_at=EARLIER))
    complete_erasures(context(resources))
    assert list_files(resources) == set(NAMES), "the job may write more"
    with writing(resources.database) as session:
        session.execute(delete(Job))
    complete_erasures(context(resources))
    assert list_files(resources) == {"other photo"}
    assert read(resources, erasure.id).state == "final"


def test_an_erasure_whose_files_are_there_is_left_alone(resources: Resources) -> None:
    erasure = make_erasure(resources)
    complete_erasures(context(resources))
    assert read(resources, erasure.id).targets == erasure.targets
    assert read(resources, erasure.id).state == "pending"


def test_all_that_wait_are_completed_and_the_final_ones_stay(resources: Resources) -> None:
    first, second = (make_erasure(resources, targets=READY) for _ in range(2))
    untouched = make_erasure(resources)
    final = make_erasure(resources, state="final", targets=READY)
    complete_erasures(context(resources))
    assert [read(resources, e.id).state for e in (first, second, untouched)] == ["final", "final", "pending"]
    assert read(resources, final.id).targets == final.targets


def test_a_receipt_is_signed_only_after_the_database_is_compacted(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    outcomes = iter([False, True])
    monkeypatch.setattr(completion, "compact_deleted", lambda database: tried.append(database) or next(outcomes))
    erasure = make_erasure(resources, targets=READY)
    complete_erasures(context(resources))
    scrubbed = read(resources, erasure.id)
    assert (scrubbed.state, scrubbed.targets, scrubbed.signature) == ("scrubbed", {}, "")
    complete_erasures(context(resources))
    assert read(resources, erasure.id).state == "final"
    complete_erasures(context(resources))
    assert tried == [resources.database] * 2, "without anything erased, nothing is compacted"


def test_others_can_write_while_texts_are_fingerprinted(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def write_meanwhile(text: str) -> set[bytes]:
        with sqlite3.connect(resources.settings.home / "likeness.sqlite", timeout=0.1) as other:
            other.execute("begin immediate")
        tried.append(text)
        return list_text_encodings(text)

    monkeypatch.setattr(completion, "list_text_encodings", write_meanwhile)
    erasure = make_erasure(resources, targets=READY)
    complete_erasures(context(resources))
    assert read(resources, erasure.id).state == "final"
    assert set(tried) == {"ann", "a badge of hers"}


@pytest.mark.parametrize(
    "text", ["x" + 9 * "ü1 " * 1_000, "\ufdfa" * 21_000, "Zo" + "\u0308\u0316" * 16_000 + "e"], ids=ascii
)
def test_the_start_of_a_long_text_has_the_fingerprints_of_the_whole(resources: Resources, text: str) -> None:
    """With 64 KiB of U+FDFA, which stands for 18 characters, the encodings of the whole have ten megabytes."""
    fingerprinter = Fingerprinter(resources.installation_key)
    start = time.process_time()
    made = completion._make_fingerprints(resources.installation_key, {"texts": [text], "vectors": []})
    assert time.process_time() - start < 0.5
    whole = fingerprinter.make_all("text", {encoding[:300] for encoding in list_text_encodings(text)})
    assert {one.mac for one in whole} == {one["mac"] for one in made}


def test_an_erasure_has_so_many_fingerprints_of_texts_the_names_first(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "MAX_TEXT_FINGERPRINTS", 100)
    texts = ["Ada Example", *(f"é ﬁ/{number:05}" for number in range(1_000))]
    made = completion._make_fingerprints(resources.installation_key, {"texts": texts, "vectors": []})
    assert 50 < len(made) <= 100
    first = Fingerprinter(resources.installation_key).make("text", b"Ada Example")
    assert first is not None
    assert first.mac in {one["mac"] for one in made}


def write_snapshot(resources: Resources, change: int) -> Path:
    record = resources.indexes / f"snapshot-{change}.json"
    values = f'"collection": "staff", "collection_created_at": 5.0, "change": {change}, "file": "none"'
    record.write_text(f"{{{values}}}")
    return record


def test_snapshots_from_before_the_erasure_are_deleted_and_counted(resources: Resources) -> None:
    older, newer = (write_snapshot(resources, change) for change in (8, 9))
    erasure = make_erasure(resources, targets=READY | {"counts": {"snapshots": 4}})
    complete_erasures(context(resources))
    assert (older.exists(), newer.exists()) == (False, True)
    assert read(resources, erasure.id).contents["removed"]["snapshots"] == 5
    newer.unlink()


def test_what_a_killed_process_has_left_of_an_index_is_gone_before_the_receipt_is_final(resources: Resources) -> None:
    [left] = kill_saving_process(resources.indexes, 8, syncs=0)
    erasure = make_erasure(resources, targets=READY)
    complete_erasures(context(resources))
    assert (read(resources, erasure.id).state, left.exists()) == ("final", False)


@pytest.mark.parametrize(("age", "deleted"), [(86_000.0, 1), (86_400.0, 0), (90_000.0, 0)])
def test_late_snapshots_are_looked_for_during_a_day(resources: Resources, age: float, deleted: int) -> None:
    late, newer = (write_snapshot(resources, change) for change in (8, 9))
    make_erasure(resources, state="final", requested_at=NOW - age)
    assert resumption.delete_late_snapshots(resources) == deleted
    assert (late.exists(), newer.exists()) == (not deleted, True)
    for snapshot in (late, newer):
        snapshot.unlink(missing_ok=True)


def test_every_erasure_without_a_job_gets_one(resources: Resources) -> None:
    running, lost, scrubbed = (make_erasure(resources, state=state) for state in ("pending", "pending", "scrubbed"))
    whole = make_erasure(resources, "collection", collection_id="gone")
    make_erasure(resources, state="final")
    with writing(resources.database) as session:
        jobs.enqueue(session, Erase(collection="staff", erasure=running.id))
        ended = jobs.enqueue(session, Erase(collection="staff", erasure=lost.id))
        ended.state = "failed"
        jobs.enqueue(session, ImportArchive(collection="staff", path="x"))
    with count_loaded(Erasure) as counts:
        assert resumption.resume_erasures(resources) == 3
    assert counts == [], "they may have 20 MB each"
    with reading(resources.database) as session:
        queued = session.scalars(select(Job).where(Job.kind == "erase", Job.state == "queued")).all()
    messages = {job.body["erasure"]: (job.body["collection"], job.body["whole"]) for job in queued}
    ours = dict.fromkeys((running.id, lost.id, scrubbed.id), ("staff", False))
    assert messages == ours | {whole.id: ("gone", True)}
    assert resumption.resume_erasures(resources) == 0


def test_pending_erasures_are_in_memory_one_at_a_time(resources: Resources) -> None:
    """Each may have 20 MB. A restore waits for those of its collection, and needs only their moments."""
    for number in range(5):
        make_erasure(resources, targets={"until": NOW + number})
    make_erasure(resources, collection_id="others")
    make_erasure(resources, state="scrubbed", collection_id="erased")
    with count_loaded(Erasure) as counts, reading(resources.database) as session:
        assert sorted(list_pending_erasures(session, "staff")) == [NOW + number for number in range(5)]
        assert (len(counts), max(counts) <= 2) == (5, True)
        pending = [has_pending_erasures(session, name) for name in (None, "staff", "others", "erased")]
        assert pending == [True, True, True, False]
    assert len(counts) == 5, "whether there is one can be said without it"


@pytest.mark.parametrize("target", ["subject", "collection"])
def test_the_uploads_of_ended_imports_are_gone_before_the_receipt_is_final(resources: Resources, target: str) -> None:
    """No tick of a worker's schedule comes between, and the job has no path any more afterwards."""
    uploads = {name: resources.uploads / name for name in ("archive", "vectors", "live", "other")}
    table = uploads["vectors"].with_suffix(".csv")
    for path in (*uploads.values(), table):
        path.touch()
    usual = {"created_at": EARLIER, "finished_at": EARLIER}
    for name, path in uploads.items():
        kind = "import-embeddings" if name == "vectors" else "import"
        body = {"collection": "other" if name == "other" else "staff", "path": str(path), "table": str(table)}
        state = "queued" if name == "live" else "cancelled"
        add(resources, Job(id=name, kind=kind, body=body, state=state, **usual))
    part = {"kind": "ingest", "body": {"bound_to": {"staff": EARLIER}}, "state": "running", "started_at": EARLIER}
    add(resources, Job(id="part", parent_id="archive", **part))
    erasure = make_erasure(resources, target, targets=READY)
    complete_erasures(context(resources))
    assert read(resources, erasure.id).state == "pending"
    assert set(resources.uploads.iterdir()) == set(uploads.values()) - {uploads["vectors"]}
    with writing(resources.database) as session:
        session.get_one(Job, "part").state = "succeeded"
    complete_erasures(context(resources))
    assert read(resources, erasure.id).state == "final"
    assert set(resources.uploads.iterdir()) == {uploads["live"], uploads["other"]}
    for path in resources.uploads.iterdir():
        path.unlink()


@pytest.fixture
def usual_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests wait less for erasures."""
    first, retry = USUAL_ERASURE_SECONDS
    monkeypatch.setattr(erase, "FIRST_DELAY_SECONDS", first)
    monkeypatch.setattr(erase, "MIN_RETRY_SECONDS", retry)


def run(resources: Resources, erasure_id: str) -> dict[str, Any]:
    return erase.erase_files(Erase(collection="staff", erasure=erasure_id), context(resources))


def postpone(resources: Resources, erasure_id: str) -> float:
    """Return the seconds after which the job runs again."""
    with pytest.raises(Later) as later:
        run(resources, erasure_id)
    return later.value.seconds


@pytest.mark.usefixtures("usual_waits")
def test_a_job_removes_the_files_first_and_ends_with_the_receipt(resources: Resources) -> None:
    put_files(resources)
    erasure = make_erasure(resources)
    assert postpone(resources, erasure.id) == 0.5
    assert list_files(resources) == {"other photo"}
    assert read(resources, erasure.id).state == "pending"
    assert run(resources, erasure.id) == {"erasure": erasure.id, "files": 4}
    assert run(resources, erasure.id) == {"erasure": erasure.id, "files": 4}, "a second run finds nothing to do"
    assert run(resources, "gone") == {"erasure": "gone", "files": 0}


@pytest.mark.usefixtures("usual_waits")
@pytest.mark.parametrize(("waited", "seconds"), [(1.0, 2.0), (8.0, 2.0), (100.0, 25.0), (1200.0, 300.0), (9e9, 300.0)])
def test_a_job_that_waits_is_run_again_after_a_quarter_of_its_age(
    resources: Resources, waited: float, seconds: float
) -> None:
    erasure = make_erasure(resources, targets=READY, requested_at=NOW - waited)
    add(resources, StoredResponse(key_id="k", idempotency_key="i", fingerprint="", created_at=NOW))
    assert postpone(resources, erasure.id) == seconds


def test_only_the_job_of_the_oldest_erasure_completes_them_all(resources: Resources) -> None:
    make_erasure(resources, id="e0", state="final")
    first, second = (make_erasure(resources, id=name, targets=READY) for name in ("e1", "e2"))
    assert postpone(resources, second.id) == 25.0
    assert [read(resources, e.id).state for e in (first, second)] == ["pending", "pending"]
    assert run(resources, first.id)["files"] == 3
    assert read(resources, second.id).state == "final"


def test_files_of_photos_and_collections_are_removed_without_a_receipt(resources: Resources) -> None:
    put_files(resources)
    photos = Erase(collection="staff", images=(FIRST,))
    assert erase.erase_files(photos, context(resources)) == {"files": 4}
    whole = Erase(collection="staff", whole=True)
    kept = {"files": "those that the collection of the same name does not need"}
    assert erase.erase_files(whole, context(resources)) == kept
    assert list_files(resources) == {"other photo"}
    with writing(resources.database) as session:
        session.execute(delete(Collection))
    assert erase.erase_files(whole, context(resources)) == {"files": "all"}
    assert list_files(resources) == set()


def test_many_erasures_are_completed_in_parts_and_the_next_part_comes_soon(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other jobs have their turns between: one job that completed 400 held its worker for minutes."""
    monkeypatch.setattr(completion, "MAX_ERASURES", 3)
    waiting = [make_erasure(resources, targets=READY) for _ in range(7)]
    messages = [Erase(collection="staff", erasure=erasure.id) for erasure in waiting]
    with writing(resources.database) as session:
        enqueued = [jobs.enqueue(session, message, delay=200.0).id for message in messages]
    erase.erase_files(messages[0], context(resources))
    assert [read(resources, erasure.id).state for erasure in waiting] == ["final"] * 3 + ["pending"] * 4
    with reading(resources.database) as session:
        due = {job.id: job.not_before for job in session.scalars(select(Job).where(Job.id.in_(enqueued)))}
    assert [due[job] < NOW + 1 for job in enqueued] == [False] * 3 + [True] + [False] * 3
    for message in messages[3:5]:
        erase.erase_files(message, context(resources))
    erase.erase_files(messages[6], context(resources))
    assert [read(resources, erasure.id).state for erasure in waiting] == ["final"] * 7


def test_collections_have_their_turns_when_erasures_are_completed(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "MAX_ERASURES", 2)
    many = [make_erasure(resources, targets=READY) for _ in range(4)]
    other = make_erasure(resources, targets=READY, collection_id="guests")
    complete_erasures(context(resources))
    assert [read(resources, erasure.id).state for erasure in (*many, other)] == ["final", *["pending"] * 3, "final"]


def test_the_items_of_a_job_are_read_once_for_all_that_is_erased(resources: Resources) -> None:
    """Each is counted where it belongs, and what was imported after an erasure is not about it."""
    other = "22222222-3333-4444-5555-666666666666"
    of_other = {"faces": [other], "subject": None, "subject_pk": None, "names": []}
    known = [make_erasure(resources, targets=READY), make_erasure(resources, "face", targets=READY | of_other)]
    add(resources, *(Job(id=f"j{n}", kind="import", body={"collection": "staff"}, created_at=1.0) for n in range(30)))
    add(resources, Job(id="later", kind="import", body={"collection": "staff"}, created_at=NOW))
    for job in [*(f"j{n}" for n in range(30)), "later"]:
        texts = [FACE, other]
        add(resources, *(JobItem(job_id=job, number=n, name="x", state="done", detail={"face_ids": [face]})
                         for n, face in enumerate(texts)))  # fmt: skip
    statements: list[str] = []
    event.listen(resources.database, "before_cursor_execute", lambda *args: statements.append(args[2]))
    complete_erasures(context(resources))
    removed = [read(resources, erasure.id).contents["removed"]["job_items"] for erasure in known]
    assert removed == [30, 30]
    assert sum("FROM job_items" in statement for statement in statements) <= 2 * 31
    with reading(resources.database) as session:
        kept = session.scalars(select(JobItem.detail).where(JobItem.name == "x", JobItem.job_id == "later")).all()
    assert len(kept) == 2

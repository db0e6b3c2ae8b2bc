"""After an erasure, no file of the home and no row of a table holds anything of what was erased."""

import errno
import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select, update

from app.config import Settings
from app.db.compaction import compact_deleted
from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Erasure, Face, Job, JobItem, StoredResponse, Subject, now
from app.errors import Conflict
from app.galleries import subjects
from app.galleries.deletion import delete_collection
from app.galleries.erasure_receipts import build_receipt, hash_subject, is_receipt_signed
from app.jobs.service import cancel_job
from app.publishing import pointers
from app.queue import jobs
from app.queue.messages import ExamineGallery
from app.resources import Resources
from tests.app.test_compaction import write_into_unused_bytes
from tests.erasure_traces import NOTE, OTHER, SUBJECT, find_traces, leave_traces
from tests.flows.test_training import train
from tests.service import ERASURE_DELAY_SECONDS, ERASURE_RETRY_SECONDS, Service, run_service
from tests.workers.test_erase import add, collection, context, work
from workers.cleanup.expired_subjects import erase_expired_subjects
from workers.erasing.blockers import SETTLING_SECONDS
from workers.erasing.resumption import delete_late_snapshots, resume_erasures

BASE = "/v1/collections/staff"
UNTIL_FINAL_SECONDS = 60.0
HELD_SECONDS = ERASURE_DELAY_SECONDS + 4 * ERASURE_RETRY_SECONDS
"""How long an erasure is held up: it is tried again several times meanwhile."""


def wait_until_final(service: Service, path: str) -> dict[str, Any]:
    until = time.monotonic() + UNTIL_FINAL_SECONDS
    while time.monotonic() < until:
        receipt = service.client.get(path).raise_for_status().json()
        if receipt["state"] == "final":
            return dict(receipt)
        time.sleep(0.05)
    raise AssertionError(f"the receipt is not final: {receipt}")


def test_an_erased_subject_leaves_nothing(service: Service) -> None:
    traces = leave_traces(service, "staff")
    kinds = {name.split(" ")[0] for name in find_traces(service, traces)}
    assert kinds >= {SUBJECT, NOTE, "vector", "photo", "image"}, "before, there are traces"
    answer = service.client.delete(f"{BASE}/subjects/{SUBJECT}").raise_for_status().json()
    receipt = wait_until_final(service, answer["erasure"])
    assert find_traces(service, traces) == []
    removed = receipt["removed"]
    assert (removed["faces"], removed["photos"], removed["crops"], removed["labels"]) == (2, 2, 4, 1)
    assert (removed["answers"], removed["job_items"], removed["embeddings"]) == (1, 2, 2)
    assert sorted(receipt["faces"]) == sorted(traces.faces)
    assert (len(receipt["photos"]), receipt["target"], receipt["collection"]) == (2, "subject", "staff")
    assert receipt["subject"] == hash_subject(service.resources.installation_key, "staff", SUBJECT)
    items = service.client.get(f"/v1/jobs/{import_of(service)}/items").json()["items"]
    assert [item["name"] for item in items] == ["(erased)", "(erased)", f"{OTHER}0/0-0.png", f"{OTHER}0/0-1.png"]


def import_of(service: Service) -> str:
    with reading(service.resources.database) as session:
        return str(session.scalar(select(Job.id).where(Job.kind == "import")))


def test_a_receipt_is_signed_and_names_nobody(service: Service) -> None:
    leave_traces(service, "staff")
    answer = service.client.delete(f"{BASE}/subjects/{SUBJECT}").json()
    receipt = wait_until_final(service, answer["erasure"])
    key = service.resources.installation_key
    signature = receipt.pop("signature")
    assert is_receipt_signed(key, receipt, signature)
    assert not is_receipt_signed(key, receipt | {"models": ["another"]}, signature)
    assert "ludovica" not in json.dumps(receipt)
    listed = service.client.get("/v1/erasures", params={"collection": "staff"}).json()["erasures"]
    assert [entry["id"] for entry in listed] == [receipt["id"]]
    assert service.client.get("/v1/erasures", params={"collection": "other"}).json()["erasures"] == []
    assert service.client.get("/v1/erasures/none").status_code == 404


def test_an_answer_that_named_an_erased_person_is_not_repeated(service: Service) -> None:
    leave_traces(service, "staff")
    merged = {"json": {"into": f"{OTHER}0"}, "headers": {"Idempotency-Key": "other"}}
    service.client.put(f"{BASE}/subjects/twin-of-{OTHER}")
    path = f"{BASE}/subjects/twin-of-{OTHER}:merge"
    assert service.client.post(path, **merged).status_code == 200
    answer = service.client.delete(f"{BASE}/subjects/{SUBJECT}").json()
    wait_until_final(service, answer["erasure"])
    with reading(service.resources.database) as session:
        statuses = session.scalars(select(StoredResponse.status)).all()
    assert sorted(statuses) == [200, 200, 410], "those to the label and the merger stay"
    again = service.client.post(path, **merged)
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true"), "of somebody else"
    with writing(service.resources.database) as session:
        session.execute(update(StoredResponse).values(status=410, headers={}, body=b""))
    refused = service.client.post(path, **merged)
    assert (refused.status_code, refused.json()["code"]) == (409, "AnswerErased")


def test_one_erased_face_leaves_nothing_and_its_subject_stays(service: Service) -> None:
    traces = leave_traces(service, "staff")
    erased, kept = traces.faces
    traces.patterns = {
        name: data for name, data in traces.patterns.items() if name == NOTE or name.startswith(f"vector {erased}")
    } | {"the other face": kept.encode()}
    gone = service.client.delete(f"{BASE}/faces/{erased}").raise_for_status()
    receipt = wait_until_final(service, gone.headers["X-Erasure"])
    assert {name.split(" in ")[0] for name in find_traces(service, traces)} == {"the other face"}
    assert (receipt["target"], receipt["subject"], receipt["faces"]) == ("face", None, [erased])
    assert service.client.get(f"{BASE}/subjects/{SUBJECT}").json()["face_count"] == 1
    assert service.client.get(f"{BASE}/faces/{kept}/image").status_code == 200


def test_a_deleted_collection_leaves_nothing_even_if_it_is_created_again(service: Service) -> None:
    traces = leave_traces(service, "staff")
    gone = service.client.delete(BASE).raise_for_status()
    service.client.put(BASE).raise_for_status()
    merge = f"{BASE}/subjects/new-{OTHER}:merge"
    for name in ("new", "newer"):
        service.client.put(f"{BASE}/subjects/{name}-{OTHER}").raise_for_status()
    new = {"json": {"into": f"newer-{OTHER}"}, "headers": {"Idempotency-Key": "new"}}
    assert service.client.post(merge, **new).status_code == 200
    receipt = wait_until_final(service, gone.headers["X-Erasure"])
    assert find_traces(service, traces) == []
    assert (receipt["target"], receipt["removed"]["faces"], receipt["removed"]["photos"]) == ("collection", 4, 4)
    assert (receipt["faces"], receipt["photos"]) == ([], [])
    with reading(service.resources.database) as session:
        names = set(session.scalars(select(JobItem.name)))
        statuses = session.scalars(select(StoredResponse.status)).all()
        assert session.scalars(select(Subject.id)).all() == [f"newer-{OTHER}"]
    assert names == {"(erased)"}
    assert sorted(statuses) == [200, 200, 410], "those to the label and in the new collection stay"


def test_an_index_snapshot_with_an_erased_face_is_deleted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.serving.deployment_sync.MIN_SAVED_VECTORS", 1)
    with run_service(settings) as service:
        traces = leave_traces(service, "staff")
    snapshots = list((settings.home / "indexes").glob("*.index"))
    assert snapshots, "the process saves its index when it stops"
    with run_service(settings) as service:
        assert any("indexes/" in trace for trace in find_traces(service, traces))
        answer = service.client.delete(f"{BASE}/subjects/{SUBJECT}").json()
        wait_until_final(service, answer["erasure"])
        assert find_traces(service, traces) == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_receipt_lists_the_models_that_learned_from_a_person_who_leaves_nothing_else(service: Service) -> None:
    traces = leave_traces(service, "staff", people=16)
    model = service.wait(train(service, collection="staff", method="wpca", dim=8), 120)["result"]["model"]
    body = {"model": model, "override": True, "reason": "test"}
    published = service.wait(service.client.post(f"{BASE}/deployments/identity:publish", json=body), 120)
    assert published["state"] == "succeeded", published
    service.wait_for_indexes()
    answer = service.client.delete(f"{BASE}/subjects/{SUBJECT}").json()
    receipt = wait_until_final(service, answer["erasure"])
    assert (receipt["models"], answer["models"]) == ([model], [model])
    assert receipt["removed"]["embeddings"] == 4, "two faces under two models"
    assert find_traces(service, traces) == []


@pytest.fixture
def staff(resources: Resources) -> Resources:
    """A collection of four faces of two subjects, s0 and s1. No API and no worker runs."""
    with writing(resources.database) as session:
        collection(session, "staff")
    for n in range(4):
        add(resources, n)
    return resources


def erase_subject(resources: Resources, subject_id: str = "s0") -> str:
    with writing(resources.database) as session:
        locked = pointers.lock_collection(session, "staff")
        return subjects.erase_subject(session, locked, subjects.get_subject(session, "staff", subject_id)).erasure


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_earlier_copy_of_a_row_that_sqlite_has_moved_is_erased(staff: Resources) -> None:
    file = staff.settings.home / "likeness.sqlite"
    short_name = b"s0-of-a"  # shorter than what the fingerprints of a receipt recognise
    with writing(staff.database) as session:
        subjects.get_subject(session, "staff", "s0").external_id = short_name.decode()
    assert compact_deleted(staff.database)
    write_into_unused_bytes(file, short_name)
    erasure = erase_subject(staff)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert short_name not in file.read_bytes()


def run_examination(resources: Resources) -> str:
    """Have another worker run a long job that has read the faces of staff, and return its id."""
    with writing(resources.database) as session:
        job = jobs.enqueue(session, ExamineGallery(collection="staff"))
        job.state, job.started_at, job.worker = "running", now(), "another"
        job.lease_until = now() + 600
        return job.id


def read_state(resources: Resources, erasure: str) -> str:
    with reading(resources.database) as session:
        return session.get_one(Erasure, erasure).state


def work_until(resources: Resources, reached: Callable[[], bool]) -> None:
    until = time.monotonic() + UNTIL_FINAL_SECONDS
    while not reached() and time.monotonic() < until:
        work(resources)
        time.sleep(0.05)
    assert reached()


def test_the_job_of_an_erasure_cannot_be_cancelled(staff: Resources) -> None:
    erasure = erase_subject(staff)
    with writing(staff.database) as session:
        job = session.scalars(select(Job).where(Job.kind == "erase")).one()
        with pytest.raises(Conflict, match="cannot be cancelled"):
            cancel_job(session, job.id)
    work_until(staff, lambda: read_state(staff, erasure) == "final")


def test_an_erasure_waits_for_a_job_that_had_read_the_faces(staff: Resources) -> None:
    job_id = run_examination(staff)
    erasure = erase_subject(staff)
    with reading(staff.database) as session:
        face = session.get_one(Erasure, erasure).targets["faces"][0]
    started = time.monotonic()
    work_until(staff, lambda: time.monotonic() - started > HELD_SECONDS)
    assert read_state(staff, erasure) == "pending"
    finding = {"kind": "duplicate", "subjects": ["s1", "s0"], "faces": [face], "advice": "merge 's0' into 's1'"}
    with writing(staff.database) as session:
        jobs.end(session, job_id, "succeeded", result={"findings": [finding], "task": "s0"})
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    with reading(staff.database) as session:
        result = session.get_one(Job, job_id).result
        row = session.get_one(Erasure, erasure)
    scrubbed = {"kind": "duplicate", "subjects": ["s1", "(erased)"], "faces": ["(erased)"], "advice": "(erased)"}
    assert result == {"findings": [scrubbed], "task": "s0"}
    assert (row.contents["removed"]["reports"], row.targets) == (1, {})


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_erasure_waits_for_a_job_that_began_while_the_deletion_was_carried_out(staff: Resources) -> None:
    erasure = erase_subject_slowly(staff, run_examination)
    started = time.monotonic()
    work_until(staff, lambda: time.monotonic() - started > HELD_SECONDS)
    assert read_state(staff, erasure) == "pending"
    with writing(staff.database) as session:
        job_id = session.scalars(select(Job.id).where(Job.kind == ExamineGallery.kind)).one()
        jobs.end(session, job_id, "succeeded", result={"findings": [{"subjects": ["s1", "s0"]}]})
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    with reading(staff.database) as session:
        assert session.get_one(Job, job_id).result == {"findings": [{"subjects": ["s1", "(erased)"]}]}


def erase_subject_slowly(resources: Resources, act: Callable[[Resources], object]) -> str:
    """Act before the deletion of s0 is committed, and return its erasure."""
    with writing(resources.database) as session:
        locked = pointers.lock_collection(session, "staff")
        erasure = subjects.erase_subject(session, locked, subjects.get_subject(session, "staff", "s0")).erasure
        act(resources)
    return erasure


@pytest.mark.parametrize("function", ["unlink", "rmdir"])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_receipt_is_final_only_once_the_files_of_the_collection_are_removed(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, function: str, made_again: bool
) -> None:
    """A disk fails, or keeps what is open."""
    remove = getattr(os, function)

    def fail_in_trash(path: str, *args: Any, **kwargs: Any) -> None:
        folder = os.readlink(f"/proc/self/fd/{kwargs['dir_fd']}") if kwargs.get("dir_fd") is not None else ""
        if "/trash-" in f"{folder}/{path}":
            raise OSError(errno.EIO, "the disk fails")
        remove(path, *args, **kwargs)

    with writing(staff.database) as session:
        erasure = delete_collection(session, session.get_one(Collection, "staff")).id
    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail_in_trash)
        work(staff)
        if made_again:
            with writing(staff.database) as session:
                collection(session, "staff")
        started = time.monotonic()
        work_until(staff, lambda: time.monotonic() - started > SETTLING_SECONDS + HELD_SECONDS)
        assert read_state(staff, erasure) == "pending"
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert not list(staff.blobs.root.glob("trash-*"))


def test_an_erasure_that_waits_for_a_long_job_holds_up_none_of_another_collection(staff: Resources) -> None:
    run_examination(staff)
    waiting = erase_subject(staff)
    started = time.monotonic()
    work_until(staff, lambda: time.monotonic() - started > HELD_SECONDS)
    with writing(staff.database) as session:
        collection(session, "others")
        session.add(Subject(collection_id="others", id="p"))
        session.flush()
        locked = pointers.lock_collection(session, "others")
        erasure = subjects.erase_subject(session, locked, subjects.get_subject(session, "others", "p")).erasure
        of_waiting = Job.body["erasure"].as_string() == waiting
        session.execute(update(Job).where(of_waiting).values(not_before=now() + 300))  # as after a long wait
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert read_state(staff, waiting) == "pending"


def test_the_folder_of_an_erased_person_goes_from_faces_that_were_given_to_others(staff: Resources) -> None:
    """An import takes the subject from the folder, and the path stays when somebody says that it is another person."""
    with writing(staff.database) as session:
        others = session.scalars(select(Face).join(Subject, Subject.pk == Face.subject_pk).where(Subject.id == "s1"))
        first, second = others.all()
        first.external_image_id, second.external_image_id = "photos/s0/one.jpg", "not-s0/s0.jpg"
        subjects.get_subject(session, "staff", "s0").external_id = "personnel-550193"
        [deployment] = session.scalars(select(Deployment))
        deployment.history = [{"at": now(), "reason": "as personnel-550193 asked"}]
    erasure = erase_subject(staff)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    with reading(staff.database) as session:
        named = session.scalars(select(Face.external_image_id).order_by(Face.pk)).all()
        removed = session.get_one(Erasure, erasure).contents["removed"]
        [history] = session.scalars(select(Deployment.history))
    assert named == ["(erased)", "not-s0/s0.jpg"]
    assert [move["reason"] for move in history] == ["(erased)"]
    assert removed["reports"] == 2


def test_an_erasure_waits_for_a_request_whose_answer_will_be_stored(staff: Resources) -> None:
    with writing(staff.database) as session:
        session.add(StoredResponse(key_id="k", idempotency_key="search", fingerprint=""))
    erasure = erase_subject(staff)
    started = time.monotonic()
    work_until(staff, lambda: time.monotonic() - started > HELD_SECONDS)
    assert read_state(staff, erasure) == "pending"
    with reading(staff.database) as session:
        face = session.get_one(Erasure, erasure).targets["faces"][0]
    with writing(staff.database) as session:
        body = json.dumps({"faces": [{"matches": [{"face_id": face}]}]}).encode()
        session.execute(update(StoredResponse).values(status=200, body=body))
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    with reading(staff.database) as session:
        assert session.execute(select(StoredResponse.status, StoredResponse.body)).all() == [(410, b"")]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_receipt_is_not_final_while_a_reader_holds_the_write_ahead_log(staff: Resources) -> None:
    with staff.database.connect() as reader:
        assert reader.execute(select(func.count()).select_from(Subject)).scalar() == 2
        erasure = erase_subject(staff)
        work_until(staff, lambda: read_state(staff, erasure) == "scrubbed")
        started = time.monotonic()
        work_until(staff, lambda: time.monotonic() - started > HELD_SECONDS)
        assert read_state(staff, erasure) == "scrubbed"
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert (staff.settings.home / "likeness.sqlite-wal").stat().st_size < 100_000, "only what came after"


def test_an_erasure_without_its_job_is_resumed_by_the_sweep(staff: Resources) -> None:
    erasure = erase_subject(staff)
    with writing(staff.database) as session:
        session.execute(update(Job).values(state="failed"))
    work(staff)
    assert read_state(staff, erasure) == "pending"
    assert resume_erasures(staff) == 1
    assert resume_erasures(staff) == 0, "its job is queued"
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert resume_erasures(staff) == 0


def test_erasures_that_come_together_are_completed_together(staff: Resources) -> None:
    ids = [erase_subject(staff, name) for name in ("s0", "s1")]
    work_until(staff, lambda: {read_state(staff, erasure) for erasure in ids} == {"final"})
    with reading(staff.database) as session:
        first, second = (session.get_one(Erasure, erasure) for erasure in ids)
    assert first.finished_at == pytest.approx(second.finished_at, abs=0.2)
    assert is_receipt_signed(staff.installation_key, build_receipt(first), first.signature)


def test_a_snapshot_that_is_written_late_is_deleted_by_the_sweep(staff: Resources) -> None:
    erasure = erase_subject(staff)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    with reading(staff.database) as session:
        row = session.get_one(Erasure, erasure)
    record = {"collection": "staff", "collection_created_at": row.collection_created_at, "file": "a.1.index"}
    for name, change in (("a", row.change - 1), ("b", row.change)):
        values = record | {"file": f"{name}.1.index", "change": change}
        (staff.indexes / f"{name}.json").write_text(json.dumps(values))
        (staff.indexes / f"{name}.1.index").write_bytes(b"x")
    assert delete_late_snapshots(staff) == 1
    assert sorted(path.name for path in staff.indexes.iterdir() if path.name != "key") == ["b.1.index", "b.json"]


def test_an_expired_subject_has_a_receipt_too(staff: Resources) -> None:
    with writing(staff.database) as session:
        session.execute(update(Subject).where(Subject.id == "s1").values(retain_until=now() - 1))
    assert erase_expired_subjects(context(staff)) == 1
    with reading(staff.database) as session:
        [erasure] = session.scalars(select(Erasure))
    assert (erasure.target, erasure.contents["removed"]["faces"]) == ("subject", 2)
    assert re.fullmatch(r"[0-9a-f]{24}", erasure.id)

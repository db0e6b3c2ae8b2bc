"""Imports: every photo is enrolled or refused with a reason, exactly once, also when a worker dies."""

import io
import json
import os
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from pydantic import TypeAdapter
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Embedding, Erasure, Face, Follower, Job, JobItem, Subject, now
from app.enrolment.photo_analysis import EnrolmentRequest, analyse_photo
from app.enrolment.preparation import prepare_photos
from app.enrolment.store import EnrolmentOutcome, enrol_photos
from app.galleries import subjects
from app.galleries.deletion import delete_collection
from app.jobs.schemas import ItemOut
from app.publishing import pointers
from app.queue import jobs
from app.queue.messages import FitFirst, ImportArchive, IngestBatch, Sweep
from app.resources import Resources
from app.storage.audit_log.spool import AuditSpool
from app.storage.blob_store import Blobs
from app.storage.model_cache import LBP_MODEL
from app.storage.stored_faces import read_crops
from app.storage.upload_names import name_upload
from app.subjects.service import merge_subjects
from ml.embedders.cosine import Cosine
from ml.embedders.l2 import L2
from ml.model import Model, Recipe
from ml.types import Spec
from tests.gallery import collection
from tests.killed_process import kill_process
from tests.ml.tiny_onnx import tiny_onnx
from workers.context import Interrupted, JobContext, Later
from workers.description import describe_faces
from workers.handlers import HANDLERS, importing, ingest, sweep
from workers.importing import archive_listing, batch_enrolment, batches, row_batches
from workers.schedule import Schedule
from workers.worker import Worker


def picture(seed: int) -> bytes:
    """A textured picture that passes for an aligned face."""
    pixels = np.random.default_rng(seed).integers(40, 215, (34, 20, 3), dtype=np.uint8)
    file = io.BytesIO()
    Pillow.fromarray(pixels).resize((100, 170), Pillow.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


PEOPLE = {f"p{n % 7}/{n}.png": picture(n) for n in range(40)}


def uploaded(resources: Resources, files: dict[str, bytes]) -> Path:
    path = resources.uploads / "archive"
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture
def staff(resources: Resources) -> Resources:
    """Resources that hold the collection `staff`."""
    with writing(resources.database) as session:
        collection(session, "staff")
    return resources


def asked(resources: Resources, path: Path, **options: Any) -> str:
    message = ImportArchive(collection="staff", path=str(path), **{"aligned": True} | options)
    with writing(resources.database) as session:
        return jobs.enqueue(session, message).id


def drain(resources: Resources, until: str) -> Job:
    """Run one worker until that job has ended."""
    worker = Worker(resources, "default")
    for _ in range(500):
        worker.step()
        with reading(resources.database) as session:
            job = session.get_one(Job, until)
            if job.finished_at:
                return job
        resources.notifier.wait("jobs", 0.02)
    raise AssertionError("the job did not end")


def items(resources: Resources, job: str) -> dict[str, tuple[str, dict[str, Any]]]:
    with reading(resources.database) as session:
        rows = session.scalars(select(JobItem).where(JobItem.job_id == job))
        return {i.name: (i.state, i.detail) for i in rows}


def count(resources: Resources, row: type[Any]) -> int:
    with reading(resources.database) as session:
        return session.scalar(select(func.count()).select_from(row)) or 0


def test_every_photo_becomes_a_face_under_its_folder(staff: Resources) -> None:
    path = uploaded(staff, PEOPLE | {"nobody.png": picture(99)})
    job = drain(staff, asked(staff, path))
    assert (job.state, job.done, job.failed, job.total) == ("succeeded", 41, 0, 41), job.problem
    assert job.result is not None
    assert (job.result["enrolled"], job.result["refused"]) == (41, 0)
    assert (count(staff, Face), count(staff, Subject), count(staff, Embedding)) == (41, 7, 41)
    assert all(state == "done" and len(detail["face_ids"]) == 1 for state, detail in items(staff, job.id).values())
    with reading(staff.database) as session:
        assert session.get_one(Collection, "staff").change == job.result["change"]
        nobody = session.scalar(select(Face).where(Face.external_image_id == "nobody.png"))
        assert nobody is not None
        assert nobody.subject_pk is None
    assert not path.exists()
    again = drain(staff, asked(staff, uploaded(staff, PEOPLE)))
    assert (again.done, again.failed, count(staff, Face)) == (40, 0, 41)


def test_a_refused_file_is_listed_with_its_reason(staff: Resources) -> None:
    files = {
        "a/1.png": picture(1),
        "b/1.png": picture(1),
        "a/README.txt": b"read me",
        "a/cut.png": picture(2)[:-200],
        "a/.DS_Store": b"hidden",
        "__MACOSX/a/._1.png": b"hidden",
        "a\x01b/1.png": picture(3),
    }
    job = drain(staff, asked(staff, uploaded(staff, files)))
    assert (job.state, job.done, job.failed, job.total) == ("succeeded", 1, 4, 5)
    reasons = {name: detail["reasons"] for name, (state, detail) in items(staff, job.id).items() if state == "failed"}
    assert reasons == {
        "b/1.png": ["DUPLICATE"],
        "a/README.txt": ["InvalidImageFormat"],
        "a/cut.png": ["InvalidImageFormat"],
        "a\x01b/1.png": ["INVALID_SUBJECT"],
    }
    with reading(staff.database) as session:
        assert session.scalars(select(Subject.id)).all() == ["a"], "a refused photo makes no subject"


def test_a_photo_whose_first_person_has_refused_is_enrolled_for_the_next(staff: Resources) -> None:
    drain(staff, asked(staff, uploaded(staff, {"a/0.png": picture(5)})))
    with writing(staff.database) as session:
        session.execute(update(Subject).values(consent=False))
    job = drain(staff, asked(staff, uploaded(staff, {"a/1.png": picture(1), "b/1.png": picture(1)})))
    assert {name: state for name, (state, _) in items(staff, job.id).items()} == {
        "a/1.png": "failed",
        "b/1.png": "done",
    }


def test_a_refused_item_names_nobody_but_whom_its_path_names(staff: Resources) -> None:
    drain(staff, asked(staff, uploaded(staff, {"ann/1.png": picture(1), "zoe/2.png": picture(2)})))
    with writing(staff.database) as session:
        merge_subjects(session, "staff", "ann", "zoe", needs_consent=False)
        session.execute(update(Subject).values(consent=False))
    job = drain(staff, asked(staff, uploaded(staff, {"ann/1.png": picture(1), "zoe/3.png": picture(3)})))
    with reading(staff.database) as session:
        rows = session.scalars(select(JobItem).where(JobItem.job_id == job.id).order_by(JobItem.name))
        merged, kept = (ItemOut.of(row).model_dump_json() for row in rows)
    assert '"DUPLICATE"' in merged
    assert "zoe" not in merged
    assert '"NO_CONSENT"' in kept
    assert "ann" not in kept


def test_a_photo_without_a_face_is_refused(staff: Resources) -> None:
    file = io.BytesIO()
    Pillow.new("RGB", (200, 200), "grey").save(file, "PNG")
    job = drain(staff, asked(staff, uploaded(staff, {"a/1.png": file.getvalue()}), aligned=False))
    assert items(staff, job.id)["a/1.png"] == ("failed", {"face_ids": [], "reasons": ["NO_FACE"]})


def test_a_table_in_the_archive_overrides_the_folders(staff: Resources) -> None:
    rows = ("x/0.png,ada,nr 7,,gate-2,36", "x/1.png,,,distractor,,", "x/9.png,ada,,,,")
    table = "\n".join(["file,subject,external_id,role,source,age", *rows, ""])
    files = {"manifest.csv": table.encode(), **{f"x/{n}.png": picture(n) for n in range(3)}}
    job = drain(staff, asked(staff, uploaded(staff, files)))
    assert (job.done, job.failed) == (2, 2)
    items_now = items(staff, job.id)
    assert items_now["x/2.png"] == ("failed", {"reasons": ["NOT_IN_MANIFEST"]})
    assert items_now["x/9.png"] == ("failed", {"reasons": ["FILE_MISSING"]})
    with reading(staff.database) as session:
        [ada] = session.scalars(select(Subject))
        faces = {f.external_image_id: f for f in session.scalars(select(Face))}
    assert (ada.id, ada.external_id) == ("ada", "nr 7")
    assert (faces["x/0.png"].subject_pk, faces["x/0.png"].attributes) == (ada.pk, {"age": "36"})
    assert (faces["x/1.png"].subject_pk, faces["x/1.png"].role) == (None, "distractor")
    assert (faces["x/0.png"].source, faces["x/1.png"].source) == ("gate-2", None)


def test_blanks_around_a_name_are_dropped_and_invisible_characters_refused(staff: Resources) -> None:
    files = {name: picture(n) for n, name in enumerate((" ada/0.png", "ada /1.png", "ad\u200ba/2.png", " /3.png"))}
    job = drain(staff, asked(staff, uploaded(staff, files)))
    assert {name: reasons for name, (_, detail) in items(staff, job.id).items() if (reasons := detail["reasons"])} == {
        "ad\u200ba/2.png": ["INVALID_SUBJECT"],
        " /3.png": ["INVALID_SUBJECT"],
    }
    table = {"manifest.csv": "file,subject\nx.png,\u00a0ada \n".encode(), "x.png": picture(9)}
    assert drain(staff, asked(staff, uploaded(staff, table))).done == 1
    with reading(staff.database) as session:
        assert session.scalars(select(Subject.id)).all() == ["ada"]


@pytest.mark.parametrize("is_listed_by_earlier_version", [False, True])
@pytest.mark.parametrize("stored", [None, "Zoe\u0308"])
def test_folders_whose_names_are_composed_otherwise_are_one_person(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, stored: str | None, is_listed_by_earlier_version: bool
) -> None:
    if is_listed_by_earlier_version:
        monkeypatch.setattr(archive_listing, "SUBJECT", TypeAdapter(str))
    if stored:
        with writing(staff.database) as session:
            session.add(Subject(collection_id="staff", id=stored))
    files = {"Zo\u00eb/0.png": picture(0), "Zoe\u0308/1.png": picture(1)}
    job = drain(staff, asked(staff, uploaded(staff, files)))
    assert (job.state, job.done, job.failed) == ("succeeded", 2, 0)
    with reading(staff.database) as session:
        assert session.scalars(select(Subject.id)).all() == [stored or "Zo\u00eb"]
        assert None not in session.scalars(select(Face.subject_pk)).all()


def test_a_manifest_with_an_invisible_character_is_refused(staff: Resources) -> None:
    table = {"manifest.csv": "file,subject\nx.png,ad\u200ba\n".encode(), "x.png": picture(9)}
    job = drain(staff, asked(staff, uploaded(staff, table)))
    assert job.problem is not None
    assert "line 1 of manifest.csv" in job.problem["detail"]
    assert "U+200B ZERO WIDTH SPACE" in job.problem["detail"]


def test_the_photos_of_an_import_have_its_source(staff: Resources) -> None:
    job = asked(staff, uploaded(staff, {"ada/0.png": picture(0)}), source="scanner-3")
    assert drain(staff, job).done == 1
    with reading(staff.database) as session:
        assert session.scalars(select(Face.source)).all() == ["scanner-3"]


@pytest.mark.parametrize(
    ("files", "phrase"),
    [
        ({**PEOPLE, "../evil.png": b"x"}, "leads out"),
        ({"__MACOSX/x": b""}, "no file"),
        ({**PEOPLE, "manifest.csv": b"file\na\na\n"}, "second time"),
    ],
)
def test_nothing_of_a_hostile_archive_is_stored(staff: Resources, files: dict[str, bytes], phrase: str) -> None:
    path = uploaded(staff, files)
    job = drain(staff, asked(staff, path))
    assert job.state == "failed"
    assert job.problem is not None
    assert job.problem["code"] == "InvalidArchive"
    assert phrase in job.problem["detail"]
    assert (count(staff, Face), count(staff, JobItem), path.exists()) == (0, 0, False)
    assert not list(staff.blobs.names("staff"))


@pytest.mark.parametrize("total", [1, 40, 257, 5_409])
def test_parts_cover_every_photo_once_and_grow_smaller_towards_the_end(resources: Resources, total: int) -> None:
    with writing(resources.database) as session:
        job = jobs.enqueue(session, ImportArchive(collection="staff", path="archive"))
        job.total = total
    cut: list[tuple[int, int]] = []
    while True:
        with writing(resources.database) as session:
            if not batches.enqueue_batches(session, session.get_one(Job, job.id)):
                break
            parts = session.scalars(select(Job).where(Job.parent_id == job.id, Job.state == "queued")).all()
            assert 0 < len(parts) <= batches.MAX_LIVE_BATCHES
            cut += sorted((p.body["first"], p.body["last"]) for p in parts)
            assert len(cut) <= total
            session.execute(update(Job).where(Job.parent_id == job.id).values(state="succeeded"))
    assert [n for first, last in cut for n in range(first, last)] == list(range(total))
    sizes = [last - first for first, last in cut]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) <= batches.MAX_BATCH_PHOTOS
    assert sizes[-1] <= batches.MIN_BATCH_PHOTOS or len(sizes) == 1


def test_a_part_that_runs_twice_changes_nothing(staff: Resources) -> None:
    job = asked(staff, uploaded(staff, PEOPLE))
    worker = Worker(staff, "default")
    worker.step()
    with writing(staff.database) as session:
        part = session.scalars(select(Job).where(Job.parent_id == job).order_by(Job.id)).first()
        assert part is not None
        message = jobs.read_message(part)
    assert isinstance(message, IngestBatch)
    threads = [
        threading.Thread(target=ingest.ingest_batch, args=(message, JobContext(part.id, "w", staff))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with reading(staff.database) as session:
        assert session.get_one(Job, job).done == count(staff, Face) == message.last - message.first
    done = drain(staff, job)
    assert (done.done, done.failed, count(staff, Face)) == (40, 0, 40)


def wait(resources: Resources, job: str, until: float) -> None:
    with writing(resources.database) as session:
        session.execute(update(Job).where(Job.id == job).values(not_before=until))


def test_an_import_continues_after_its_worker_died(staff: Resources) -> None:
    job = asked(staff, uploaded(staff, PEOPLE))
    worker = Worker(staff, "default")
    worker.step()
    wait(staff, job, now() + 3600)  # a slow test is to lose parts alone, not the import, whose tries run out
    for _ in range(3):
        with writing(staff.database) as session:
            part = jobs.claim(session, queue="default", worker="dead", lease=-1)
            assert part is not None
            assert part.parent_id == job
        with writing(staff.database) as session:
            assert jobs.free_abandoned(session) == 1
    wait(staff, job, 0.0)
    done = drain(staff, job)
    assert (done.state, done.done, done.failed, count(staff, Face)) == ("succeeded", 40, 0, 40)


def test_a_photo_that_keeps_killing_its_worker_is_the_only_one_refused(staff: Resources) -> None:
    job = asked(staff, uploaded(staff, PEOPLE))
    Worker(staff, "default").step()
    with writing(staff.database) as session:
        killer = session.get_one(JobItem, (job, 3))
        killer.detail = killer.detail | {"tried": batch_enrolment.MAX_TRIES}
        session.execute(update(Job).where(Job.parent_id == job).values(tries=jobs.MAX_TRIES - 1))
    done = drain(staff, job)
    assert (done.state, done.done, done.failed) == ("succeeded", 39, 1)
    assert items(staff, job)[killer.name] == ("failed", {"reasons": ["WORKER_LOST"]})


def test_a_part_whose_worker_was_lost_runs_again(staff: Resources) -> None:
    job = asked(staff, uploaded(staff, PEOPLE))
    Worker(staff, "default").step()
    with writing(staff.database) as session:
        lost = update(Job).where(Job.parent_id == job)
        session.execute(lost.values(state="failed", problem={"code": "WorkerLost"}, finished_at=now()))
    done = drain(staff, job)
    assert (done.state, done.done, done.failed) == ("succeeded", 40, 0)


def test_a_part_that_keeps_failing_is_refused_and_the_import_ends(staff: Resources) -> None:
    job = asked(staff, uploaded(staff, PEOPLE))
    Worker(staff, "default").step()
    with writing(staff.database) as session:
        part = session.scalars(select(Job).where(Job.parent_id == job).order_by(Job.id)).first()
        assert part is not None
        jobs.end(session, part.id, "failed", problem={"code": "InternalServerError"})
    done = drain(staff, job)
    assert (done.state, done.done, done.failed) == ("failed", 8, 32)
    assert done.problem is not None
    assert done.problem["code"] == "PartFailed"


def test_parts_have_their_turn_however_many_imports_wait(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking after all imports that wait takes longer than they wait, so that one of them is always due."""
    monkeypatch.setattr(importing, "POLL_SECONDS", 0.0)
    path = uploaded(staff, dict(list(PEOPLE.items())[:4]))
    imports = [asked(staff, path, remove_after=False) for _ in range(3)]
    assert [drain(staff, job).state for job in imports] == ["succeeded"] * 3
    assert count(staff, Face) == 4


def test_a_cancelled_import_stops(staff: Resources) -> None:
    job = asked(staff, uploaded(staff, PEOPLE))
    worker = Worker(staff, "default")
    worker.step()
    worker.step()
    with writing(staff.database) as session:
        jobs.cancel(session, session.get_one(Job, job))
    while worker.step():
        continue
    with reading(staff.database) as session:
        assert session.get_one(Job, job).state == "cancelled"
        assert 0 < session.get_one(Job, job).done == count(staff, Face) < 40


def test_the_archive_of_a_cancelled_import_is_deleted_once_its_parts_have_ended(staff: Resources) -> None:
    path = uploaded(staff, PEOPLE)
    others = [staff.uploads / name for name in ("not-asked-for-yet", "live", "archive.0123.part")]
    for other in others:
        other.write_bytes(b"x")
    job, live = asked(staff, path), asked(staff, others[1])
    with writing(staff.database) as session:
        part = jobs.enqueue(session, IngestBatch(job=job, first=0, last=9), parent=job)
        part.state = "running"
        jobs.cancel(session, session.get_one(Job, job))
        session.flush()
        assert (session.get_one(Job, job).state, session.get_one(Job, live).state) == ("cancelled", "queued")
    Schedule(staff).tick()
    assert path.exists()
    with writing(staff.database) as session:
        jobs.end(session, part.id, "cancelled")
    Schedule(staff).tick()
    assert set(staff.uploads.iterdir()) == set(others[:2])


@pytest.mark.parametrize("is_whole", [False, True])
def test_nothing_names_the_people_of_a_cancelled_import_after_their_erasure(staff: Resources, is_whole: bool) -> None:
    path = uploaded(staff, PEOPLE)
    job = asked(staff, path)
    Worker(staff, "default").step()
    Worker(staff, "default").step()
    live = asked(staff, staff.uploads / "live")
    with writing(staff.database) as session:
        session.get_one(Job, live).not_before = now() + 60
        session.add(JobItem(job_id=live, number=0, name="p1/1.png"))
        jobs.cancel(session, session.get_one(Job, job))
    with writing(staff.database) as session:
        gallery = pointers.lock_collection(session, "staff")
        if is_whole:
            erasure = delete_collection(session, gallery).id
        else:
            erasure = subjects.erase_subject(session, gallery, session.scalars(SUBJECT_P1).one()).erasure
    for _ in range(200):
        Worker(staff, "default").step()
        with reading(staff.database) as session:
            if session.get_one(Erasure, erasure).state == "final":
                break
        time.sleep(0.02)
    assert not path.exists()
    left = {name for name in items(staff, job) if is_whole or name.startswith("p1/")} - {"(erased)"}
    assert left == set()
    assert set(items(staff, live)) == {"(erased)" if is_whole else "p1/1.png"}


SUBJECT_P1 = select(Subject).where(Subject.id == "p1")


def test_the_archive_of_an_import_whose_workers_died_is_deleted(staff: Resources) -> None:
    path = uploaded(staff, PEOPLE)
    job = asked(staff, path)
    with writing(staff.database) as session:
        session.execute(update(Job).where(Job.id == job).values(state="running", tries=jobs.MAX_TRIES, lease_until=1.0))
    Schedule(staff).tick()
    with reading(staff.database) as session:
        assert (session.get_one(Job, job).problem or {})["code"] == "WorkerLost"
    assert not path.exists()


def test_the_uploads_of_a_process_that_has_ended_are_deleted_unless_an_import_reads_them(staff: Resources) -> None:
    alive, stopped, killed = AuditSpool(staff.audit), AuditSpool(staff.audit), kill_process(staff.audit)
    stopped.close()
    try:
        abandoned, left, read, young, received = (
            staff.uploads / name_upload(process)
            for process in (killed, stopped.process, stopped.process, stopped.process, alive.process)
        )
        earlier = staff.uploads / "0647a1e2b15c93d07f4ea86b"
        table = abandoned.with_name(f"{abandoned.name}.table")
        for path in (abandoned, table, left, read, young, received, earlier):
            path.write_bytes(b"x")
        for path in (abandoned, table, left, read, received, earlier):
            os.utime(path, (now() - 120, now() - 120))
        asked(staff, read)
        Schedule(staff).tick()
        assert set(staff.uploads.iterdir()) == {read, young, received, earlier}, "an earlier name says no process"
    finally:
        alive.close()


def test_a_worker_goes_on_if_an_upload_cannot_be_deleted(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(resources: Resources) -> int:
        raise PermissionError("not permitted")

    monkeypatch.setattr("workers.schedule.remove_ended_uploads", fail)
    Schedule(staff).tick()


def test_an_import_ends_when_all_indexes_hold_its_faces(staff: Resources) -> None:
    job = asked(staff, uploaded(staff, PEOPLE))
    with writing(staff.database) as session:
        values = {"task": "identity", "model_id": LBP_MODEL, "vectors": 0}
        session.add(Follower(process="alive", collection_id="staff", change=0, seen_at=now() + 14, **values))
        session.add(Follower(process="dead", collection_id="staff", change=0, seen_at=now() - 60, **values))
    worker = Worker(staff, "default")
    for _ in range(30):
        worker.step()
        staff.notifier.wait("jobs", 0.02)
    with writing(staff.database) as session:
        held = session.get_one(Job, job)
        assert (held.done, held.finished_at) == (40, None)
        change = session.get_one(Collection, "staff").change
        session.execute(update(Follower).where(Follower.process == "alive").values(change=change))
    assert drain(staff, job).state == "succeeded"


def test_imports_request_the_first_model_once(staff: Resources) -> None:
    small = staff.settings.model_copy(update={"wpca_after_faces": 20})
    object.__setattr__(staff, "settings", small)
    drain(staff, asked(staff, uploaded(staff, PEOPLE)))
    drain(staff, asked(staff, uploaded(staff, {f"q/{n}.png": picture(100 + n) for n in range(40)})))
    with reading(staff.database) as session:
        [job] = session.scalars(select(Job).where(Job.kind == FitFirst.kind))
        created_at = session.get_one(Collection, "staff").created_at
    assert job.body == {"collection": "staff", "bound_to": {"staff": created_at}}


def test_a_model_deployed_between_description_and_storage_is_embedded_too(staff: Resources) -> None:
    looked = [analyse_photo(staff, picture(1), EnrolmentRequest(aligned=True))]
    ready = prepare_photos(staff, "staff", looked)
    with writing(staff.database) as session:
        staff.models.keep(session, Model("later", Recipe(), "l2", L2()))
        session.flush()
        session.get_one(Deployment, ("staff", "identity")).challenger = "later"
    [outcome] = enrol_photos(staff, "staff", looked, ready)
    assert outcome.new
    with reading(staff.database) as session:
        assert set(session.scalars(select(Embedding.model_id))) == {LBP_MODEL, "later"}


def serves_dear(resources: Resources, manifest: Path, pointer: str = "champion") -> Recipe:
    """A model of a dear descriptor serves `staff` from now on."""
    recipe = Recipe((Spec("onnx", {"manifest": str(manifest)}),))
    with writing(resources.database) as session:
        resources.models.keep(session, Model("dear", recipe, "cosine", Cosine()))
        session.flush()
        setattr(session.get_one(Deployment, ("staff", "identity")), pointer, "dear")
    return recipe


def kept(resources: Resources) -> set[str]:
    return {name for name in resources.blobs.names("staff") if name.endswith(".f16")}


def test_an_expensive_descriptor_is_cached_once_per_imported_face(staff: Resources, tmp_path: Path) -> None:
    recipe = serves_dear(staff, tiny_onnx(tmp_path))
    drain(staff, asked(staff, uploaded(staff, PEOPLE)))
    with reading(staff.database) as session:
        faces = list(session.scalars(select(Face)))
    [key] = recipe.keys
    assert kept(staff) == {Blobs.described(f.image_id, 0, key) for f in faces}
    fresh = recipe.describe({kind: read_crops(staff.blobs, faces, kind) for kind in recipe.crops})
    staff.blobs.remove("staff", [Blobs.crop(f.image_id, 0, "colour") for f in faces])
    read = describe_faces(JobContext("j", "w", staff), recipe, faces)
    np.testing.assert_allclose(read, fresh, rtol=2e-3)
    others = {f"another/{n}.png": picture(n) for n in range(9)}
    assert drain(staff, asked(staff, uploaded(staff, others))).failed == 9, "they are somebody else's"
    cached = sorted(name for name in staff.blobs.names("staff") if name.endswith(".f16"))
    assert cached == sorted(Blobs.described(f.image_id, 0, key) for f in faces), (
        "a name is listed as often as it is stored"
    )


def test_the_cached_descriptor_of_a_failed_enrolment_is_swept(staff: Resources, tmp_path: Path) -> None:
    serves_dear(staff, tiny_onnx(tmp_path))
    looked = [analyse_photo(staff, picture(1), EnrolmentRequest(aligned=True))]
    ready = prepare_photos(staff, "staff", looked)
    assert not kept(staff), "nothing is written before its crops are"
    with pytest.raises(RuntimeError):
        enrol_photos(staff, "staff", looked, ready, dies)
    assert len(kept(staff)) == 1
    for name in [*staff.blobs.names("staff")]:
        os.utime(staff.blobs.root / "c-staff" / name, (0, 0))
    sweep.sweep_all(Sweep(), JobContext("j", "w", staff))
    assert not [*staff.blobs.names("staff")]


def dies(session: Session, outcomes: list[EnrolmentOutcome]) -> None:
    raise RuntimeError


def test_an_expensive_model_deployed_between_description_and_storage_is_cached_too(
    staff: Resources, tmp_path: Path
) -> None:
    looked = [analyse_photo(staff, picture(1), EnrolmentRequest(aligned=True))]
    ready = prepare_photos(staff, "staff", looked)
    assert not ready.files
    [key] = serves_dear(staff, tiny_onnx(tmp_path), "challenger").keys
    enrol_photos(staff, "staff", looked, ready)
    assert kept(staff) == {Blobs.described(looked[0].image_id, 0, key)}


def test_an_import_does_not_change_a_folder_of_the_server(staff: Resources, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for name, data in PEOPLE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    job = drain(staff, asked(staff, folder, remove_after=False))
    assert (job.state, job.done) == ("succeeded", 40)
    assert sum(p.is_file() for p in folder.rglob("*")) == 40


@pytest.mark.parametrize("table", [{}, {"manifest.csv": b"file,subject\np0/0.png,ada\n"}])
def test_a_long_listing_is_the_same_when_it_is_read_again(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, table: dict[str, bytes]
) -> None:
    path, context = uploaded(staff, PEOPLE | table), JobContext("job", "w", staff)
    remembered = list(archive_listing.iterate_items(path, context))
    monkeypatch.setattr(archive_listing, "MAX_REMEMBERED_ENTRIES", len(PEOPLE) - 1)
    assert list(archive_listing.iterate_items(path, context)) == remembered
    assert len(remembered) == len(PEOPLE)


def test_long_metadata_of_a_manifest_is_stored_in_several_transactions(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{name},{'n' * 1_000}" for name in PEOPLE]
    path = uploaded(staff, PEOPLE | {"manifest.csv": "\n".join(["file,note", *lines]).encode()})
    job, counts = asked(staff, path), list[int]()

    def insert_items(session: Session, statement: Any, rows: Any = None, **others: Any) -> Any:
        if isinstance(rows, list):
            counts.append(len(rows))
        return execute(session, statement, rows, **others)

    execute = Session.execute
    monkeypatch.setattr(Session, "execute", insert_items)
    monkeypatch.setattr(row_batches, "MAX_BATCH_CHARACTERS", 10_000)
    archive_listing.list_archive(path, JobContext(job, "w", staff))
    monkeypatch.undo()
    assert (max(counts), sum(counts), count(staff, JobItem)) == (10, 40, 40)


def test_a_postponed_job_is_taken_at_its_time(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[float] = []

    def put_off(message: FitFirst, context: JobContext) -> dict[str, Any]:
        seconds.append(time.monotonic())
        if len(seconds) == 1:
            raise Later(0.1)
        worker.stopping.set()
        return {}

    monkeypatch.setattr("workers.worker.HANDLERS", HANDLERS | {FitFirst: put_off})
    slow = resources.settings.model_copy(update={"poll_seconds": 20.0})
    worker = Worker(replace(resources, settings=slow), "default")
    with writing(resources.database) as session:
        jobs.enqueue(session, FitFirst(collection="staff"))
    worker.run()
    assert 0.1 <= seconds[1] - seconds[0] < 10


def test_a_listing_that_is_interrupted_starts_again(staff: Resources) -> None:
    job = asked(staff, uploaded(staff, PEOPLE))
    with writing(staff.database) as session:
        session.add(JobItem(job_id=job, number=77, name="left over", detail={}))
    context = JobContext(job, "w", staff)
    context.interrupted.set()
    message = ImportArchive(collection="staff", path=str(staff.uploads / "archive"), aligned=True)
    with pytest.raises(Interrupted):
        importing.import_archive(message, context)
    done = drain(staff, job)
    assert (done.done, done.total) == (40, 40)
    assert json.dumps(sorted(items(staff, job))) == json.dumps(sorted(PEOPLE))

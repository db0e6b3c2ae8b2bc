"""Snapshots over HTTP: taken, restored beside their collection, and without what is erased in the service."""

import errno
import os
import resource
import shutil
import tarfile
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import Response
from sqlalchemy import create_engine, func, select, update
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from app.cli.main import app
from app.db.session import reading, writing
from app.db.tables import (
    Atlas,
    Collection,
    Deployment,
    Erasure,
    Face,
    FaceCoordinates,
    Job,
    KeptSnapshot,
    StoredCompensation,
    Subject,
    TrainingPolicy,
    now,
)
from app.deps.caller import Caller
from app.errors import Busy, Conflict, Invalid
from app.galleries.deletion import delete_collection
from app.galleries.erased_names import ErasedNames
from app.kept_snapshots import service
from app.kept_snapshots.schemas import SnapshotIn, SnapshotOut
from app.kept_snapshots.service import start_snapshot
from app.queue import jobs
from app.queue.messages import ExamineGallery, RestoreSnapshot, TakeSnapshot
from app.resources import Resources
from app.snapshots import erasure as snapshot_erasure
from app.snapshots.blanks import BLANKING, blank_members
from app.snapshots.collection_restore import RestoreOptions, restore_collection
from app.snapshots.erasure import SnapshotErasure
from app.snapshots.files import read_files, write_files
from app.snapshots.manifest import FILES, ROWS, SnapshotManifest
from app.snapshots.reader import check_snapshot
from app.snapshots.reservations import RESERVATION
from app.snapshots.restore import restore_service
from app.storage.blob_store import Blobs
from app.storage.snapshot_folders import MANIFEST, list_snapshot_folders, locate_snapshot
from ml import files
from ml.compensation import fit_compensation
from ml.files import hash_file
from tests.erasure_traces import OTHER, SUBJECT, find_traces, leave_traces
from tests.lost_commits import lose_commit
from tests.rows import people
from tests.service import Service
from tests.workers.test_erasing import (
    BASE,
    context,
    erase_subject,
    read_state,
    staff,
    wait_until_final,
    work,
    work_until,
)
from workers.cleanup.expired_subjects import erase_expired_subjects
from workers.cleanup.snapshots import remove_unfinished_snapshots
from workers.context import Interrupted, JobContext, Later
from workers.handlers import snapshot
from workers.handlers.snapshot import restore_snapshot, take_snapshot

__all__ = ["staff"]


def take(service: Service, collection: str | None = None) -> str:
    """Take a snapshot over HTTP, wait for it, and return its id."""
    started = service.client.post("/v1/snapshots", json={"collection": collection})
    job = service.wait(started)
    assert job["state"] == "succeeded", job
    return str(started.json()["snapshot"])


def quiet(step: str, done: int, total: int | None) -> None:
    """Report no progress."""


def rank(client: httpx.Client, collection: str) -> list[Any]:
    """Search by each face of a collection: subjects and probabilities of the matches."""
    listed = client.get(f"/v1/collections/{collection}/faces").raise_for_status().json()["faces"]
    answers = []
    for face in listed:
        found = client.post(f"/v1/collections/{collection}/faces/{face['face_id']}/search").raise_for_status().json()
        matches = found["faces"][0]["matches"]
        answers.append([(match["subject"]["id"], match["distance"]) for match in matches])
    return answers


def test_an_erased_subject_is_in_no_kept_snapshot_and_the_rest_is_restored(service: Service, tmp_path: Path) -> None:
    client, home = service.client, service.resources.settings.home
    traces = leave_traces(service, "staff", people=2)
    whole, single = take(service), take(service, "staff")
    stores = {trace.rpartition(" in ")[2] for trace in find_traces(service, traces)}
    assert {f"snapshots/{name}/{file}" for name in (whole, single) for file in ("rows.sqlite", "files.tar")} <= stores
    shutil.copytree(locate_snapshot(home, whole), tmp_path / "before")
    answer = client.delete(f"{BASE}/subjects/{SUBJECT}").raise_for_status().json()
    receipt = wait_until_final(service, answer["erasure"])
    assert find_traces(service, traces) == []
    assert (receipt["removed"]["snapshots_rewritten"], receipt["removed"]["snapshots_deleted"]) == (2, 0)
    for name in (whole, single):
        assert check_snapshot(locate_snapshot(home, name), quiet).rows["faces"] == 4
        entry = client.get(f"/v1/snapshots/{name}").json()
        assert (entry["state"], entry["faces"], entry["erased_at"] is None) == ("ready", 4, False)
    body = {"collection": "staff", "name": "staff-2"}
    restored = service.wait(client.post(f"/v1/snapshots/{whole}:restore", json=body))
    assert restored["result"] | {"files": 0} == {"collection": "staff-2", "faces": 4, "files": 0}
    service.wait_for_indexes()
    assert rank(client, "staff-2") == rank(client, "staff")
    assert {subject["id"] for subject in client.get("/v1/collections/staff-2/subjects").json()["subjects"]} == {
        f"{OTHER}0",
        f"{OTHER}1",
    }
    kept = client.post(f"/v1/snapshots/{single}:restore", json={"name": "staff-3", "face_ids": "keep"})
    assert "face ids are unique" in service.wait(kept)["problem"]["detail"]
    environment = {"LIKENESS_HOME": str(home), "LIKENESS_DATABASE_URL": service.resources.settings.database_url}
    verify = ["erase", "verify", receipt["id"]]
    assert CliRunner().invoke(app, verify, env=environment).exit_code == 0
    shutil.copytree(tmp_path / "before", home / "snapshots" / "before")
    found = CliRunner().invoke(app, verify, env=environment)
    assert (found.exit_code, "snapshots/before/rows.sqlite" in found.output) == (1, True)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_deleted_collection_takes_its_snapshots_with_it(service: Service) -> None:
    client, home = service.client, service.resources.settings.home
    traces = leave_traces(service, "staff")
    client.put("/v1/collections/others").raise_for_status()
    whole, single, other = take(service), take(service, "staff"), take(service, "others")
    receipt = wait_until_final(service, client.delete(BASE).raise_for_status().headers["X-Erasure"])
    assert find_traces(service, traces) == []
    assert (receipt["removed"]["snapshots_rewritten"], receipt["removed"]["snapshots_deleted"]) == (1, 1)
    assert client.get(f"/v1/snapshots/{single}").status_code == 404
    assert not locate_snapshot(home, single).exists()
    listed = client.get("/v1/snapshots").json()["snapshots"]
    assert [(entry["id"], entry["collection"], entry["faces"]) for entry in listed] == [
        (other, "others", 0),
        (whole, None, 0),
    ]
    check_snapshot(locate_snapshot(home, whole), quiet)
    missing = client.post(f"/v1/snapshots/{whole}:restore", json={"collection": "staff", "name": "staff"})
    assert service.wait(missing)["problem"]["code"] == "ResourceNotFound"
    assert client.delete(f"/v1/snapshots/{whole}").status_code == 204
    assert client.get(f"/v1/snapshots/{whole}").status_code == 404
    assert [path.name for path in (home / "snapshots").iterdir()] == [other]


def begin(resources: Resources, message: TakeSnapshot | RestoreSnapshot) -> JobContext:
    """Enqueue a job and start it, as a worker would."""
    with writing(resources.database) as session:
        if isinstance(message, TakeSnapshot):
            session.add(KeptSnapshot(id=message.snapshot, collection_id=message.collection))
        job = jobs.enqueue(session, message)
        job.state, job.started_at, job.worker, job.lease_until = "running", now(), "test", now() + 600
    return JobContext(job.id, "test", resources)


def finish(resources: Resources, running: JobContext, result: dict[str, Any]) -> None:
    with writing(resources.database) as session:
        jobs.end(session, running.job_id, "succeeded", result=result)


def take_directly(resources: Resources, name: str, collection: str | None = None) -> Path:
    """Take a snapshot without a worker, and return its folder."""
    message = TakeSnapshot(snapshot=name, collection=collection)
    running = begin(resources, message)
    finish(resources, running, take_snapshot(message, running))
    return locate_snapshot(resources.settings.home, name)


def read_erased(resources: Resources, erasure: str) -> list[ErasedNames]:
    """Return what an erasure removes, as `erase_from_snapshot` takes it."""
    with reading(resources.database) as session:
        return [ErasedNames.of(session.get_one(Erasure, erasure))]


def assert_nothing_else(folder: Path) -> None:
    """Check that a folder holds what its manifest names, and nothing else but empty files."""
    named = {MANIFEST, FILES, SnapshotManifest.read(folder).rows_file}
    assert {path.name for path in folder.iterdir() if path.stat().st_size} == named


def holds(folder: Path, pattern: bytes) -> bool:
    return any(pattern in path.read_bytes() for path in folder.iterdir())


def find_image(resources: Resources, subject: str) -> bytes:
    with reading(resources.database) as session:
        faces = select(Face.image_id).join(Subject, Subject.pk == Face.subject_pk).where(Subject.id == subject)
        return str(session.scalars(faces).first()).encode()


def test_an_erasure_waits_for_a_snapshot_that_has_copied_the_faces(staff: Resources) -> None:
    message, image = TakeSnapshot(snapshot="late"), find_image(staff, "s0")
    running = begin(staff, message)
    erased: list[str] = []

    def erase_after_the_files(done: int, total: int | None = None, failed: int = 0) -> None:
        if not erased:
            erased.append(erase_subject(staff))
            work(staff)

    object.__setattr__(running, "progress", erase_after_the_files)
    folder = locate_snapshot(staff.settings.home, "late")
    result = take_snapshot(message, running)
    work_until(staff, lambda: True)
    assert read_state(staff, erased[0]) == "pending", "the job of the snapshot has not ended"
    finish(staff, running, result)
    work_until(staff, lambda: read_state(staff, erased[0]) == "final")
    assert not holds(folder, image)
    assert check_snapshot(folder, quiet).rows["faces"] == 2


def test_a_snapshot_does_not_copy_what_is_being_erased(staff: Resources) -> None:
    image = find_image(staff, "s0")
    with writing(staff.database) as session:
        session.execute(update(Subject).where(Subject.id == "s0").values(attributes={"badge": "a-vermilion-badge"}))
    erase_subject(staff)
    folder = take_directly(staff, "during")
    assert not holds(folder, b"a-vermilion-badge"), "the row of the erasure states it in plain"
    assert not holds(folder, image)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_snapshot_does_not_copy_what_no_face_of_a_photo_has(staff: Resources) -> None:
    """A job may just have cached a descriptor of a face that was erased, while another face of the photo stays."""
    image = find_image(staff, "s0").decode()
    staff.blobs.put("staff", [(Blobs.described(image, number, "sift"), bytes([number] * 8)) for number in (0, 1)])
    folder = take_directly(staff, "during")
    assert holds(folder, Blobs.described(image, 0, "sift").encode())
    assert not holds(folder, Blobs.described(image, 1, "sift").encode())


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_person_whose_retention_has_ended_is_erased_from_snapshots(staff: Resources) -> None:
    folder, image = take_directly(staff, "kept", "staff"), find_image(staff, "s1")
    with writing(staff.database) as session:
        session.execute(update(Subject).where(Subject.id == "s1").values(retain_until=now() - 1))
    assert holds(folder, image)
    assert erase_expired_subjects(context(staff)) == 1
    with reading(staff.database) as session:
        [erasure] = session.scalars(select(Erasure.id))
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert not holds(folder, image)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_atlas_that_was_fitted_to_an_erased_face_is_emptied_in_snapshots(staff: Resources) -> None:
    """From its axes, or the places of others on it, and from their embeddings, the erased one can be computed."""
    axes = b"axes-of-everybody"
    with writing(staff.database) as session:
        deployment = session.scalars(select(Deployment).where(Deployment.collection_id == "staff")).one()
        drawn = {"collection_id": "staff", "task": deployment.task, "model_id": deployment.champion, "version": 1}
        for method in ("pca", "tsne"):
            session.add(
                atlas := Atlas(**drawn, method=method, projection=axes, fitted_faces=4, change=4, finished_at=1.0)
            )
            session.flush()
            for face in session.scalars(select(Face.pk)):
                session.add(FaceCoordinates(atlas_pk=atlas.pk, face_pk=face, x=0.5, y=0.0, display_rank=0))
        session.execute(update(Atlas).where(Atlas.method == "tsne").values(projection=b""))
    before = take_directly(staff, "before", "staff")
    erasure = erase_subject(staff)
    during = take_directly(staff, "during", "staff")
    assert holds(before, axes)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    for folder in (before, during):
        rows = create_engine(f"sqlite:///{folder / SnapshotManifest.read(folder).rows_file}")
        with Session(rows) as session:
            kept = select(Atlas.method, Atlas.change, func.count(FaceCoordinates.face_pk)).outerjoin(FaceCoordinates)
            assert sorted(session.execute(kept.group_by(Atlas.pk)).all()) == [("pca", -1, 0), ("tsne", 4, 2)]
        rows.dispose()
        assert not holds(folder, axes)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_corrections_that_an_erased_face_is_part_of_are_emptied_in_snapshots(staff: Resources) -> None:
    """From the mean of a source and the embeddings of its other faces, the erased one can be computed.

    What was measured with these corrections does not hold without them, and is emptied too.
    """
    means = fit_compensation(people(4, 2)[0], np.repeat(["", "gate"], 4)).to_bytes()
    with writing(staff.database) as session:
        deployment = session.scalars(select(Deployment).where(Deployment.collection_id == "staff")).one()
        name = {"collection_id": "staff", "task": deployment.task, "model_id": deployment.champion}
        session.add(StoredCompensation(**name, version=1, data=means, faces={"": [2, 2], "gate": [6, 6]}))
        deployment.measurements = {deployment.champion: {"faces": 8, "compensation": 1, "seen_share": 0.5}}
    before = take_directly(staff, "before", "staff")
    erasure = erase_subject(staff)
    during = take_directly(staff, "during", "staff")
    assert holds(before, means)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    for folder in (before, during):
        assert not holds(folder, means)
        rows = create_engine(f"sqlite:///{folder / SnapshotManifest.read(folder).rows_file}")
        with Session(rows) as session:
            stored = session.scalars(select(StoredCompensation)).one()
            assert (stored.version, stored.data, stored.faces) == (2, b"", {})
            assert session.scalars(select(Deployment.measurements)).one() == {stored.model_id: {"seen_share": 0.5}}
        rows.dispose()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_older_name_of_an_erased_person_goes_too(staff: Resources) -> None:
    folder = take_directly(staff, "old", "staff")
    with writing(staff.database) as session:
        first, second = session.scalars(select(Subject).order_by(Subject.id)).all()
        session.execute(update(Face).where(Face.subject_pk == first.pk).values(subject_pk=second.pk))
        session.delete(first)
    assert holds(folder, b"s0")
    erasure = erase_subject(staff, "s1")
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    with reading(staff.database) as session:
        assert session.get_one(KeptSnapshot, "old").faces == 0
    assert SnapshotManifest.read(folder).rows["subjects"] == 0
    assert not holds(folder, b"blobs/"), "all photos and crops were of this person"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_interrupted_erasure_from_a_snapshot_is_done_again(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, image = take_directly(staff, "kept"), find_image(staff, "s0")
    erasure = erase_subject(staff)

    def stop(path: Path) -> None:
        raise Busy("the job is put back for a second")

    with monkeypatch.context() as patched:
        patched.setattr("app.snapshots.erasure.seal_rows", stop)
        work_until(staff, lambda: len(list(folder.glob("rows*"))) == 2)
        assert read_state(staff, erasure) == "pending"
        with pytest.raises(Invalid):
            check_snapshot(folder, quiet)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert not holds(folder, image)
    assert len(list(folder.iterdir())) == 3
    assert check_snapshot(folder, quiet).rows["faces"] == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("step", ["erase_from_rows", "seal_rows"])
def test_a_snapshot_is_kept_and_its_erasure_goes_on_where_the_disk_fails(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A limit on the size of files stands for a full disk: to SQLite, both are errors that say nothing of the rows."""
    folder, image = take_directly(staff, "kept"), find_image(staff, "s0")
    erasure, failures = erase_subject(staff), list[Exception]()
    original = getattr(snapshot_erasure, step)

    def fail(*arguments: Any) -> Any:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            return original(*arguments)
        except Exception as error:
            failures.append(error)
            raise
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with monkeypatch.context() as patched:
        patched.setattr(snapshot_erasure, step, fail)
        work_until(staff, lambda: bool(failures))
    assert [str(failure).count("disk") for failure in failures] == [1] * len(failures)
    assert read_state(staff, erasure) == "pending"
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert not holds(folder, image)
    assert check_snapshot(folder, quiet).rows["faces"] == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("step", ["copy_rows", "erase_from_rows", "drop_unnamed_files", "seal_rows"])
@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_worker_that_was_paused_does_not_undo_what_another_has_done(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, step: str, is_noticed: bool
) -> None:
    """is_noticed: whether the lease shows it; the manifest does in any case."""
    folder = take_directly(staff, "kept")
    erased = read_erased(staff, erase_subject(staff))
    original, taken_over = getattr(snapshot_erasure, step), list[SnapshotErasure]()

    def pause(*arguments: Any) -> Any:
        monkeypatch.setattr(snapshot_erasure, step, original)
        taken_over.append(snapshot_erasure.erase_from_snapshot(folder, erased, lambda: None, lambda: None))
        return original(*arguments)

    def check_lease() -> None:
        if taken_over and is_noticed:
            raise Interrupted

    monkeypatch.setattr(snapshot_erasure, step, pause)
    with pytest.raises(Interrupted if is_noticed else Busy):
        snapshot_erasure.erase_from_snapshot(folder, erased, lambda: None, check_lease)
    assert SnapshotManifest.read(folder) == taken_over[0].manifest
    assert check_snapshot(folder, quiet).rows["faces"] == 2
    assert_nothing_else(folder)


@pytest.mark.parametrize("step", ["copy_rows", "erase_from_rows", "drop_unnamed_files", "seal_rows"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_worker_that_loses_its_job_leaves_no_copy_of_the_rows(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Another one has removed what it had found, and completes the erasure without looking again."""
    folder = take_directly(staff, "kept")
    erasure = erase_subject(staff)
    erased = read_erased(staff, erasure)
    original = getattr(snapshot_erasure, step)

    def end(*arguments: Any) -> Any:
        original(*arguments)
        raise Interrupted

    monkeypatch.setattr(snapshot_erasure, step, end)
    with pytest.raises(Interrupted):
        snapshot_erasure.erase_from_snapshot(folder, erased, lambda: None, lambda: None)
    assert_nothing_else(folder)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("step", ["app.snapshots.erasure._remove_others", "ml.files.sync_path"])
def test_a_disk_that_fails_after_the_rows_were_replaced_loses_no_snapshot(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder, failed = take_directly(staff, "kept"), list[str]()
    original = {"_remove_others": snapshot_erasure._remove_others, "sync_path": files.sync_path}[step.split(".")[-1]]

    def fail_once(path: Path, *arguments: Any) -> Any:
        if path == folder and not failed and SnapshotManifest.read(folder).rows_file != ROWS:
            failed.append(step)
            raise OSError(errno.EIO, "failed")
        return original(path, *arguments)

    monkeypatch.setattr(step, fail_once)
    erasure = erase_subject(staff)
    erased = read_erased(staff, erasure)
    with pytest.raises(OSError, match="failed"):
        snapshot_erasure.erase_from_snapshot(folder, erased, lambda: None, lambda: None)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert failed
    assert check_snapshot(folder, quiet).rows["faces"] == 2
    assert_nothing_else(folder)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_new_rows_that_another_process_removes_lose_no_snapshot(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = take_directly(staff, "kept")
    erasure = erase_subject(staff)
    erased = read_erased(staff, erasure)
    with monkeypatch.context() as patched:
        patched.setattr(snapshot_erasure, "seal_rows", Path.unlink)
        with pytest.raises(Busy):
            snapshot_erasure.erase_from_snapshot(folder, erased, lambda: None, lambda: None)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert check_snapshot(folder, quiet).rows["faces"] == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_worker_that_has_lost_its_job_removes_no_new_rows_of_another(staff: Resources) -> None:
    folder = take_directly(staff, "kept")
    erased = read_erased(staff, erase_subject(staff))
    (folder / "rows-of-another.sqlite").touch()

    def refuse() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        snapshot_erasure.erase_from_snapshot(folder, erased, lambda: None, refuse)
    assert (folder / "rows-of-another.sqlite").exists()


def test_a_worker_knows_that_another_has_its_job(staff: Resources) -> None:
    running = begin(staff, TakeSnapshot(snapshot="kept"))
    running.check_lease()
    with writing(staff.database) as session:
        session.get_one(Job, running.job_id).worker = "another"
    with pytest.raises(Interrupted):
        running.check_lease()


@pytest.mark.parametrize("step", ["list_folders_of", "write_snapshot", "move_folder"])
def test_a_snapshot_is_left_to_the_worker_that_took_its_job_over(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The first worker pauses after the step, and the second writes the snapshot, if it is not there."""
    message = TakeSnapshot(snapshot="kept")
    paused = begin(staff, message)
    with reading(staff.database) as session:
        paused = JobContext.bind(session.get_one(Job, paused.job_id), message, "test", staff)
    original, final = getattr(snapshot, step), locate_snapshot(staff.settings.home, "kept")

    def pause(*arguments: Any) -> Any:
        monkeypatch.setattr(snapshot, step, original)
        value = original(*arguments)
        with writing(staff.database) as session:
            session.get_one(Job, paused.job_id).worker = "another"
        if step != "move_folder":
            take_snapshot(message, replace(paused, worker="another", resources=staff))
        return [final] if step == "list_folders_of" else value

    monkeypatch.setattr(snapshot, step, pause)
    with pytest.raises(Interrupted):
        take_snapshot(message, paused)
    assert check_snapshot(final, quiet).rows["faces"] == 4


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("file", [ROWS, "files.tar", "manifest.json"])
def test_a_damaged_snapshot_is_deleted_by_an_erasure(staff: Resources, file: str) -> None:
    folder = take_directly(staff, "kept")
    (folder / file).write_bytes(b"damaged")
    erasure = erase_subject(staff)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert not folder.exists()
    with reading(staff.database) as session:
        assert session.get(KeptSnapshot, "kept") is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_an_interrupted_snapshot_has_left_is_removed(staff: Resources) -> None:
    home = staff.settings.home
    left, live = locate_snapshot(home, "left"), locate_snapshot(home, "live")
    begin(staff, TakeSnapshot(snapshot="live", collection="others"))
    for folder in (left, live):
        folder.mkdir()
        (folder / ROWS).write_bytes(b"rows")
    assert remove_unfinished_snapshots(staff) == 0, "it is new"
    erasure = erase_subject(staff)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert (left.exists(), live.exists()) == (False, True)


def test_a_deletion_of_a_snapshot_that_was_interrupted_is_completed(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = locate_snapshot(staff.settings.home, "kept")
    folder.mkdir()
    (folder / MANIFEST).write_text("{}")
    with writing(staff.database) as session:
        session.add(KeptSnapshot(id="kept", finished_at=now(), created_at=now() - 100_000))

    def interrupt(_: Path) -> None:
        raise OSError("the process ends")

    def read_snapshot() -> str | None:
        with reading(staff.database) as session:
            row = session.get(KeptSnapshot, "kept")
            return row and SnapshotOut.of(row, None).state

    def delete() -> None:
        with writing(staff.database) as session:
            service.delete_snapshot(session, staff, "kept")

    with monkeypatch.context() as patched:
        patched.setattr(service, "delete_folder", interrupt)
        with pytest.raises(Busy, match="not all of its files"):
            delete()
    assert (remove_unfinished_snapshots(staff), read_snapshot()) == (0, "failed"), "its folder is new"
    os.utime(folder, (0, 0))
    assert (remove_unfinished_snapshots(staff), read_snapshot()) == (1, None)
    assert not folder.exists()


def test_nobody_waits_while_the_files_of_a_snapshot_are_deleted(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, waited = take_directly(staff, "kept"), list[float]()

    def write_meanwhile(_: Path) -> None:
        begun = time.monotonic()
        with writing(staff.database) as session:
            session.add(Subject(collection_id="staff", id="meanwhile"))
        waited.append(time.monotonic() - begun)
        shutil.rmtree(folder)

    monkeypatch.setattr(service, "delete_folder", write_meanwhile)
    with writing(staff.database) as session:
        service.delete_snapshot(session, staff, "kept")
    assert max(waited) < 2, "it would have been refused after ten seconds"
    with reading(staff.database) as session:
        assert session.get(KeptSnapshot, "kept") is None


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_snapshot_that_cannot_be_read_now_is_erased_from_later(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    folder, failed = take_directly(staff, "kept"), list[Path]()

    def fail_once(path: Path) -> str:
        if not failed and path.parent == folder:
            failed.append(path)
            raise OSError(error, os.strerror(error))
        return hash_file(path)

    monkeypatch.setattr("app.snapshots.reader.hash_file", fail_once)
    erasure = erase_subject(staff)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert failed
    with reading(staff.database) as session:
        assert session.get_one(KeptSnapshot, "kept").erased_at is not None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_snapshot_that_cannot_be_written_leaves_nothing(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda path: usage(10**12, 0, 2**28 + 1000))
        with writing(staff.database) as session:
            session.add(KeptSnapshot(id="big"))
            job = jobs.enqueue(session, TakeSnapshot(snapshot="big"))
        work(staff)
    with reading(staff.database) as session:
        problem = session.get_one(Job, job.id).problem or {}
    assert (problem["status"], problem["code"]) == (409, "InsufficientStorage")
    assert "256 MiB are left to the service" in problem["detail"]
    assert list((staff.settings.home / "snapshots").iterdir()) == []
    done = begin(staff, TakeSnapshot(snapshot="done"))
    result = take_snapshot(TakeSnapshot(snapshot="done"), done)
    assert take_snapshot(TakeSnapshot(snapshot="done"), done) == result, "its worker died before the job was ended"
    running = begin(staff, TakeSnapshot(snapshot="stopped"))
    running.interrupted.set()
    with pytest.raises(Interrupted):
        take_snapshot(TakeSnapshot(snapshot="stopped"), running)
    assert [path.name for path in (staff.settings.home / "snapshots").iterdir()] == ["done"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_snapshot_whose_last_commit_got_no_answer_is_kept(staff: Resources) -> None:
    message = TakeSnapshot(snapshot="kept")
    running = begin(staff, message)
    with lose_commit("UPDATE snapshots") as lost, pytest.raises(Busy, match="is not known"):
        take_snapshot(message, running)
    assert lost
    assert take_snapshot(message, running)["snapshot"] == "kept"
    check_snapshot(locate_snapshot(staff.settings.home, "kept"), quiet)


def test_a_restore_that_was_killed_is_completed_by_another_worker(staff: Resources) -> None:
    take_directly(staff, "kept")
    message = RestoreSnapshot(snapshot="kept", source="staff", collection="copy")
    running = begin(staff, message)
    with writing(staff.database) as session:
        session.add(Collection(id="copy", description=RESERVATION))
    staff.blobs.put("copy", [("photos/ff/.half", b"x")])
    result = restore_snapshot(message, running)
    assert "photos/ff/.half" not in staff.blobs.names("copy"), "nobody would know of it when its person is erased"
    assert (result["collection"], result["faces"]) == ("copy", 4)
    assert restore_snapshot(message, running) == result, "the rows are there: nothing is done again"
    with reading(staff.database) as session:
        assert session.get_one(Collection, "copy").description == ""
        ids = session.scalars(select(Face.face_id)).all()
    assert len(set(ids)) == 8


def restore_while(resources: Resources, act: Callable[[], object]) -> None:
    """Restore the collection of the snapshot `kept` as `copy`; act: what happens once the id is reserved."""
    message = RestoreSnapshot(snapshot="kept", source="staff", collection="copy")
    running, acted = begin(resources, message), list[bool]()

    def act_once(done: int, total: int | None = None, failed: int = 0) -> None:
        if not acted:
            acted.append(True)
            act()

    object.__setattr__(running, "progress", act_once)
    try:
        restore_snapshot(message, running)
    finally:
        assert acted
        with writing(resources.database) as session:
            jobs.end(session, running.job_id, "failed")


def test_a_restore_waits_until_what_was_deleted_is_erased_from_the_snapshot(staff: Resources) -> None:
    take_directly(staff, "kept")
    erasure = erase_subject(staff)
    message = RestoreSnapshot(snapshot="kept", source="staff", collection="copy")
    running = begin(staff, message)
    with pytest.raises(Later):
        restore_snapshot(message, running)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert restore_snapshot(message, running)["faces"] == 2


@pytest.mark.parametrize("stored", ["face", "start"])
@pytest.mark.parametrize("seconds_ahead", [0.8, 3_600.0])
def test_a_restore_and_an_erasure_never_wait_for_each_other_where_a_clock_was_ahead(
    staff: Resources, stored: str, seconds_ahead: float
) -> None:
    """stored: what was stored by that clock, a face or the start of the restore"""
    take_directly(staff, "kept")
    message = RestoreSnapshot(snapshot="kept", source="staff", collection="copy")
    running = begin(staff, message)
    with writing(staff.database) as session:
        if stored == "face":
            session.execute(update(Face).values(created_at=now() + seconds_ahead))
        else:
            session.get_one(Job, running.job_id).started_at = now() + seconds_ahead
    erasure = erase_subject(staff)
    if stored == "face":
        with writing(staff.database) as session:
            session.get_one(Job, running.job_id).started_at = now()
    with pytest.raises(Conflict, match="was deleted in the collection of the snapshot"):
        restore_snapshot(message, running)
    with writing(staff.database) as session:
        jobs.end(session, running.job_id, "failed")
    work_until(staff, lambda: read_state(staff, erasure) == "final")


def test_what_is_deleted_during_a_restore_does_not_come_back(staff: Resources) -> None:
    take_directly(staff, "kept")
    erasures = list[str]()
    with pytest.raises(Conflict, match="was deleted in the collection of the snapshot"):
        restore_while(staff, lambda: erasures.append(erase_subject(staff)))
    work_until(staff, lambda: read_state(staff, erasures[0]) == "final")
    with reading(staff.database) as session:
        assert session.get(Collection, "copy") is None


def run_restore(resources: Resources, folder: Path, *options: str) -> tuple[int, str]:
    """Run `likeness restore`. Returns its exit status, and what it printed."""
    settings = resources.settings
    environment = {"LIKENESS_HOME": str(settings.home), "LIKENESS_DATABASE_URL": settings.database_url}
    ended = CliRunner().invoke(app, ["restore", str(folder), *options], env=environment)
    return ended.exit_code, ended.output


@pytest.mark.parametrize("is_linked", [False, True])
def test_the_command_restores_nobody_who_is_still_to_be_erased_from_a_kept_snapshot(
    staff: Resources, tmp_path: Path, is_linked: bool
) -> None:
    folder = take_directly(staff, "kept")
    if is_linked:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    erasure = erase_subject(staff)
    options = ("--collection", "staff", "--as", "copy", "--new-face-ids")
    status, printed = run_restore(staff, folder, *options)
    assert (status, "was deleted in the collection of the snapshot" in printed) == (1, True), printed
    with reading(staff.database) as session:
        assert session.get(Collection, "copy") is None
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert run_restore(staff, folder, *options)[0] == 0
    with reading(staff.database) as session:
        assert session.scalar(select(func.count()).where(Face.collection_id == "copy")) == 2


def test_the_command_restores_nobody_who_is_deleted_meanwhile_from_a_kept_snapshot(staff: Resources) -> None:
    folder, erasures = take_directly(staff, "kept"), list[str]()

    def report(step: str, done: int, total: int | None) -> None:
        if not erasures:
            erasures.append(erase_subject(staff))

    home, options = staff.settings.home, RestoreOptions(new_face_ids=True)
    with pytest.raises(Conflict, match="was deleted in the collection of the snapshot"):
        restore_collection(staff.database, home, folder, "staff", "copy", report, options)
    work_until(staff, lambda: read_state(staff, erasures[0]) == "final")
    with reading(staff.database) as session:
        assert session.get(Collection, "copy") is None


def test_a_service_is_not_restored_from_what_is_erased_from_its_snapshot_meanwhile(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(staff.database) as session:
        erasure = delete_collection(session, session.get_one(Collection, "staff")).id
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    folder = take_directly(staff, "empty")

    def rewrite(*arguments: Any) -> int:
        replace(SnapshotManifest.read(folder), rows_sha256="0" * 64).write(folder)
        return 0

    monkeypatch.setattr("app.snapshots.restore.restore_files", rewrite)
    with pytest.raises(Busy, match="erased from the snapshot while it was restored"):
        restore_service(staff.database, staff.settings.home, folder, quiet)
    assert count_collections(staff) == 0


def count_collections(resources: Resources) -> int:
    with reading(resources.database) as session:
        return session.scalar(select(func.count()).select_from(Collection)) or 0


def test_a_whole_kept_snapshot_is_not_restored_while_a_deleted_collection_is_to_be_erased_from_it(
    staff: Resources,
) -> None:
    """The only one was deleted, so that nothing but the snapshot is left of it."""
    folder = take_directly(staff, "kept")
    with writing(staff.database) as session:
        erasure = delete_collection(session, session.get_one(Collection, "staff")).id
    with pytest.raises(Conflict, match="was deleted in the collection of the snapshot"):
        restore_service(staff.database, staff.settings.home, folder, quiet)
    work_until(staff, lambda: read_state(staff, erasure) == "final")


WRITTEN: dict[str, Callable[[Session], object]] = {
    "subject": lambda session: session.add(Subject(collection_id="copy", id="s0", external_id="s0", consent=False)),
    "policy": lambda session: session.add(TrainingPolicy(collection_id="copy", task="identity")),
    "change": lambda session: session.execute(update(Collection).where(Collection.id == "copy").values(change=1)),
    "description": lambda session: session.execute(
        update(Collection).where(Collection.id == "copy").values(description="staff of the other house")
    ),
    "job": lambda session: jobs.enqueue(session, ExamineGallery(collection="copy")),
}
"""What a client may write to a collection that is being restored."""


@pytest.mark.parametrize("written", sorted(WRITTEN))
@pytest.mark.parametrize("killed", [False, True])
def test_what_is_written_to_a_collection_during_its_restore_is_kept(
    staff: Resources, written: str, killed: bool
) -> None:
    take_directly(staff, "kept")
    if killed:
        with writing(staff.database) as session:
            session.add(Collection(id="copy", description=RESERVATION))
            session.flush()
            WRITTEN[written](session)
        message = RestoreSnapshot(snapshot="kept", source="staff", collection="copy")
        with pytest.raises(Conflict, match="exists"):
            restore_snapshot(message, begin(staff, message))
    else:

        def write() -> None:
            with writing(staff.database) as session:
                WRITTEN[written](session)

        with pytest.raises(Conflict, match="what was written is kept"):
            restore_while(staff, write)
    with reading(staff.database) as session:
        session.get_one(Collection, "copy")
        assert session.scalars(select(Subject.consent).where(Subject.collection_id == "copy")).all() == (
            [False] if written == "subject" else []
        )
        assert session.scalars(select(Face.pk).where(Face.collection_id == "copy")).all() == []


@pytest.mark.parametrize("made_again", [False, True])
def test_a_collection_that_is_deleted_during_its_restore_stays_deleted(staff: Resources, made_again: bool) -> None:
    take_directly(staff, "kept")

    def delete_collection() -> None:
        with writing(staff.database) as session:
            session.delete(session.get_one(Collection, "copy"))
            session.flush()
            if made_again:
                session.add(Collection(id="copy", description="another"))

    with pytest.raises(Conflict, match="was deleted during the restore"):
        restore_while(staff, delete_collection)
    work(staff)
    with reading(staff.database) as session:
        described = session.scalars(select(Collection.description).where(Collection.id == "copy")).all()
        faces = select(Face.pk).where(Face.collection_id == "copy")
        assert (described, session.scalars(faces).all()) == (["another"] if made_again else [], [])
    assert made_again or list(staff.blobs.names("copy")) == []


def test_requests_that_come_at_once_keep_no_more_snapshots(resources: Resources) -> None:
    with writing(resources.database) as session:
        session.add_all([KeptSnapshot(id=f"k{n}", finished_at=1.0) for n in range(9)])
    all_started = threading.Barrier(6)

    def start() -> bool:
        all_started.wait()
        try:
            with writing(resources.database) as session:
                start_snapshot(session, resources.settings, SnapshotIn(), Caller("k", "admin"), Response())
                time.sleep(0.1)  # so that the others count before this is committed, if they can
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(6) as threads:
        started = [threads.submit(start) for _ in range(6)]
    assert sum(one.result() for one in started) == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_as_many_snapshots_are_kept_as_the_settings_allow(service: Service) -> None:
    client = service.client
    client.put(BASE).raise_for_status()
    with writing(service.resources.database) as session:
        session.add_all([KeptSnapshot(id=f"k{n}", collection_id="staff", finished_at=1.0) for n in range(9)])
        session.add(KeptSnapshot(id="failed"))
    take(service)
    refused = client.post("/v1/snapshots")
    assert (refused.status_code, refused.json()["code"]) == (409, "TooManySnapshots")
    bound = service.key("admin", "staff")
    refused = client.post("/v1/snapshots", json={"collection": "staff"}, headers=bound)
    assert refused.status_code == 409, "those that the key does not see count too"
    assert client.delete("/v1/snapshots/k0").status_code == 204
    unnamed = client.post("/v1/snapshots", json={}, headers=bound)
    assert (unnamed.status_code, "name a collection" in unnamed.json()["detail"]) == (422, True)
    taken = client.post("/v1/snapshots", json={"collection": "staff"}, headers=bound)
    assert service.wait(taken)["state"] == "succeeded"
    listed = client.get("/v1/snapshots", headers=bound, params={"limit": 5}).json()
    assert {entry["collection"] for entry in listed["snapshots"]} == {"staff"}
    rest = client.get("/v1/snapshots", headers=bound, params={"next_token": listed["next_token"]}).json()["snapshots"]
    assert len(listed["snapshots"]) + len(rest) == 9
    path = f"/v1/snapshots/{taken.json()['snapshot']}:restore"
    elsewhere = client.post(path, json={"name": "elsewhere"}, headers=bound)
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (403, "AccessDenied")
    assert client.post(path, json={"name": "staff"}).status_code == 409
    assert client.post(path, json={"name": "new", "collection": "others"}).status_code == 422
    inside = str(service.resources.settings.home / "snapshots" / "mine")
    command = CliRunner().invoke(app, ["snapshot", inside], env={"LIKENESS_HOME": str(service.resources.settings.home)})
    assert command.exit_code == 2


def test_members_of_a_tar_are_overwritten_with_their_names(tmp_path: Path) -> None:
    tar, long = tmp_path / "t", f"blobs/{'c' * 250}/photos/aa/{'a' * 64}"
    contents = [("models/a/x", b"one" * 700), (long, b"secret" * 500), ("models/a/y", b""), ("b", b"hidden" * 90)]
    files = {file.path: file for file in write_files(tar, contents)}
    size = tar.stat().st_size
    kept = {name: files[name] for name in ("models/a/x", "models/a/y")}
    assert blank_members(tar, kept.keys()) == 2
    assert [name for name, _ in read_files(tar, kept)] == list(kept)
    data = tar.read_bytes()
    assert len(data) == size
    assert not any(pattern in data for pattern in (b"secret", b"hidden", b"aaaa", b"cccc"))
    assert blank_members(tar, kept.keys()) == 0


def test_a_member_that_was_overwritten_in_part_is_overwritten_again(tmp_path: Path) -> None:
    [file] = write_files(tmp_path / "t", [("a", b"secret" * 200)])
    with tarfile.open(tmp_path / "t") as tar:
        [member] = tar
    with (tmp_path / "t").open("r+b") as opened:
        renamed = tarfile.TarInfo(BLANKING)
        renamed.size = file.bytes
        opened.seek(member.offset)
        opened.write(renamed.tobuf(tarfile.GNU_FORMAT))
    assert list(read_files(tmp_path / "t", {})) == []
    assert blank_members(tmp_path / "t", set()) == 1
    assert b"secret" not in (tmp_path / "t").read_bytes()


@pytest.mark.parametrize("stray", ["folder in a snapshot", "link to a folder", "link to a damaged snapshot"])
def test_what_lies_among_the_snapshots_keeps_no_erasure_from_its_end(
    service: Service, tmp_path: Path, stray: str
) -> None:
    """Every erasure of every collection would fail, and no receipt would become final."""
    leave_traces(service, "staff", people=2)
    kept, elsewhere = locate_snapshot(service.resources.settings.home, take(service, "staff")), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("not of a snapshot")
    if stray == "folder in a snapshot":
        (kept / "copy").mkdir()
    else:
        (kept.parent / "link").symlink_to(elsewhere)
    is_damaged = stray == "link to a damaged snapshot"
    if is_damaged:
        (elsewhere / MANIFEST).write_text("{")
    answer = service.client.delete(f"{BASE}/subjects/{SUBJECT}").raise_for_status().json()
    receipt = wait_until_final(service, answer["erasure"])
    assert receipt["removed"]["snapshots_rewritten"] == 1
    assert_nothing_else(kept)
    assert len(list(kept.iterdir())) == 3
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    assert (elsewhere / "file").exists() != is_damaged, "nobody can tell what a damaged snapshot holds"


@pytest.mark.parametrize("interrupted_after", ["its manifest", "its rows"])
def test_an_erasure_removes_what_an_interrupted_deletion_has_left(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, interrupted_after: str
) -> None:
    """The deletion begins while the erasure copies the rows, and its process is killed."""
    folder = take_directly(staff, "kept")
    names = {"its manifest": [MANIFEST], "its rows": [MANIFEST, ROWS]}[interrupted_after]

    def begin_deletion(*arguments: Any) -> None:
        for name in names:
            (folder / name).unlink()
        raise FileNotFoundError

    monkeypatch.setattr("app.snapshots.erasure.copy_rows", begin_deletion)
    erasure = erase_subject(staff)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert not folder.exists()


@pytest.mark.parametrize("missing", [(ROWS,), (FILES,), (ROWS, FILES)])
def test_an_erasure_ends_the_deletion_of_a_linked_snapshot(
    staff: Resources, tmp_path: Path, missing: tuple[str, ...]
) -> None:
    folder, target = take_directly(staff, "kept"), tmp_path / "elsewhere"
    folder.rename(target)
    folder.symlink_to(target)
    for name in missing:
        (target / name).unlink()
    erasure = erase_subject(staff)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    left = [path.name for path in target.iterdir()] if target.exists() else []
    assert FILES not in left
    assert ROWS not in left


def test_a_folder_of_another_user_that_cannot_be_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount has a `lost+found`, which belongs to root."""
    (tmp_path / "snapshots" / "lost+found").mkdir(parents=True)
    assert list_snapshot_folders(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert list_snapshot_folders(tmp_path), "its own is not passed over"
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert not list_snapshot_folders(tmp_path)


def test_a_restore_of_a_damaged_snapshot_waits_for_no_erasure_that_nobody_has_asked_for(service: Service) -> None:
    leave_traces(service, "staff", people=2)
    snapshot = take(service, "staff")
    folder = locate_snapshot(service.resources.settings.home, snapshot)
    shutil.copyfile(folder / ROWS, folder / "rows-copy.sqlite")
    with (folder / FILES).open("r+b") as file:
        file.seek(600)
        file.write(b"damaged")
    started = service.client.post(f"/v1/snapshots/{snapshot}:restore", json={"name": "staff-2"})
    job = service.wait(started)
    assert (job["state"], job["problem"]["code"]) == ("failed", "InvalidParameter"), job

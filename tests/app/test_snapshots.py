"""A snapshot of a running service, restored, gives the same answers; a damaged one is refused."""

import gc
import json
import os
import shutil
import sqlite3
import tarfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import delete, func, select, text
from typer.testing import CliRunner

from app.access import keys
from app.cli.main import app
from app.config import Settings
from app.db.session import close_database, open_database, reading, writing
from app.db.tables import (
    AuditEntry,
    Collection,
    Deployment,
    Embedding,
    Face,
    Job,
    JobItem,
    Key,
    Label,
    ModelRecord,
    Subject,
    TrainingPolicy,
    now,
)
from app.errors import Conflict, Invalid, NotFound
from app.resources import Resources, open_resources
from app.serving.calibration.gallery_calibration import measure_gallery
from app.snapshots import collection_restore, tar_members
from app.snapshots.collection_restore import RestoreOptions, restore_collection
from app.snapshots.contents import list_unruled_tables
from app.snapshots.files import SnapshotFile, read_files, write_files
from app.snapshots.manifest import FILES, MAX_MANIFEST_BYTES, ROWS, SnapshotManifest
from app.snapshots.reader import check_snapshot
from app.snapshots.reservations import RESERVATION, SERVICE, is_name_locked, keep_others_out
from app.snapshots.restore import Restored, restore_files, restore_service
from app.snapshots.rows import Report, list_copied_tables, read_sequences
from app.snapshots.writer import write_snapshot
from app.storage.blob_store import Blobs
from app.storage.snapshot_folders import MANIFEST
from ml.model import SIGNATURE
from tests.app.test_faces import BASE, enrol, picture
from tests.databases import migrate, remove_test_data
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service, run_service

MODEL = make_model("m-1")
PHOTOS, DIM = 2, 8
ALIGNED = {"aligned": True}


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


def quiet(step: str, done: int, total: int | None) -> None:
    """Report no progress."""


def take(resources: Resources, folder: Path, collection: str | None = None) -> SnapshotManifest:
    return write_snapshot(resources.database, resources.settings.home, folder, collection, quiet)


def empty_service(folder: Path) -> Settings:
    """The settings of a new service on SQLite, with its tables."""
    settings = Settings(home=folder, poll_seconds=0.05, lease_seconds=3, workers=1, default_recogniser="lbp")
    folder.mkdir()
    migrate(settings)
    return settings


def restore(settings: Settings, folder: Path) -> Restored:
    database = open_database(settings.database, settings.home)
    try:
        return restore_service(database, settings.home, folder, quiet)
    finally:
        close_database(database)


def bring_back(resources: Resources, folder: Path, collection: str, name: str | None = None) -> Restored:
    home = resources.settings.home
    return restore_collection(resources.database, home, folder, collection, name or collection, quiet)


def post(client: httpx.Client, path: str, **options: Any) -> dict[str, Any]:
    answer = client.post(path, **options)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def count_rows(resources: Resources, row: Any) -> int:
    with reading(resources.database) as session:
        return session.scalar(select(func.count()).select_from(row)) or 0


def is_measured(client: httpx.Client, collection: str, faces: int) -> bool:
    """Whether the thresholds of a collection have been measured on all of its faces."""
    measured = client.get(f"/v1/collections/{collection}/deployments/identity").json()["measurements"]
    return any(of_model.get("faces") == faces for of_model in measured.values())


def enrol_staff(client: httpx.Client) -> list[str]:
    """Enrol three photos of two people with what a client may say of them, and label two pairs; searches know them."""
    client.put(BASE).raise_for_status()
    ids = []
    for number, subject in enumerate(("ada", "ada", "bob")):
        fields = {"metadata": json.dumps({"door": number}), "external_image_id": f"{number}.png"}
        [face] = enrol(client, picture(number), subject=subject, **fields).json()["face_records"]
        ids.append(face["face_id"])
    labels = [
        {"face_a": ids[0], "face_b": ids[1], "same": True},
        {"face_a": ids[0], "face_b": ids[2], "same": False},
    ]
    labelled = client.post("/v1/labels", json={"labels": labels}).raise_for_status()
    seen = {"X-Change-Number": labelled.headers["X-Change-Number"]}
    while client.post(f"{BASE}/faces/{ids[0]}/search", headers=seen).status_code == 503:
        pass  # labels may reach searches after the faces
    return ids


@pytest.mark.parametrize(
    ("lasting_service", "people_count"), [("sqlite", 250), ("postgresql", 60)], indirect=["lasting_service"]
)
def test_a_restored_service_gives_the_same_answers(service: Service, tmp_path: Path, people_count: int) -> None:
    """1,001 answers on SQLite; 241 from PostgreSQL to SQLite."""
    gallery = GalleryWriter(service.resources, "many").make(MODEL)
    rows, subjects = people(people_count, PHOTOS, DIM)
    faces = gallery.add({MODEL.id: rows}, subjects)
    enrol_staff(service.client)
    vectors = np.random.default_rng(1).standard_normal((len(faces), DIM)).round(4).tolist()

    def answer_all(client: httpx.Client) -> list[dict[str, Any]]:
        by_face = [post(client, f"/v1/collections/many/faces/{face}/search") for face in faces]
        by_vector = [post(client, "/v1/collections/many/search:by-embedding", json={"vector": v}) for v in vectors]
        return by_face + by_vector + [post(client, f"{BASE}/search", files={"file": picture(9)}, params=ALIGNED)]

    service.wait_for_indexes()
    assert _becomes_true(lambda: is_measured(service.client, "many", len(faces)))
    service.wait_for_indexes()
    expected = answer_all(service.client)
    take(service.resources, tmp_path / "copy")
    settings = empty_service(tmp_path / "other")
    restored = restore(settings, tmp_path / "copy")
    assert restored.faces == len(faces) + 3
    with run_service(settings) as other:
        other.client.headers["Authorization"] = service.client.headers["Authorization"]  # its keys came along
        other.wait_for_indexes()
        for answer, before in zip(answer_all(other.client), expected, strict=True):
            assert answer == before
        assert len(expected) == 4 * people_count + 1
        assert other.client.get("/v1/labels").json()["labels"] == service.client.get("/v1/labels").json()["labels"]


def test_every_row_and_file_comes_back(service: Service, tmp_path: Path) -> None:
    enrol_staff(service.client)
    resources = service.resources
    manifest = take(resources, tmp_path / "copy")
    assert (manifest.collection, manifest.missing) == (None, [])
    assert manifest.rows["faces"] == 3
    assert check_snapshot(tmp_path / "copy", quiet) == manifest
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {MANIFEST, ROWS, FILES}
    settings = empty_service(tmp_path / "other")
    restore(settings, tmp_path / "copy")
    with open_resources(settings) as other:
        for table in list_copied_tables():
            with reading(resources.database) as before, reading(other.database) as after:
                order = select(table).order_by(*table.primary_key.columns)
                assert after.execute(order).all() == before.execute(order).all(), table.name
        names = sorted(resources.blobs.names("staff"))
        assert sorted(other.blobs.names("staff")) == names
        assert [other.blobs.get("staff", n) for n in names] == [resources.blobs.get("staff", n) for n in names]


def test_the_number_of_an_erased_face_is_not_given_again(settings: Settings, tmp_path: Path) -> None:
    with run_service(settings) as service:
        ids = enrol_staff(service.client)
        service.client.delete(f"{BASE}/faces/{ids[2]}").raise_for_status()
        take(service.resources, tmp_path / "copy")
    restored = empty_service(tmp_path / "other")
    restore(restored, tmp_path / "copy")
    with open_resources(restored) as other, writing(other.database) as session:
        assert read_sequences(session)["faces"] == 3
        session.execute(text("delete from faces"))
        assert read_sequences(session)["faces"] == 3


def test_jobs_that_had_not_ended_are_cancelled(resources: Resources, tmp_path: Path) -> None:
    with writing(resources.database) as session:
        parent = Job(id="a", kind="import_archive", body={}, state="running", lease_until=now() + 60, worker="w")
        session.add_all([parent, Job(id="b", kind="sweep", body={}, state="succeeded", finished_at=5.0)])
        session.flush()
        session.add_all([Job(id="c", kind="part", body={}, parent_id="a"), JobItem(job_id="a", number=0, name="x")])
    take(resources, tmp_path / "copy")
    settings = empty_service(tmp_path / "other")
    assert restore(settings, tmp_path / "copy").cancelled_jobs == 2
    with open_resources(settings) as other, reading(other.database) as session:
        states = {job.id: (job.state, job.worker) for job in session.scalars(select(Job))}
        assert states == {"a": ("cancelled", None), "b": ("succeeded", None), "c": ("cancelled", None)}
        assert "start it again" in (session.get_one(Job, "a").problem or {})["detail"]
        assert session.get_one(Job, "b").finished_at == 5.0


def test_a_deleted_collection_comes_back_beside_others(service: Service, tmp_path: Path) -> None:
    client, resources = service.client, service.resources
    enrol_staff(client)
    search = {"files": {"file": picture(0)}, "params": ALIGNED}
    service.wait_for_indexes()
    before = post(client, f"{BASE}/search", **search)
    take(resources, tmp_path / "copy", "staff")
    client.delete(BASE).raise_for_status()
    client.put("/v1/collections/others").raise_for_status()
    for number in range(5, 9):
        answer = client.post(
            "/v1/collections/others/faces", files={"file": picture(number)}, data={"aligned": True, "subject": "eve"}
        )
        answer.raise_for_status()
    restored = bring_back(resources, tmp_path / "copy", "staff")
    assert restored.faces == 3
    service.wait_for_indexes()

    def is_back() -> bool:
        answer = client.post(f"{BASE}/search", **search)
        return answer.status_code == 200 and answer.json()["faces"] == before["faces"]

    assert _becomes_true(is_back)
    [photo] = [n for n in resources.blobs.names("staff") if n.endswith(resources.blobs.digest(picture(0)))]
    assert resources.blobs.get("staff", photo) == picture(0)
    assert sorted(label["same"] for label in client.get("/v1/labels").json()["labels"]) == [False, True]
    assert count_rows(resources, Collection) == 2
    again = enrol(client, picture(20), subject="ada")
    assert again.status_code == 201, "the next number is free"


def test_what_was_measured_names_the_last_face_by_its_new_number(resources: Resources, tmp_path: Path) -> None:
    rows, names = people(60, 2)
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add({MODEL.id: rows}, names)
    measured = measure_gallery(resources, "staff", "identity", MODEL)
    with writing(resources.database) as session:
        session.get_one(Deployment, ("staff", "identity")).measurements = {MODEL.id: measured, "m-none": {}}
    take(resources, tmp_path / "copy", "staff")
    options = RestoreOptions(new_face_ids=True)
    restore_collection(resources.database, resources.settings.home, tmp_path / "copy", "staff", "again", quiet, options)
    with reading(resources.database) as session:
        last = session.scalar(select(func.max(Face.pk)).where(Face.collection_id == "again"))
        restored = session.get_one(Deployment, ("again", "identity")).measurements
    assert last != measured["last_face"] == max(gallery.pks)
    assert (restored[MODEL.id]["last_face"], restored["m-none"]) == (last, {})


def test_a_copy_starts_with_no_training_of_the_policy_of_its_collection(resources: Resources, tmp_path: Path) -> None:
    """Its candidate is published in that collection. The schedule goes on, so that a copy does not train at once."""
    GalleryWriter(resources).make(MODEL)
    last = {"last_training": "t-1", "last_at": 5.0, "last_labels": 7, "last_change": 3}
    with writing(resources.database) as session:
        session.add(TrainingPolicy(collection_id="staff", task="identity", trigger="schedule", **last))
    take(resources, tmp_path / "copy", "staff")
    options = RestoreOptions(new_face_ids=True)
    restore_collection(resources.database, resources.settings.home, tmp_path / "copy", "staff", "again", quiet, options)
    with reading(resources.database) as session:
        policies = {one.collection_id: one for one in session.scalars(select(TrainingPolicy))}
    copied = {name: getattr(policies["again"], name) for name in last}
    assert policies["staff"].last_training == "t-1"
    assert copied == last | {"last_training": None}


def _becomes_true(condition: Any, seconds: float = 90) -> bool:
    waiting = threading.Event()
    for _ in range(int(seconds / 0.1)):
        if condition():
            return True
        waiting.wait(0.1)
    return False


def test_one_collection_of_a_whole_snapshot_is_restored_under_another_name(service: Service, tmp_path: Path) -> None:
    gallery = GalleryWriter(service.resources, "many").make(MODEL)
    rows, subjects = people(4, 2, DIM)
    faces = gallery.add({MODEL.id: rows}, subjects)
    enrol_staff(service.client)
    take(service.resources, tmp_path / "copy")
    settings = empty_service(tmp_path / "other")
    with run_service(settings) as other:
        enrol_staff(other.client)  # takes the numbers that the faces of the snapshot had
        before = count_rows(other.resources, Embedding)
        assert bring_back(other.resources, tmp_path / "copy", "many", "few").faces == 8
        other.wait_for_indexes()
        assert _becomes_true(lambda: other.client.post(f"/v1/collections/few/faces/{faces[0]}/search").is_success)
        [found] = post(other.client, f"/v1/collections/few/faces/{faces[0]}/search", params={"limit": 1})["faces"]
        assert found["matches"][0]["face_id"] == faces[1]
        assert found["matches"][0]["subject"]["id"] == "p000"
        assert count_rows(other.resources, Embedding) == before + 8
        with reading(other.resources.database) as session:
            assert session.get_one(Collection, "few").copied_from == ["many"]
        assert other.resources.models.find_damage(MODEL.id) is None, "the model is signed for the other service"
        signatures = [r.models.folder / MODEL.id / SIGNATURE for r in (service.resources, other.resources)]
        assert len({path.read_text() for path in signatures}) == 2
        with reading(other.resources.database) as session:
            assert set(session.scalars(select(Collection.id))) == {"staff", "few"}
            assert session.scalar(select(func.count()).select_from(Subject)) == 2 + 4
            assert session.scalar(select(func.count()).select_from(Label)) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("file", [ROWS, FILES, MANIFEST])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_and_not_read(resources: Resources, tmp_path: Path, file: str, kind: str) -> None:
    take(resources, folder := tmp_path / "copy")
    path = folder / file
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/null")  # as /dev/zero, which never ends
    else:
        path.mkdir()
    refusals: list[str] = []

    def check() -> None:
        with pytest.raises(Invalid) as refused:
            check_snapshot(folder, quiet)
        refusals.append(str(refused.value))

    checking = threading.Thread(target=check, daemon=True)  # one that reads a pipe waits for a writer
    checking.start()
    checking.join(20)
    assert f"{file} is no file" in "".join(refusals)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_manifest_of_any_length_is_not_read(resources: Resources, tmp_path: Path) -> None:
    take(resources, folder := tmp_path / "copy")
    os.truncate(folder / MANIFEST, MAX_MANIFEST_BYTES + 1)
    with pytest.raises(Invalid, match="has more than"):
        check_snapshot(folder, quiet)


@pytest.mark.parametrize("lasting_service", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_others_may_write_while_the_rows_of_a_collection_are_restored(service: Service, tmp_path: Path) -> None:
    enrol_staff(service.client)
    resources = service.resources
    take(resources, tmp_path / "copy", "staff")
    service.client.put("/v1/collections/others").raise_for_status()
    added = []

    def add_subject() -> None:
        with writing(resources.database) as session:
            session.execute(text("set local lock_timeout = '5s'"))  # what has the same number waits for the other
            session.add(Subject(collection_id="others", id=f"p{len(added)}", external_id="", created_at=now()))
        added.append(len(added))

    def write_meanwhile(step: str, done: int, total: int | None) -> None:
        if step == "rows":
            add_subject()

    def write_before_the_commit(*_: object) -> None:
        for _ in range(5):
            add_subject()

    options = RestoreOptions(new_face_ids=True, finish=write_before_the_commit)
    home = resources.settings.home
    restore_collection(resources.database, home, tmp_path / "copy", "staff", "again", write_meanwhile, options)
    for _ in range(20):
        add_subject()
    with reading(resources.database) as session:
        assert session.scalar(select(func.count()).where(Subject.collection_id == "again")) == 2
    assert len(added) > 25


def test_what_would_be_mixed_up_is_refused(service: Service, tmp_path: Path) -> None:
    enrol_staff(service.client)
    resources = service.resources
    take(resources, tmp_path / "whole")
    take(resources, tmp_path / "one", "staff")
    with pytest.raises(Conflict, match="exists; delete it"):
        bring_back(resources, tmp_path / "one", "staff")
    with pytest.raises(Conflict, match="face ids are unique"):
        bring_back(resources, tmp_path / "one", "staff", "copy")
    with pytest.raises(NotFound, match="it has: staff"):
        bring_back(resources, tmp_path / "one", "others")
    with pytest.raises(Conflict, match="has collections already"):
        restore_service(resources.database, resources.settings.home, tmp_path / "whole", quiet)
    with pytest.raises(Invalid, match="--collection staff"):
        restore_service(resources.database, resources.settings.home, tmp_path / "one", quiet)
    with pytest.raises(Conflict, match="not empty"):
        take(resources, tmp_path / "one")
    with pytest.raises(NotFound):
        take(resources, tmp_path / "new", "others")
    assert count_rows(resources, Face) == 3
    assert count_rows(resources, Key) == 1


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
@pytest.mark.parametrize("file", [ROWS, FILES, MANIFEST])
@pytest.mark.parametrize("damage", ["changed", "truncated", "removed"])
def test_a_damaged_snapshot_is_refused_and_changes_nothing(
    service: Service, tmp_path: Path, file: str, damage: str
) -> None:
    enrol_staff(service.client)
    folder = tmp_path / "copy"
    take(service.resources, folder)
    data = bytearray((folder / file).read_bytes())
    if damage == "changed":
        data[len(data) // 3] ^= 0xFF
    elif damage == "truncated":
        del data[len(data) // 2 :]
    (folder / file).unlink()
    if damage != "removed":
        (folder / file).write_bytes(data)
    with pytest.raises((Invalid, NotFound)):
        check_snapshot(folder, quiet)
    settings = empty_service(tmp_path / "other")
    with pytest.raises((Invalid, NotFound)):
        restore(settings, folder)
    with open_resources(settings) as other:
        assert count_rows(other, Face) == 0


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_snapshot_of_a_later_version_is_refused_with_a_sentence(resources: Resources, tmp_path: Path) -> None:
    take(resources, tmp_path / "copy")
    path = tmp_path / "copy" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": "9999", "product": "9.9"}))
    with pytest.raises(Invalid, match=r"written by a later version of Likeness \(9\.9, schema 9999\)"):
        check_snapshot(tmp_path / "copy", quiet)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(Invalid, match="a format that this version does not know"):
        check_snapshot(tmp_path / "copy", quiet)


def test_a_face_that_is_erased_while_files_are_copied_is_not_in_the_snapshot(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = enrol_staff(service.client)
    resources, erased = service.resources, Blobs.digest(picture(0))

    def erase_first(step: str, done: int, total: int | None) -> None:
        if step == "rows" and count_rows(resources, Face) == 3:
            service.client.delete(f"{BASE}/faces/{ids[0]}").raise_for_status()
            assert _becomes_true(lambda: erased not in {n.rpartition("/")[2] for n in resources.blobs.names("staff")})

    folder = tmp_path / "copy"
    manifest = write_snapshot(resources.database, resources.settings.home, folder, None, erase_first)
    assert manifest.rows["faces"] == 2
    assert manifest.missing == []
    with closing(sqlite3.connect(folder / ROWS)) as rows:
        assert rows.execute("select count(*) from faces").fetchone() == (2,)
    assert ids[0].encode() not in (folder / ROWS).read_bytes()
    assert erased.encode() not in (folder / FILES).read_bytes()


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
def test_a_missing_photo_is_named_and_the_rest_is_copied(service: Service, tmp_path: Path) -> None:
    enrol_staff(service.client)
    resources = service.resources
    lost = resources.blobs.photo(Blobs.digest(picture(1)))
    resources.blobs.remove("staff", [lost])
    manifest = take(resources, tmp_path / "copy")
    assert manifest.missing == [f"blobs/staff/{lost}"]
    assert manifest.rows["faces"] == 3
    restore(empty_service(tmp_path / "other"), tmp_path / "copy")


def test_one_of_two_that_write_into_the_same_folder_is_refused(
    resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home, touch = tmp_path / "snapshot", resources.settings.home, Path.touch
    others = iter([write_snapshot])

    def let_another_begin(path: Path, exist_ok: bool = True) -> None:
        for write in others:
            write(resources.database, home, folder, None, quiet)
        touch(path, exist_ok=exist_ok)

    monkeypatch.setattr(Path, "touch", let_another_begin)
    with pytest.raises(Conflict, match="is not empty"):
        write_snapshot(resources.database, home, folder, None, quiet)
    check_snapshot(folder, quiet)


def test_every_table_says_what_of_it_belongs_to_a_collection() -> None:
    assert list_unruled_tables() == []


@pytest.mark.parametrize("name", ["../outside", "models/../../outside", "elsewhere/file"])
def test_a_file_outside_of_its_place_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "home").mkdir()
    with pytest.raises(Invalid, match="does not belong there"):
        restore_files(tmp_path / "home", [(name, b"x")], {})
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_restore_that_was_killed_can_be_started_again(resources: Resources, tmp_path: Path) -> None:
    """A killed process leaves the row that reserves the id, and no lock."""
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add({MODEL.id: people(2, 2)[0]}, ["p0", "p0", "p1", "p1"])
    take(resources, tmp_path / "copy")
    home, database = resources.settings.home, resources.database
    with writing(database) as session:
        session.execute(delete(Collection))
        session.add(Collection(id="back", description=RESERVATION))
    arguments = ["restore", str(tmp_path / "copy"), "--collection", "staff", "--as"]
    env = {"LIKENESS_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200"}
    with keep_others_out(database, home, "elsewhere"):
        refused = CliRunner().invoke(app, [*arguments, "elsewhere"], env=env)
    assert (refused.exit_code, "another process is restoring" in refused.stdout) == (1, True)
    assert CliRunner().invoke(app, [*arguments, "../back"], env=env).exit_code == 2
    restored = CliRunner().invoke(app, [*arguments, "back"], env=env)
    assert restored.exit_code == 0, restored.output
    assert count_rows(resources, Face) == 4
    again = CliRunner().invoke(app, [*arguments, "back"], env=env)
    assert (again.exit_code, "exists; delete it" in again.stdout) == (1, True)


def test_a_key_that_was_revoked_since_stays_revoked_where_that_is_known(resources: Resources, tmp_path: Path) -> None:
    with writing(resources.database) as session:
        (kept, _), (stolen, _), (rotated, _) = (keys.create_key(session, "admin", name) for name in ("a", "b", "c"))
    take(resources, tmp_path / "copy")
    with writing(resources.database) as session:
        keys.revoke_key(session, stolen.id)
        _, secret = keys.rotate_key(session, rotated.id, 0)
    restored = restore_service(resources.database, resources.settings.home, tmp_path / "copy", quiet)
    with reading(resources.database) as session:
        assert session.get_one(Key, stolen.id).revoked_at is not None
        assert session.get_one(Key, rotated.id).digest == keys.hash_secret(secret)
        assert session.get_one(Key, kept.id).revoked_at is None
    assert restored.working_keys == 0, "all are as they were here"
    elsewhere = empty_service(tmp_path / "other")
    assert restore(elsewhere, tmp_path / "copy").working_keys == 3


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_commands_copy_check_and_restore(
    resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add({MODEL.id: people(2, 2)[0]}, ["p0", "p0", "p1", "p1"])
    runner, folder = CliRunner(), str(tmp_path / "copy")
    home = {"LIKENESS_HOME": str(resources.settings.home), "NO_COLOR": "1", "COLUMNS": "200"}
    taken = runner.invoke(app, ["snapshot", folder], env=home)
    assert taken.exit_code == 1, "photos are missing, since the rows were written without files"
    assert "4 faces" in taken.stdout
    assert "4 files of enrolled faces are missing" in taken.stdout
    checked = runner.invoke(app, ["restore", folder, "--check"], env=home)
    assert "is whole" in checked.stdout
    refused = runner.invoke(app, ["restore", folder], env=home)
    assert refused.exit_code == 1
    assert "has collections already ('staff')" in refused.stdout
    other = home | {"LIKENESS_HOME": str(tmp_path / "other")}
    restored = runner.invoke(app, ["restore", folder], env=other)
    assert restored.exit_code == 0, restored.output
    assert "restored 4 faces" in restored.stdout
    one = home | {"LIKENESS_HOME": str(tmp_path / "third")}
    restored = runner.invoke(app, ["restore", folder, "--collection", "staff", "--as", "copy"], env=one)
    assert restored.exit_code == 0, restored.output
    assert runner.invoke(app, ["restore", folder, "--as", "x"], env=one).exit_code == 2
    for path, recorded in ((other, ("snapshot.restore", None)), (one, ("snapshot.restore", "copy"))):
        database = open_database(Settings(home=Path(path["LIKENESS_HOME"])).database, None)
        with reading(database) as session:
            assert session.execute(select(AuditEntry.action, AuditEntry.collection_id)).all() == [recorded]
        close_database(database)
    with reading(resources.database) as session:
        assert list(session.scalars(select(AuditEntry.action))) == ["snapshot.create"]
    shutil.rmtree(folder)
    assert "no complete snapshot" in runner.invoke(app, ["restore", folder, "--check"], env=one).stdout
    assert ModelRecord.__tablename__ in {table.name for table in list_copied_tables()}


def test_unexpected_files_of_a_tar_are_refused(tmp_path: Path) -> None:
    written = list(write_files(tmp_path / "t", [("models/a/x", b"one"), ("models/a/y", b"two")]))
    with pytest.raises(Invalid, match="models/a/y"):
        list(read_files(tmp_path / "t", {written[0].path: written[0]}))
    other = SnapshotFile(written[0].path, 3, "0" * 64)
    with pytest.raises(Invalid, match="2 of its files"):
        list(read_files(tmp_path / "t", {other.path: other}))


def test_the_files_of_a_tar_are_not_all_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_members, "MEMBERS_PER_FORGETTING", 10)
    held = list[int]()

    def count_members(files: Iterable[Any]) -> Iterator[Any]:
        for file in files:
            held.append(sum(type(thing) is tarfile.TarInfo for thing in gc.get_objects()))
            yield file

    contents = [(f"models/a/{number:02}", b"some bytes") for number in range(40)]
    written = {file.path: file for file in count_members(write_files(tmp_path / "t", contents))}
    assert list(count_members(read_files(tmp_path / "t", written))) == contents
    assert (len(held), max(held) < 20) == (80, True), held


class Stop(Exception):
    """Ends a restore in the middle, as a full disk would."""


def stop_at(step: str) -> Report:
    def report(reported: str, done: int, total: int | None) -> None:
        if reported == step:
            raise Stop

    return report


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
@pytest.mark.parametrize("step", ["files", "rows"])
def test_an_interrupted_restore_of_a_service_can_be_repeated(service: Service, tmp_path: Path, step: str) -> None:
    enrol_staff(service.client)
    take(service.resources, tmp_path / "copy")
    settings = empty_service(tmp_path / "other")
    database = open_database(settings.database, settings.home)
    with pytest.raises(Stop):
        restore_service(database, settings.home, tmp_path / "copy", stop_at(step))
    close_database(database)
    with open_resources(settings) as other:
        assert count_rows(other, Face) == 0
    assert restore(settings, tmp_path / "copy").faces == 3


def test_a_collection_that_is_made_while_the_files_of_a_service_are_restored_is_kept(
    resources: Resources, tmp_path: Path
) -> None:
    GalleryWriter(resources).make(MODEL)
    take(resources, tmp_path / "copy")
    with writing(resources.database) as session:
        session.execute(delete(Collection))

    def make_collection(step: str, done: int, total: int | None) -> None:
        if step == "files":
            GalleryWriter(resources, "new").make(MODEL).add({"m-1": people(2, 1)[0]}, ["ann", "ben"])

    with pytest.raises(Conflict, match="has collections already \\('new'\\)"):
        restore_service(resources.database, resources.settings.home, tmp_path / "copy", make_collection)
    with reading(resources.database) as session:
        assert (list(session.scalars(select(Collection.id))), count_rows(resources, Face)) == (["new"], 2)


def test_a_restore_of_the_whole_service_holds_a_lock_from_its_first_file_on(
    resources: Resources, tmp_path: Path
) -> None:
    """Erasures wait for it: it may fail, and leave what is erased meanwhile."""
    GalleryWriter(resources).make(MODEL).add({"m-1": people(2, 1)[0]}, ["ann", "ben"])
    take(resources, tmp_path / "copy")
    with writing(resources.database) as session:
        session.execute(delete(Face))
        session.execute(delete(Collection))
    home, seen = resources.settings.home, set[str]()

    def check(step: str, done: int, total: int | None) -> None:
        assert is_name_locked(home, SERVICE)
        with pytest.raises(Conflict, match="restoring the whole service; wait"):
            restore_service(resources.database, home, tmp_path / "copy", quiet)
        seen.add(step)

    assert not is_name_locked(home, SERVICE)
    restore_service(resources.database, home, tmp_path / "copy", check)
    assert (seen, is_name_locked(home, SERVICE)) == ({"files", "rows"}, False)


@pytest.mark.parametrize("step", ["files", "rows"])
def test_an_interrupted_restore_of_a_collection_leaves_nothing(service: Service, tmp_path: Path, step: str) -> None:
    enrol_staff(service.client)
    resources = service.resources
    take(resources, tmp_path / "copy", "staff")
    service.client.delete(BASE).raise_for_status()
    with pytest.raises(Stop):
        restore_collection(
            resources.database, resources.settings.home, tmp_path / "copy", "staff", "staff", stop_at(step)
        )
    assert (count_rows(resources, Collection), count_rows(resources, Face)) == (0, 0)
    assert _becomes_true(lambda: list(resources.blobs.names("staff")) == [])
    assert bring_back(resources, tmp_path / "copy", "staff").faces == 3
    assert len(list(resources.blobs.names("staff"))) > 3


def test_files_that_a_sweep_took_during_a_long_restore_are_written_again(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol_staff(service.client)
    resources = service.resources
    take(resources, tmp_path / "copy", "staff")
    names = sorted(resources.blobs.names("staff"))
    service.client.delete(BASE).raise_for_status()

    def restore_and_sweep(home: Path, files: Iterable[tuple[str, bytes]], renamed: dict[str, str]) -> int:
        written.append(restore_files(home, files, renamed))
        if len(written) == 1:
            resources.blobs.remove("staff", names[:2])
        return written[-1]

    written = list[int]()
    monkeypatch.setattr(collection_restore, "restore_files", restore_and_sweep)
    bring_back(resources, tmp_path / "copy", "staff")
    assert sorted(resources.blobs.names("staff")) == names
    assert written[1:] == [2], "the others are there"

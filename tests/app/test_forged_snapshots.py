"""A snapshot whose paths and names were forged, hashes and all, writes and removes nothing outside of its place."""

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from app.errors import Invalid
from app.resources import Resources, open_resources
from app.snapshots.files import write_files
from app.snapshots.manifest import FILES, ROWS
from app.snapshots.reader import check_snapshot
from app.storage.blob_store import Blobs
from app.storage.snapshot_folders import MANIFEST
from ml.files import hash_bytes, hash_file
from tests.app.test_snapshots import bring_back, empty_service, quiet, restore, take
from tests.rows import GalleryWriter, make_model, people

FORGED = [
    "blobs/staff/../../../outside",
    "blobs/../../outside",
    "blobs/..",
    "blobs//outside",
    "blobs/staff//outside",
    "models/../outside",
    "models/m/../../outside",
    "models//outside/file",
    "recognisers/..",
    "recognisers//outside",
    "installation.key",
    "/outside",
]


def forge(resources: Resources, folder: Path, path: str | None = None, statement: str | None = None) -> None:
    """Write a snapshot of one person, with another file in its tar or its rows changed, and every hash right."""
    take(resources, folder)
    (folder / FILES).unlink()
    written = list(write_files(folder / FILES, [] if path is None else [(path, b"forged")]))
    with closing(sqlite3.connect(folder / ROWS)) as rows, rows:
        rows.execute("delete from snapshot_files")
        rows.executemany("insert into snapshot_files values (?, ?, ?)", [(f.path, f.bytes, f.sha256) for f in written])
        if statement is not None:
            assert rows.execute(statement).rowcount > 0
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest |= {"files": len(written), "rows_sha256": hash_file(folder / ROWS)}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def alter_rows(folder: Path, statement: str) -> None:
    """Change the rows of a snapshot, and its hash of them."""
    with closing(sqlite3.connect(folder / ROWS)) as rows, rows:
        rows.execute(statement)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest |= {"rows_sha256": hash_file(folder / ROWS)}
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_file_of_another_kind_is_refused(resources: Resources, tmp_path: Path, kind: bytes) -> None:
    take(resources, folder := tmp_path / "forged")
    member = tarfile.TarInfo("blobs/staff/photos/link")
    member.type, member.linkname = kind, str(folder / MANIFEST)
    with tarfile.open(folder / FILES, "a") as tar:
        tar.addfile(member)
    alter_rows(folder, f"insert into snapshot_files values ('{member.name}', 0, '{hash_bytes(b'')}')")
    with pytest.raises(Invalid, match="missing or changed"):
        check_snapshot(folder, quiet)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "fields",
    [{"sequences": {"faces": 2**63 - 1}}, {"sequences": {"faces": "1"}}, {"sequences": []}, {"bytes": -1}],
    ids=str,
)
def test_a_count_that_cannot_be_one_is_refused(resources: Resources, tmp_path: Path, fields: dict[str, object]) -> None:
    """Above the largest number of a row no face could be enrolled: imports would wait for ever."""
    take(resources, folder := tmp_path / "forged")
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | fields))
    with pytest.raises(Invalid, match="is damaged"):
        check_snapshot(folder, quiet)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("path", FORGED)
def test_a_forged_path_is_refused_before_anything_is_written(resources: Resources, tmp_path: Path, path: str) -> None:
    forge(resources, tmp_path / "forged", path)
    with pytest.raises(Invalid, match="does not belong there"):
        check_snapshot(tmp_path / "forged", quiet)
    settings = empty_service(tmp_path / "other")
    with pytest.raises(Invalid, match="does not belong there"):
        restore(settings, tmp_path / "forged")
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and file.read_bytes() == b"forged"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        "update faces set image_id = 'x/../../../../outside'",
        "update collections set id = '../../outside'",
        "update models set id = '../../outside' where id = 'm-1'",
    ],
)
def test_a_forged_name_of_a_file_is_refused(resources: Resources, tmp_path: Path, statement: str) -> None:
    rows, subjects = people(1, 1)
    GalleryWriter(resources).make(make_model("m-1")).add({"m-1": rows}, subjects)
    forge(resources, tmp_path / "forged", statement=statement)
    settings = empty_service(tmp_path / "other")
    with pytest.raises(Invalid, match="cannot be the"):
        restore(settings, tmp_path / "forged")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("update subjects set metadata = '{'", None),
        ("update subjects set metadata = '{'", "staff-2"),
        ("update deployments set challenger = 'm-absent'", None),
    ],
)
def test_rows_that_cannot_be_stored_are_refused_with_a_sentence(
    resources: Resources, tmp_path: Path, statement: str, name: str | None
) -> None:
    rows, subjects = people(1, 1)
    GalleryWriter(resources).make(make_model("m-1")).add({"m-1": rows}, subjects)
    forge(resources, tmp_path / "forged", statement=statement)
    settings = empty_service(tmp_path / "other")
    with open_resources(settings) as other, pytest.raises(Invalid, match="cannot be stored"):
        _ = bring_back(other, tmp_path / "forged", "staff", name) if name else restore(settings, tmp_path / "forged")


POLICY = (
    "insert into training_policies (collection_id, task, version, trigger, hours, at, labels, publish, request, "
    "last_labels, since, updated_at) values ('staff', 'identity', 1, {trigger}, {hours}, {at}, 1, {publish}, "
    "{request}, 0, 0.0, 0.0)"
)
GOOD_POLICY = {"trigger": "'schedule'", "hours": 24.0, "at": "'03:00'", "publish": "'never'", "request": "'{}'"}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        (f"update collections set change = {2**63 - 1}", r"change of the row \(staff\) of collections"),
        ("update collections set change = -5", "change of"),
        (f"update collections set label_change = {2**53}", "label_change of"),
        (f"update faces set change = {2**63 - 1}", "change of"),
        (f"update subjects set pk = {2**63 - 1} where pk = 1", "pk of the row .* of subjects"),
        ("update collections set external_model = 'nope'", "external_model of"),
        ("update collections set external_model = 'm-1'", "external_model of"),
        ("update collections set created_at = 9e999", "created_at of"),
        ("update subjects set retain_until = 'tomorrow'", "retain_until of"),
        ("update subjects set retain_until = -1e300", "retain_until of"),
        ("update subjects set metadata = '[1]'", "metadata of"),
        ("update subjects set merged_subjects = '{}'", "merged_subjects of"),
        ("update subjects set merged_subjects = '[1]' where pk = 2", r"merged_subjects of the row \(2\) of subjects"),
        ('update subjects set merged_subjects = \'[{"id": "ann", "external_id": null}]\'', "merged_subjects of"),
        (
            "update subjects set merged_subjects = "
            '\'[{"pk": [], "id": "ann", "external_id": null, "created_at": 1.0, "merged_at": 1.0}]\'',
            "merged_subjects of",
        ),
        ("update subjects set id = 'a' || char(0) || 'b' where pk = 1", "id of"),
        ("update subjects set id = replace(hex(zeroblob(200)), '0', 'a') where pk = 1", "id of"),
        ("update faces set role = 'guest'", "role of"),
        ("update faces set landmarks = '{}'", "landmarks of"),
        (
            "update embeddings set vector = x'61626364' where face_pk = 1",
            "vector of the row .m-1, identity, 1",
        ),
        ("update embeddings set vector = x''", "vector of"),
        ("update embeddings set vector = x'616263'", "vector of"),
        ("update embeddings set vector = 'text'", "vector of"),
        ("update embeddings set vector = x'0000807f' || substr(vector, 5)", "vector of"),
        (f"update embeddings set vector = x'{8 * '0000807f'}' where face_pk = 1", "vector of"),
        (f"update embeddings set vector = x'{8 * '0000c07f'}'", "vector of"),
        ("update deployments set champion = 'm-absent'", "champion of"),
        ("update deployments set champion = (select id from models where id != 'm-1' limit 1)", "champion of"),
        ("update deployments set measurements = '[1]'", "measurements of"),
        ("update deployments set measurements = '{\"m-1\": 1}'", "measurements of"),
        ('update deployments set measurements = \'{"m-1": {"calibration": {"slope": 1}}}\'', "measurements of"),
        ('update deployments set measurements = \'{"m-1": {"curve": [1]}}\'', "measurements of"),
        ("update deployments set label_policy = 'none'", "label_policy of"),
        (f"update deployments set version = {2**31}", "version of"),
        ("update models set manifest = '{}'", "manifest of"),
        (POLICY.format(**GOOD_POLICY | {"at": "'99:99'"}), "at of"),
        (POLICY.format(**GOOD_POLICY | {"hours": 1e-300}), "hours of"),
        (POLICY.format(**GOOD_POLICY | {"trigger": "'zzz'"}), "trigger of"),
        (POLICY.format(**GOOD_POLICY | {"request": "'[]'"}), "request of"),
    ],
)
def test_a_row_that_the_service_would_not_write_is_refused_by_name(
    resources: Resources, tmp_path: Path, statement: str, named: str
) -> None:
    rows, subjects = people(2, 1)
    model = make_model("m-1")
    GalleryWriter(resources).make(model, previous=make_model("m-2")).add({model.id: rows}, subjects)
    forge(resources, tmp_path / "forged", statement=statement)
    expected = "forged was altered: " + named
    with pytest.raises(Invalid, match=expected):
        check_snapshot(tmp_path / "forged", quiet)
    with open_resources(empty_service(tmp_path / "other")) as other, pytest.raises(Invalid, match=expected):
        bring_back(other, tmp_path / "forged", "staff")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_policy_that_the_service_may_write_is_restored(resources: Resources, tmp_path: Path) -> None:
    rows, subjects = people(2, 1)
    model = make_model("m-1")
    GalleryWriter(resources).make(model).add({model.id: rows}, subjects)
    forge(resources, tmp_path / "forged", statement=POLICY.format(**GOOD_POLICY))
    assert restore(empty_service(tmp_path / "other"), tmp_path / "forged").faces == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("metadata", ["[" * 100_000, '{"a":' * 100_000])
def test_json_that_is_nested_too_deeply_is_refused(resources: Resources, tmp_path: Path, metadata: str) -> None:
    rows, subjects = people(1, 1)
    model = make_model("m-1")
    GalleryWriter(resources).make(model).add({model.id: rows}, subjects)
    forge(resources, tmp_path / "forged", statement=f"update faces set metadata = '{metadata}'")
    with pytest.raises(Invalid):
        restore(empty_service(tmp_path / "other"), tmp_path / "forged")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    ["drop table labels", "update models set id = cast(x'ff' as text)"],
    ids=["a table is missing", "a text is not UTF-8"],
)
def test_rows_that_cannot_be_read_are_no_database_that_is_away(
    resources: Resources, tmp_path: Path, statement: str
) -> None:
    take(resources, tmp_path / "forged")
    alter_rows(tmp_path / "forged", statement)
    with pytest.raises(Invalid, match="cannot be read"):
        restore(empty_service(tmp_path / "other"), tmp_path / "forged")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        "create view endless as with recursive r(n) as (select 1 union all select n + 1 from r) select n from r",
        "create trigger labels_too after insert on labels begin delete from faces; end",
    ],
)
def test_views_and_triggers_are_refused(resources: Resources, tmp_path: Path, statement: str) -> None:
    take(resources, tmp_path / "forged")
    alter_rows(tmp_path / "forged", statement)
    with pytest.raises(Invalid, match="only tables belong"):
        check_snapshot(tmp_path / "forged", quiet)


@pytest.mark.parametrize(
    ("collection", "name"), [("staff", "photos/../../../x"), ("staff", ".."), ("../x", "photos/x")]
)
def test_no_name_leads_out_of_the_folder_of_its_collection(tmp_path: Path, collection: str, name: str) -> None:
    (tmp_path / "blobs" / "c-staff" / "photos").mkdir(parents=True)
    (tmp_path / "x").write_bytes(b"kept")
    blobs = Blobs(tmp_path / "blobs")
    for use in (lambda: blobs.remove(collection, [name]), lambda: blobs.put(collection, [(name, b"forged")])):
        with pytest.raises(Invalid):
            use()
    assert (tmp_path / "x").read_bytes() == b"kept"


def test_collections_of_earlier_versions_may_be_called_by_dots(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    blobs.put("..", [("photos/ab/abc..d", b"photo")])
    assert blobs.get("..", "photos/ab/abc..d") == b"photo"
    assert [file.relative_to(tmp_path).parts[0] for file in tmp_path.rglob("*d")] == ["c-.."]

"""A snapshot whose paths and names were forged, hashes and all, writes and removes nothing outside of its place."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.errors import Invalid
from app.resources import Resources, open_resources
from app.snapshots.files import write_files
from app.snapshots.manifest import FILES, MANIFEST, ROWS
from app.snapshots.reader import check_snapshot
from app.storage.blob_store import Blobs
from ml.files import hash_file
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
        ("update subjects set retain_until = 'tomorrow'", None),
        ("update subjects set retain_until = 'tomorrow'", "staff-2"),
        ("update deployments set champion = 'm-absent'", None),
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

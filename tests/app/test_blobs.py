"""The blob store writes a file completely or not at all."""

import errno
import os
from pathlib import Path

import pytest

from app.errors import Busy
from app.storage.atomic_write import MAX_SINGLE_SYNCS
from app.storage.blob_store import Blobs


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path)


@pytest.mark.parametrize("files", [1, MAX_SINGLE_SYNCS + 3])
def test_a_stored_file_can_be_read_back(blobs: Blobs, files: int) -> None:
    kept = {f"photos/{n:02d}/{n}": bytes([n]) * 1000 * n for n in range(files)}
    blobs.put("staff", kept.items())
    assert blobs.has("staff", kept)
    assert not blobs.has("staff", [*kept, "photos/00/none"])
    assert not blobs.has("others", kept)
    assert {name: blobs.get("staff", name) for name in blobs.names("staff")} == kept


def test_storing_an_existing_name_keeps_the_bytes_and_resets_the_age(blobs: Blobs, tmp_path: Path) -> None:
    blobs.put("..", [("photos/ab/abc", b"first")])
    os.utime(tmp_path / "c-../photos/ab/abc", (0, 0))
    assert blobs.age("..", "photos/ab/abc") > 1e6
    blobs.put("..", [("photos/ab/abc", b"second")])
    assert blobs.get("..", "photos/ab/abc") == b"first"
    assert blobs.age("..", "photos/ab/abc") < 60


def test_short_writes_are_continued_until_the_file_is_complete(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data[:7])))
    blobs.put("staff", [("photos/ab/abc", bytes(range(100)))])
    assert blobs.get("staff", "photos/ab/abc") == bytes(range(100))


def test_a_write_to_a_full_disk_leaves_no_file(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    write, written = os.write, []

    def fills(file: int, data: bytes) -> int:
        written.append(len(data))
        if len(written) > 2:
            raise OSError(errno.ENOSPC, "no space left")
        return write(file, data)

    monkeypatch.setattr(os, "write", fills)
    with pytest.raises(Busy, match="disk is full"):
        blobs.put("staff", [(f"photos/ab/{n}", b"photo") for n in range(4)])
    assert list(blobs.names("staff")) == []

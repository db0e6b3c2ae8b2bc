"""The blob store writes a file completely or not at all."""

import errno
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from app.errors import AppError, Busy
from app.storage import atomic_write
from app.storage.atomic_write import MAX_SINGLE_SYNCS
from app.storage.blob_store import DAMAGED_FILES, FILES_PER_CHECK, MAX_WRITES, Blobs
from ml.images import encode_png


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
    blobs.put("..", [("crops/ab/abc-0.grey.png", b"first")])
    os.utime(tmp_path / "c-../crops/ab/abc-0.grey.png", (0, 0))
    assert blobs.age("..", "crops/ab/abc-0.grey.png") > 1e6
    blobs.put("..", [("crops/ab/abc-0.grey.png", b"second")])
    assert blobs.get("..", "crops/ab/abc-0.grey.png") == b"first"
    assert blobs.age("..", "crops/ab/abc-0.grey.png") < 60


def test_a_photo_that_is_cut_short_is_written_again(blobs: Blobs, tmp_path: Path) -> None:
    blobs.put("staff", [("photos/ab/abc", b"whole")])
    (tmp_path / "c-staff/photos/ab/abc").write_bytes(b"who")
    blobs.put("staff", [("photos/ab/abc", b"whole")])
    assert blobs.get("staff", "photos/ab/abc") == b"whole"


@pytest.mark.parametrize("removals", [1, MAX_WRITES - 1])
@pytest.mark.parametrize("whole_collection", [False, True])
def test_files_that_are_removed_while_they_are_written_are_written_again(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, removals: int, whole_collection: bool
) -> None:
    files = {"photos/ab/abc": b"photo", "crops/ab/abc-0.grey.png": b"crop"}
    remove_before_sync(blobs, monkeypatch, removals, whole_collection=whole_collection)
    blobs.put("staff", files.items())
    assert {name: blobs.get("staff", name) for name in blobs.names("staff")} == files


def test_files_that_are_always_removed_while_they_are_written_are_refused(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_before_sync(blobs, monkeypatch, MAX_WRITES)
    with pytest.raises(Busy, match="are being removed"):
        blobs.put("staff", [("photos/ab/abc", b"photo")])


def remove_before_sync(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, removals: int, whole_collection: bool = False
) -> None:
    """Remove the files of the collection, or the collection, so many times just before new files are synced."""
    remaining, sync = [removals], atomic_write.sync_paths

    def remove_and_sync(root: Path, paths: Collection[str]) -> None:
        if remaining[0] > 0:
            remaining[0] -= 1
            if whole_collection:
                blobs.set_aside("staff")
            else:
                blobs.remove("staff", blobs.names("staff"))
        sync(root, paths)

    monkeypatch.setattr(atomic_write, "sync_paths", remove_and_sync)


def test_what_is_left_to_remove_stays_once_the_lock_is_lost(blobs: Blobs) -> None:
    names = [f"photos/ab/ab{number}" for number in range(FILES_PER_CHECK + 3)]
    for name in names:
        blobs.put("staff", [(name, b"photo")])
    is_held = iter([True, False])

    def check_lock() -> None:
        if not next(is_held):
            raise Busy("the lock is lost")

    with pytest.raises(Busy):
        blobs.remove("staff", names, check_lock)
    assert [name for name in names if blobs.has("staff", [name])] == names[FILES_PER_CHECK:]


def test_photos_and_crops_are_checked_when_they_are_read(blobs: Blobs, tmp_path: Path) -> None:
    photo, crop = b"any bytes", encode_png(np.zeros((4, 4), np.uint8))
    image = Blobs.digest(photo)
    blobs.put("staff", [(Blobs.photo(image), photo), (Blobs.crop(image, 0, "grey"), crop)])
    assert (blobs.get_photo("staff", image), blobs.get_crop("staff", image, 0, "grey")) == (photo, crop)
    before = count_damaged("photo"), count_damaged("crop")
    for name, data in ((Blobs.photo(image), photo), (Blobs.crop(image, 0, "grey"), crop)):
        (tmp_path / "c-staff" / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(AppError, match="the stored photo is damaged") as refused:
        blobs.get_photo("staff", image)
    assert refused.value.code == "StoredFileDamaged"
    with pytest.raises(AppError, match="the stored crop is damaged"):
        blobs.get_crop("staff", image, 0, "grey")
    assert (count_damaged("photo"), count_damaged("crop")) == (before[0] + 1, before[1] + 1)


def count_damaged(kind: str) -> float:
    return float(DAMAGED_FILES.labels(kind)._value.get())


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

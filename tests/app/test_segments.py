"""Segments hold the files of many photos in one file of the disk, and lose nothing and keep nothing."""

import errno
import os
import random
import struct
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from app.errors import AppError, Busy, NotFound
from app.snapshots.files import list_blobs
from app.storage.blob_store import MAX_SINGLE_FILES, Blobs
from app.storage.segments import segment_file, segment_index
from app.storage.segments.segment_file import HEADER, PUT_AT_OFFSET, SegmentFile, split_segment
from ml.errors import Corrupt
from ml.images import encode_png

COLLECTION = "staff"
COUNT = MAX_SINGLE_FILES


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path)


def make_files(count: int = COUNT, seed: int = 0) -> dict[str, bytes]:
    """The files of so many photos with one face each: content of several sizes, no two alike."""
    draw = random.Random(seed)
    files = {}
    for n in range(count):
        image = Blobs.digest(f"{seed}-{n}".encode())
        files[Blobs.photo(image)] = draw.randbytes(draw.randrange(1, 20_000))
        files[Blobs.crop(image, 0, "grey")] = draw.randbytes(5_000)
        files[Blobs.described(image, 0, "key")] = draw.randbytes(260)
    return files


def list_segments(blobs: Blobs) -> list[Path]:
    return sorted((blobs.root / f"c-{COLLECTION}" / "segments").glob("*.seg"))


def list_disk_files(blobs: Blobs) -> list[str]:
    return [path.name for path in blobs.root.rglob("*") if path.is_file()]


def read_all(blobs: Blobs) -> dict[str, bytes]:
    return {name: blobs.get(COLLECTION, name) for name in blobs.names(COLLECTION)}


def test_many_files_are_one_file_of_the_disk(blobs: Blobs) -> None:
    files = make_files()
    blobs.put(COLLECTION, files.items())
    assert len(list_disk_files(blobs)) == 1
    for store in (blobs, Blobs(blobs.root)):  # another process
        assert read_all(store) == files
        assert store.has(COLLECTION, files)
        assert not store.has(COLLECTION, [*files, "photos/00/none"])
        assert not store.has("others", files)
        assert store.measure({COLLECTION: files}) == sum(map(len, files.values()))


def test_few_files_are_files_of_the_disk(blobs: Blobs) -> None:
    few = dict(list(make_files().items())[:MAX_SINGLE_FILES])
    blobs.put(COLLECTION, few.items())
    assert list_segments(blobs) == []
    assert read_all(blobs) == few


def test_what_another_process_stores_and_removes_is_seen_at_once(blobs: Blobs) -> None:
    other = Blobs(blobs.root)
    for seed in range(20):
        files = make_files(seed=seed)
        other.put(COLLECTION, files.items())
        assert blobs.has(COLLECTION, files)
        first = next(iter(files))
        assert other.remove(COLLECTION, [first]) == 1
        assert not blobs.has(COLLECTION, [first])
        with pytest.raises(NotFound):
            blobs.get(COLLECTION, first)


def test_a_collection_of_the_same_name_has_nothing_of_the_one_before(blobs: Blobs) -> None:
    files = make_files()
    blobs.put(COLLECTION, files.items())
    assert blobs.has(COLLECTION, files)
    Blobs(blobs.root).set_aside(COLLECTION)
    assert not any(blobs.has(COLLECTION, [name]) for name in files)
    blobs.put(COLLECTION, files.items())
    blobs.empty_trash()
    assert read_all(blobs) == files


def list_open_segments(blobs: Blobs) -> list[str]:
    """List the links in /proc to the segments of the store that this process has open."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    paths = {link: os.readlink(link) for link in links if os.path.lexists(link)}
    return [link for link, path in paths.items() if path.startswith(str(blobs.root)) and ".seg" in path]


def test_a_deleted_collection_leaves_no_open_segment(blobs: Blobs) -> None:
    files = make_files()
    blobs.put(COLLECTION, files.items())
    read_all(blobs)
    assert list_open_segments(blobs)
    blobs.set_aside(COLLECTION)
    assert list_open_segments(blobs) == []


def test_a_process_that_has_a_segment_open_keeps_nothing_of_a_deleted_collection(blobs: Blobs) -> None:
    """Its blocks would stay in use until that process ends."""
    files, other = make_files(), Blobs(blobs.root)
    blobs.put(COLLECTION, files.items())
    assert read_all(other) == files
    blobs.set_aside(COLLECTION)
    assert blobs.empty_trash()
    assert list(blobs.root.iterdir()) == []
    assert [os.stat(link).st_size for link in list_open_segments(other)] == [0]
    with pytest.raises(NotFound):
        other.get(COLLECTION, next(iter(files)))
    assert list_open_segments(other) == [], "it has seen that the folder is gone"


def keep_open_files(monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """Have files of this name be renamed when they are removed, as NFS does with those that are open."""
    unlink = os.unlink

    def rename_open(path: str) -> None:
        folder, name = os.path.split(path)
        if name.startswith(".nfs"):
            raise OSError(errno.EBUSY, "it is open")
        if name.endswith(suffix):
            os.rename(path, f"{folder}/.nfs{name}")
        else:
            unlink(path)

    monkeypatch.setattr(os, "unlink", rename_open)


def test_what_nfs_keeps_of_open_segments_is_empty_and_goes_later(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs.put(COLLECTION, make_files().items())
    blobs.set_aside(COLLECTION)
    with monkeypatch.context() as patch:
        keep_open_files(patch, ".seg")
        assert blobs.empty_trash()
        assert blobs.empty_trash()
    [kept] = (path for path in blobs.root.rglob("*") if path.is_file())
    assert (kept.name[:4], kept.stat().st_size) == (".nfs", 0)
    assert blobs.empty_trash()
    assert list(blobs.root.iterdir()) == []


def test_what_is_left_in_the_trash_is_told(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs.put(COLLECTION, list(make_files().items())[:1])
    blobs.set_aside(COLLECTION)
    with monkeypatch.context() as patch:
        keep_open_files(patch, "")
        assert not blobs.empty_trash(), "an open photo keeps its contents"
    assert blobs.empty_trash()
    assert list(blobs.root.iterdir()) == []


def test_the_files_of_a_collection_that_is_a_link_are_removed(blobs: Blobs, tmp_path: Path) -> None:
    """It was moved to another disk."""
    elsewhere = tmp_path / "elsewhere"
    blobs.put(COLLECTION, make_files().items())
    (blobs.root / f"c-{COLLECTION}").rename(elsewhere)
    (blobs.root / f"c-{COLLECTION}").symlink_to(elsewhere)
    blobs.set_aside(COLLECTION)
    assert blobs.empty_trash()
    assert not elsewhere.exists()
    assert list(blobs.root.iterdir()) == []


def test_files_from_before_segments_stay_readable_and_are_not_stored_twice(blobs: Blobs) -> None:
    files = make_files()
    earlier = dict(list(files.items())[:MAX_SINGLE_FILES])
    blobs.put(COLLECTION, earlier.items())
    blobs.put(COLLECTION, files.items())
    assert read_all(blobs) == files
    [segment] = list_segments(blobs)
    assert SegmentFile(str(segment)).count == len(files) - len(earlier)


@pytest.mark.parametrize("can_punch", [True, False])
def test_nothing_of_a_removed_file_stays_on_the_disk(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, can_punch: bool
) -> None:
    if not can_punch:
        monkeypatch.setattr(segment_file, "FALLOCATE", None)
    files = make_files()
    blobs.put(COLLECTION, files.items())
    removed = list(files)[:5]

    def lose_lock() -> None:
        raise Busy("the lock is lost")

    with pytest.raises(Busy):
        blobs.remove(COLLECTION, removed, lose_lock)
    assert blobs.has(COLLECTION, removed)
    assert blobs.remove(COLLECTION, [*removed, "photos/00/none"]) == len(removed)
    [segment] = list_segments(blobs)
    data = segment.read_bytes()
    for name, content in files.items():
        if name in removed:
            assert content[:64] not in data
            assert name.encode() not in data
        else:
            assert content in data
    assert read_all(blobs) == {name: content for name, content in files.items() if name not in removed}
    assert read_all(Blobs(blobs.root)) == read_all(blobs)
    if can_punch and segment_file.FALLOCATE is not None:
        assert segment.stat().st_blocks * 512 < segment.stat().st_size


def test_what_two_processes_store_at_once_is_listed_once_and_removed_in_both(blobs: Blobs) -> None:
    files = make_files()
    for root in ("one", "two"):
        (blobs.root / root).mkdir()
        Blobs(blobs.root / root).put(COLLECTION, files.items())
        folder = blobs.root / f"c-{COLLECTION}" / "segments"
        folder.mkdir(parents=True, exist_ok=True)
        [segment] = list_segments(Blobs(blobs.root / root))
        segment.rename(folder / segment.name)
    owners = (Blobs.parse_name(name) for name in files)
    faces = {(image, number) for image, number in owners if number is not None}
    assert list_blobs(blobs, COLLECTION, faces) == sorted(files)
    first, *others = files
    assert blobs.remove(COLLECTION, [first]) == 1
    assert not blobs.has(COLLECTION, [first])
    assert all(files[first][:64] not in path.read_bytes() for path in list_segments(blobs))
    assert blobs.has(COLLECTION, others)


def test_a_segment_goes_with_its_last_file(blobs: Blobs) -> None:
    files = make_files()
    blobs.put(COLLECTION, files.items())
    names = list(files)
    blobs.remove(COLLECTION, names[:-1])
    assert len(list_segments(blobs)) == 1
    assert blobs.remove(COLLECTION, names[-1:]) == 1
    assert list_disk_files(blobs) == []
    blobs.put(COLLECTION, files.items())
    assert read_all(blobs) == files


class Crash(Exception):
    """Stands for SIGKILL between two writes."""


def test_a_removal_that_a_crash_interrupts_is_complete_after_the_next(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was written before the crash: readers see each file whole or not at all, and the names are listed."""
    pwrite, files = os.pwrite, make_files(4)
    removed = list(files)[:6]
    step = 0
    while True:
        blobs.put(COLLECTION, files.items())
        remaining = [step]

        def write(file: int, data: bytes, offset: int, remaining: list[int] = remaining) -> int:
            if remaining[0] == 0:
                raise Crash
            remaining[0] -= 1
            return pwrite(file, data, offset)

        monkeypatch.setattr(os, "pwrite", write)
        try:
            blobs.remove(COLLECTION, removed)
            break
        except Crash:
            monkeypatch.setattr(os, "pwrite", pwrite)
        other = Blobs(blobs.root)
        for name in files:
            if other.has(COLLECTION, [name]):
                assert other.get(COLLECTION, name) == files[name]
        left = set(other.names(COLLECTION))
        [segment] = list_segments(blobs)
        content = segment.read_bytes()
        assert all(name in left for name in removed if files[name] in content)
        other.remove(COLLECTION, [name for name in removed if name in left])
        assert not any(name.encode() in segment.read_bytes() for name in removed)
        assert other.has(COLLECTION, files.keys() - set(removed))
        other.remove(COLLECTION, files)
        step += 1
    assert step == 2 * len(removed)


def test_putting_again_sets_the_age_of_this_file_alone_to_0(blobs: Blobs) -> None:
    files = make_files()
    blobs.put(COLLECTION, files.items())
    set_ages(blobs, 5_000)
    again, *others = files
    blobs.put(COLLECTION, [(again, files[again])])
    assert blobs.age(COLLECTION, again) < 60
    assert all(blobs.age(COLLECTION, name) > 4_000 for name in others)
    blobs.remove(COLLECTION, others[:2])
    assert all(blobs.age(COLLECTION, name) > 4_000 for name in others[2:])
    assert blobs.age(COLLECTION, others[0]) == 0.0
    assert len(list_disk_files(blobs)) == 1


def set_ages(blobs: Blobs, seconds: float) -> None:
    for path in list_segments(blobs):
        data = bytearray(path.read_bytes())
        _, count, entry_bytes = HEADER.unpack_from(data)
        for position in range(count):
            place = HEADER.size + entry_bytes * position + PUT_AT_OFFSET
            [put_at] = struct.unpack_from("<d", data, place)
            struct.pack_into("<d", data, place, put_at - seconds)
        path.write_bytes(data)


def test_a_damaged_file_is_refused_set_aside_and_written_again(blobs: Blobs) -> None:
    files = make_files()
    image = Blobs.digest(b"a photo of other bytes")
    crop, photo = encode_png(np.zeros((4, 4), np.uint8)), b"a photo of other bytes"
    name = Blobs.crop(image, 0, "grey")
    files |= {Blobs.photo(image): photo, name: crop}
    blobs.put(COLLECTION, files.items())
    assert blobs.get_crop(COLLECTION, image, 0, "grey") == crop
    alter(list_segments(blobs)[0], crop)
    alter(list_segments(blobs)[0], photo)
    with pytest.raises(AppError, match="the stored crop is damaged"):
        blobs.get_crop(COLLECTION, image, 0, "grey")
    with pytest.raises(AppError, match="the stored photo is damaged"):
        blobs.get_photo(COLLECTION, image)
    blobs.quarantine(COLLECTION, name)
    assert not blobs.has(COLLECTION, [name])
    assert f"{name}.damaged" in blobs.files_of(COLLECTION, image)
    blobs.put(COLLECTION, [(name, crop)])
    assert blobs.get_crop(COLLECTION, image, 0, "grey") == crop
    assert blobs.remove(COLLECTION, blobs.files_of(COLLECTION, image)) == 3
    assert not {n for n in blobs.names(COLLECTION) if image in n}


def alter(path: Path, content: bytes) -> None:
    """Change one bit in the middle of a stored content."""
    data = bytearray(path.read_bytes())
    data[data.index(content) + len(content) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_entry_costs_one_file_and_a_damaged_header_the_segment(
    blobs: Blobs, caplog: pytest.LogCaptureFixture
) -> None:
    files = make_files()
    blobs.put(COLLECTION, files.items())
    [path] = list_segments(blobs)
    data = bytearray(path.read_bytes())
    data[HEADER.size + 20] ^= 4  # the offset of the first
    path.write_bytes(data)
    other = Blobs(blobs.root)
    kept = read_all(other)
    assert len(kept) == len(files) - 1
    assert kept.items() <= files.items()
    assert "segment.damaged" in caplog.text
    path.write_bytes(b"other" + data[5:])
    with pytest.raises(Corrupt):
        SegmentFile(str(path))
    assert read_all(Blobs(blobs.root)) == {}
    assert list(split_segment(str(path))) == [(None, b"other" + data[5:])]
    assert len(list_segments(blobs)) == 1


def test_a_segment_that_is_cut_short_keeps_what_is_before_the_cut(blobs: Blobs) -> None:
    files = make_files()
    blobs.put(COLLECTION, files.items())
    [path] = list_segments(blobs)
    os.truncate(path, path.stat().st_size - 1)
    other = Blobs(blobs.root)
    lost = [name for name in files if other.get(COLLECTION, name) != files[name]]
    assert len(lost) == 1
    other.put(COLLECTION, files.items())
    photos = [name for name in files if name.startswith("photos/")]
    assert {other.get(COLLECTION, name) for name in photos} >= {files[name] for name in photos if name not in lost}
    os.truncate(path, HEADER.size + 1)
    assert not set(Blobs(blobs.root).names(COLLECTION)) & (files.keys() - set(lost))


def test_every_byte_of_a_segment_is_searched_once(blobs: Blobs) -> None:
    files = make_files()
    blobs.put(COLLECTION, files.items())
    blobs.remove(COLLECTION, list(files)[3:9])
    [path] = list_segments(blobs)
    parts = list(split_segment(str(path)))
    assert b"".join(data for _, data in parts) == path.read_bytes()
    assert {name: data for name, data in parts if name is not None} == read_all(blobs)
    assert list(split_segment(str(path) + "-none")) == []


def test_many_segments_are_found_by_sorted_keys(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_index, "MAX_RECENT_KEYS", 20)
    monkeypatch.setattr(segment_index, "MAX_OPEN_SEGMENTS", 3)
    files: dict[str, bytes] = {}
    for seed in range(12):
        own = make_files(4, seed)
        blobs.put(COLLECTION, own.items())
        assert blobs.has(COLLECTION, own)
        files |= own
        gone = list(own)[:2] if seed % 3 else list(own)
        blobs.remove(COLLECTION, gone)
        files = {name: content for name, content in files.items() if name not in gone}
    assert read_all(blobs) == files
    assert blobs.has(COLLECTION, files)


def test_threads_store_read_and_remove_at_once(blobs: Blobs) -> None:
    """Each thread has its own photos; all share one store, and another one looks at everything meanwhile."""
    failures: list[BaseException] = []
    ended = threading.Event()

    def work(seed: int) -> None:
        try:
            for turn in range(6):
                files = make_files(seed=100 * seed + turn)
                blobs.put(COLLECTION, files.items())
                assert {name: blobs.get(COLLECTION, name) for name in files} == files
                blobs.remove(COLLECTION, keep_last(files))
                assert blobs.has(COLLECTION, list(files)[-1:])
        except BaseException as error:
            failures.append(error)

    def watch() -> None:
        other = Blobs(blobs.root)
        try:
            while not ended.is_set():
                list(other.names(COLLECTION))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    watcher = threading.Thread(target=watch)
    for thread in (watcher, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    watcher.join()
    assert failures == []
    assert len(read_all(Blobs(blobs.root))) == 4 * 6


def keep_last(files: Iterable[str]) -> list[str]:
    return list(files)[:-1]

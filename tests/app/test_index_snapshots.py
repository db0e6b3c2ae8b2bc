"""What is left of indexes that were being saved goes with the next erasure of what they may hold."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from app.serving import index_snapshots
from app.serving.index_builder import IndexKey
from app.serving.index_snapshots import SnapshotStore
from ml.indexes.flat import FlatIndex
from tests.killed_process import kill_saving_process

KEY = IndexKey("staff", "identity", "m", 5.0)
VANISHED = "aa.bb-1-cc.index"
"""A file of another collection, which a process removes once it has saved the next one."""


@pytest.mark.parametrize(("syncs", "suffix"), [(0, ".part"), (1, ".index"), (2, ".index")])
def test_what_a_killed_process_has_left_of_an_index_is_erased_at_once(tmp_path: Path, syncs: int, suffix: str) -> None:
    """It was killed while it wrote the file, or before the record named it."""
    [left] = kill_saving_process(tmp_path, 10, syncs)
    assert left.suffix == suffix
    store = SnapshotStore(tmp_path)
    for other in (("staff", 5.0, 10), ("staff", 6.0, 11), ("guests", 5.0, 11)):
        store.delete_erased(*other)
        assert left.exists(), "it does not hold what was erased there, and may be being written"
    assert store.delete_erased("staff", 5.0, 11) == 0
    assert not left.exists()


@pytest.mark.parametrize("name", ["x.1.index.abc.part", "x.1.index"])
@pytest.mark.parametrize("age", [0.0, 120.0])
def test_a_file_that_an_earlier_version_has_left_goes_with_any_erasure(tmp_path: Path, name: str, age: float) -> None:
    left = tmp_path / name
    left.write_bytes(b"x")
    os.utime(left, (modified_at := left.stat().st_mtime - age, modified_at))
    SnapshotStore(tmp_path).delete_erased("guests", 5.0, 1)
    assert not left.exists()


def test_an_old_file_that_nobody_writes_goes_with_any_erasure(tmp_path: Path) -> None:
    [left] = kill_saving_process(tmp_path, 10, 0)
    os.utime(left, (1, 1))
    SnapshotStore(tmp_path).delete_erased("guests", 5.0, 1)
    assert not left.exists()


def test_a_file_that_is_completed_while_it_is_erased_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, unlink = SnapshotStore(tmp_path), index_snapshots._unlink
    [left] = kill_saving_process(tmp_path, 10, 0)

    def complete_and_unlink(paths: Iterable[Path]) -> None:
        listed = list(paths)
        if left in listed:
            left.rename(left.with_suffix("").with_suffix(""))
        unlink(listed)

    monkeypatch.setattr(index_snapshots, "_unlink", complete_and_unlink)
    store.delete_erased("staff", 5.0, 11)
    assert list(tmp_path.glob("*.index*")) == []


def test_a_file_that_another_process_removes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, glob, iterdir = SnapshotStore(tmp_path), Path.glob, Path.iterdir

    def glob_with_vanished(folder: Path, pattern: str) -> Iterator[Path]:
        yield from [folder / VANISHED] if pattern == "*.index" else []
        yield from glob(folder, pattern)

    def iterate_with_vanished(folder: Path) -> Iterator[Path]:
        yield folder / VANISHED
        yield from iterdir(folder)

    monkeypatch.setattr(Path, "glob", glob_with_vanished)
    monkeypatch.setattr(Path, "iterdir", iterate_with_vanished)
    assert store.delete_erased("staff", 5.0, 11) == 0
    old = tmp_path / "gone.json"
    old.write_text("{}")
    os.utime(old, (1, 1))
    store.delete_all_but([])
    assert not old.exists()


def test_the_files_of_a_snapshot_that_holds_nothing_erased_stay(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    assert store.save(KEY, FlatIndex(8), 11, "")
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    assert store.delete_erased("staff", 5.0, 11) == 0
    saved = store.load(KEY, "cpu")
    assert saved is not None
    assert saved.change == 11
    assert store.delete_erased("staff", 5.0, 12) == 1
    assert list(tmp_path.glob("*.index*")) == []

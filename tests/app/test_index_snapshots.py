"""Files of indexes are deleted while other processes save and remove some."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.serving.index_snapshots import SnapshotStore

VANISHED = "aa.bb-1-cc.index"
"""A file of another collection, which a process removes once it has saved the next one."""


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

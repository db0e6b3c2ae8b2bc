"""A file is replaced whole or not at all, and synced before and after the rename."""

import os
from pathlib import Path

import pytest

from app.storage.atomic_write import atomic_write


def test_a_finished_write_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.write("text, which a binary file refuses")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_synced_before_the_rename_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "record.json", []
    fsync = os.fsync

    def record(handle: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{handle}")), path.exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    with atomic_write(path) as file:
        file.write(b"new")
    [(part, before), (folder, after)] = synced
    assert (part.parent, before) == (tmp_path, False)
    assert (folder, after) == (tmp_path, True)

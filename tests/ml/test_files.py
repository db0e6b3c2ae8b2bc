"""A file is replaced whole or not at all, and synced before and after the rename; so is a folder."""

import os
from pathlib import Path

import pytest

from ml.files import atomic_write, hash_bytes, hash_file, move_folder


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


def test_a_folder_appears_under_its_name_once_its_files_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, final, synced = tmp_path / "staged", tmp_path / "final", []
    staged.mkdir()
    (staged / "weights").write_bytes(b"numbers")
    fsync = os.fsync

    def record(handle: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{handle}")), final.exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    move_folder(staged, final)
    assert synced == [(staged / "weights", False), (staged, False), (tmp_path, True)]
    assert (final / "weights").read_bytes() == b"numbers"


def test_a_folder_does_not_replace_another(tmp_path: Path) -> None:
    staged, final = tmp_path / "staged", tmp_path / "final"
    for folder in (staged, final):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    with pytest.raises(OSError, match="not empty"):
        move_folder(staged, final)
    assert (staged / "name").read_text() == "staged"
    assert (final / "name").read_text() == "final"


def test_bytes_and_a_file_of_them_have_the_same_hash(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert hash_file(tmp_path / "abc") == hash_bytes(b"abc")
    assert hash_bytes(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

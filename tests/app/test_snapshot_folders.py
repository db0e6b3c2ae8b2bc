"""Folders of snapshots that several processes use at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from app.storage.snapshot_folders import MANIFEST, delete_folder, delete_path, list_snapshot_folders, locate_snapshot

ROUNDS = 30


def make_snapshot(home: Path, files: int = 60) -> Path:
    """Write a folder that looks like a snapshot."""
    folder = locate_snapshot(home, "kept")
    (folder / "files").mkdir(parents=True)
    (folder / MANIFEST).write_text("{}")
    for number in range(files):
        (folder / "files" / f"{number}.jpg").write_bytes(b"photo")
    return folder


@contextmanager
def keep_writing(folder: Path) -> Iterator[None]:
    """Write files into a folder as long as it exists, as an erasure does that had begun before."""
    begun, ended = Event(), Event()

    def write() -> None:
        number = 0
        while not ended.wait(0.0005):
            try:
                (folder / f"rows-{number}.sqlite").write_bytes(b"rows")
            except FileNotFoundError:
                break
            number += 1
            begun.set()

    thread = Thread(target=write)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_folder_can_be_deleted_by_several_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for _ in range(ROUNDS):
            folder = make_snapshot(tmp_path)
            list(pool.map(delete_folder, [folder] * 3))
            assert not folder.exists()


def test_folders_can_be_listed_while_one_is_deleted(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        for _ in range(ROUNDS):
            deletion = pool.submit(delete_folder, make_snapshot(tmp_path))
            while not deletion.done():
                list_snapshot_folders(tmp_path)
            deletion.result()
    assert list_snapshot_folders(tmp_path) == []


def test_a_folder_can_be_deleted_while_something_is_written_into_it(tmp_path: Path) -> None:
    for _ in range(ROUNDS):
        folder = make_snapshot(tmp_path)
        with keep_writing(folder):
            delete_folder(folder)
        assert not folder.exists()


def test_what_is_gone_is_deleted(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for path in (link, link, tmp_path / "nowhere"):
        delete_path(path)
        assert not path.is_symlink()


def test_a_linked_folder_is_taken_for_a_snapshot_until_all_else_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without a manifest that a link leads to is not one of the service, and left as it is."""
    folder, target = make_snapshot(tmp_path), tmp_path / "elsewhere"
    folder.rename(target)
    folder.symlink_to(target)

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            delete_folder(folder)
    delete_folder(folder)
    assert not target.exists()
    assert list_snapshot_folders(tmp_path) == []

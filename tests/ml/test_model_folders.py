"""A model's folder is written whole or not at all."""

import errno
import os
import threading
from pathlib import Path

import pytest

from ml.embedders.base import Embedder
from ml.embedders.wpca import Wpca
from ml.errors import Corrupt
from ml.files import hash_bytes
from ml.model import MANIFEST, SIGNATURE, Model, Recipe, load_model, save_model
from tests.full_disk import save_on_full_disk
from tests.rows import make_model


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    embedder = make_model("m").embedder
    with pytest.raises(OSError, match="No space left"):
        save_on_full_disk(embedder, tmp_path / "folder")


def test_a_model_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "save", save_on_full_disk)
        with pytest.raises(OSError, match="No space left"):
            save_model(make_model("m"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_reach_the_disk_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            save_model(make_model("m"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_another_process_has_written_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Embedder.save

    def save_late(embedder: Embedder, folder: Path) -> None:
        save(embedder, folder)
        monkeypatch.undo()
        save_model(make_model("m"), tmp_path)

    monkeypatch.setattr(Embedder, "save", save_late)
    other = Model("m", Recipe(), "wpca", make_model("m", seed=1).embedder)
    path = save_model(other, tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    kept = load_model(path).embedder
    assert isinstance(kept, Wpca)
    assert (kept.learned["projection"] == make_model("m").embedder.learned["projection"]).all()


@pytest.mark.parametrize("name", [MANIFEST, SIGNATURE, "embedder.safetensors"])
def test_a_pipe_in_place_of_a_file_is_damage_and_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = save_model(make_model("m"), tmp_path, sign)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    errors = list[Corrupt]()

    def load() -> None:
        with pytest.raises(Corrupt, match="is no regular file") as error:
            load_model(folder, sign)
        errors.append(error.value)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(10)
    assert errors, "it waits for the pipe"


def sign(manifest: bytes) -> str:
    return hash_bytes(manifest)

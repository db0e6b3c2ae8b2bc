"""The home of an earlier version is brought to the folder names of this one, and nothing in it is lost."""

import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import reading, writing
from app.resources import open_resources
from app.storage.home.upgrade import upgrade_home
from ml.model import save_model
from tests.rows import make_model

DETECTOR_FILE = "face_detection_yunet_2023mar.onnx"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of the earlier version: two models, the file of a detector, and photos."""
    home = tmp_path / "home"
    for folder in ("generations", "models", "blobs"):
        (home / folder).mkdir(parents=True)
    for name in ("m-one", "m-two"):
        save_model(make_model(name), home / "generations")
    (home / "models" / DETECTOR_FILE).write_bytes(b"network")
    (home / "blobs" / "photo").write_bytes(b"pixels")
    return home


def list_paths(home: Path) -> list[str]:
    return sorted(path.relative_to(home).as_posix() for path in home.glob("*/*"))


UPGRADED = ["blobs/photo", f"detectors/{DETECTOR_FILE}", "models/m-one", "models/m-two"]


def test_models_and_detectors_are_moved(home: Path) -> None:
    upgrade_home(home)
    assert list_paths(home) == UPGRADED
    assert not (home / "generations").exists()
    assert (home / "detectors" / DETECTOR_FILE).read_bytes() == b"network"


def test_a_second_upgrade_changes_nothing(home: Path) -> None:
    upgrade_home(home)
    upgrade_home(home)
    assert list_paths(home) == UPGRADED


def test_a_new_home_is_left_alone(tmp_path: Path) -> None:
    upgrade_home(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_models_of_an_earlier_home_are_served(home: Path) -> None:
    """The rows of the tables hold no path, so a model that was saved before is loaded by its id."""
    settings = Settings(home=home)
    upgrade_database(settings.database, settings.home)
    with open_resources(settings) as resources:
        assert resources.models.get("m-one").id == "m-one"
        with writing(resources.database) as session:
            resources.models.keep(session, resources.models.get("m-two"))
    with open_resources(settings) as resources, reading(resources.database) as session:
        [row] = session.execute(text("select id, manifest from models")).all()
        assert row[0] == "m-two"
        assert "generations" not in str(row[1])
        assert resources.models.get("m-two").manifest() == make_model("m-two").manifest()


@pytest.mark.parametrize("completed_renames", range(4))
def test_an_interrupted_upgrade_is_finished_by_the_next_start(
    home: Path, monkeypatch: pytest.MonkeyPatch, completed_renames: int
) -> None:
    """The process dies before one of the renames; `models/` is not empty, so each model is moved by itself."""
    (home / "models" / "m-three").mkdir()
    rename, renames = Path.rename, []

    def rename_or_die(path: Path, target: Path) -> Path:
        if len(renames) == completed_renames:
            raise KeyboardInterrupt
        renames.append(path)
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_or_die)
        if completed_renames < 3:
            with pytest.raises(KeyboardInterrupt):
                upgrade_home(home)
        else:
            upgrade_home(home)
    upgrade_home(home)
    assert list_paths(home) == sorted([*UPGRADED, "models/m-three"])
    assert not (home / "generations").exists()


def test_several_processes_upgrade_one_home(home: Path, tmp_path: Path) -> None:
    for number in range(30):
        copy = shutil.copytree(home, tmp_path / f"copy-{number}")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(upgrade_home, [copy] * 8))
        assert list_paths(copy) == UPGRADED


def test_a_model_in_both_folders_is_kept_in_both(home: Path) -> None:
    save_model(make_model("m-one"), home / "models")
    upgrade_home(home)
    assert list_paths(home) == sorted([*UPGRADED, "generations/m-one"])


def test_a_symbolic_link_to_another_disk_stays_one(home: Path, tmp_path: Path) -> None:
    (home / "generations").rename(tmp_path / "disk")
    (home / "generations").symlink_to(tmp_path / "disk")
    upgrade_home(home)
    assert (home / "models").is_symlink()
    assert list_paths(home) == UPGRADED


def test_a_mount_of_its_own_stops_the_start(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and the operator reads which path cannot be renamed."""

    def refuse(path: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, "Invalid cross-device link", str(path), None, str(target))

    with monkeypatch.context() as patch:
        (home / "models" / DETECTOR_FILE).unlink()
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(OSError, match="generations"):
            upgrade_home(home)
    assert sorted(path.name for path in (home / "generations").iterdir()) == ["m-one", "m-two"]

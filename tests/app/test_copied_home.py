"""A home is not used beside a copy of it, or beside its original, on one database."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from app.config import Settings
from app.db.servers.reach import SIGNS_FOLDER, leave_sign
from app.db.session import writing
from app.db.tables import Follower, now
from app.resources import Resources, open_resources
from app.serving import copied_home
from app.serving.copied_home import check_no_copy_of_home_serves
from app.serving.reporter import ALIVE_SECONDS
from app.startup import CannotStart
from tests.rows import GalleryWriter, make_model
from workers.worker import Worker

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def process(resources: Resources) -> str:
    """A process that serves a collection of the home."""
    GalleryWriter(resources).make(make_model("m-served"))
    name = "other-host:1:0123abcd"  # this process leaves signs in each home that it opens
    seen = {"collection_id": "staff", "task": "identity", "model_id": "m-served", "change": 1, "vectors": 0}
    with writing(resources.database) as session:
        session.add(Follower(process=name, **seen))
    leave_sign(resources.settings.home / SIGNS_FOLDER / name.replace(":", "-"))
    return name


def copy_home(resources: Resources, to: Path) -> Settings:
    shutil.copytree(resources.settings.home, to)
    return Settings(home=to, database_url=resources.settings.database_url)


def test_a_copy_does_not_start_while_its_original_serves(
    resources: Resources, process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_home, "MAX_SIGN_SECONDS", 1.0)
    copy = copy_home(resources, tmp_path / "copy")
    check_no_copy_of_home_serves(resources.database, resources.settings.home)
    with open_resources(copy) as opened:
        with pytest.raises(CannotStart, match=process):
            Worker(opened, "default").check_database()
        shutil.rmtree(copy.home / SIGNS_FOLDER)
        with pytest.raises(CannotStart, match=r"not .*/copy, but a copy of it or its original"):
            check_no_copy_of_home_serves(opened.database, copy.home)


def test_a_home_whose_file_system_numbers_files_anew_is_known_by_the_times_of_its_signs(
    resources: Resources, process: str, tmp_path: Path
) -> None:
    seen_elsewhere = copy_home(resources, tmp_path / "elsewhere").home
    signs = list((seen_elsewhere / SIGNS_FOLDER).iterdir())
    next_signs = threading.Timer(2 * copied_home.POLLING_SECONDS, lambda: [os.utime(sign) for sign in signs])
    next_signs.start()
    check_no_copy_of_home_serves(resources.database, seen_elsewhere)
    next_signs.join()


def test_signs_of_an_earlier_version_say_no_inode(resources: Resources, process: str, tmp_path: Path) -> None:
    copy = copy_home(resources, tmp_path / "copy")
    for sign in (copy.home / SIGNS_FOLDER).iterdir():
        sign.write_text("")
    check_no_copy_of_home_serves(resources.database, copy.home)


def test_a_process_that_has_ended_keeps_no_copy_from_starting(
    resources: Resources, process: str, tmp_path: Path
) -> None:
    copy = copy_home(resources, tmp_path / "copy")
    with writing(resources.database) as session:
        session.get_one(Follower, (process, "staff", "identity")).seen_at = now() - ALIVE_SECONDS - 1.0
    check_no_copy_of_home_serves(resources.database, copy.home)

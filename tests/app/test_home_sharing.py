"""A home is not used beside a copy of it on one database, nor with two databases."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from app.config import Settings
from app.db.servers.reach import SIGNS_FOLDER, describe_database, leave_sign
from app.db.session import reading, writing
from app.db.tables import Follower, now
from app.resources import Resources, open_resources
from app.serving import home_sharing
from app.serving.home_sharing import check_other_services
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
    leave_sign(resources.settings.home / SIGNS_FOLDER / name.replace(":", "-"), "")
    return name


def copy_home(resources: Resources, to: Path) -> Settings:
    shutil.copytree(resources.settings.home, to)
    return Settings(home=to, database_url=resources.settings.database_url)


def test_a_copy_does_not_start_while_its_original_serves(
    resources: Resources, process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_sharing, "MAX_SIGN_SECONDS", 1.0)
    copy = copy_home(resources, tmp_path / "copy")
    check_other_services(resources.database, resources.settings.home)
    with open_resources(copy) as opened:
        with pytest.raises(CannotStart, match=process):
            Worker(opened, "default").check_database()
        for sign in (copy.home / SIGNS_FOLDER).glob("other-host-*"):
            sign.unlink()
        with pytest.raises(CannotStart, match=r"not .*/copy, but a copy of it or its original"):
            check_other_services(opened.database, copy.home)


def test_a_home_whose_file_system_numbers_files_anew_is_known_by_the_times_of_its_signs(
    resources: Resources, process: str, tmp_path: Path
) -> None:
    seen_elsewhere = copy_home(resources, tmp_path / "elsewhere").home
    signs = list((seen_elsewhere / SIGNS_FOLDER).iterdir())
    next_signs = threading.Timer(2 * home_sharing.POLLING_SECONDS, lambda: [os.utime(sign) for sign in signs])
    next_signs.start()
    check_other_services(resources.database, seen_elsewhere)
    next_signs.join()


def test_signs_of_an_earlier_version_say_no_inode(resources: Resources, process: str, tmp_path: Path) -> None:
    copy = copy_home(resources, tmp_path / "copy")
    for sign in (copy.home / SIGNS_FOLDER).iterdir():
        sign.write_text("")
    check_other_services(resources.database, copy.home)


def test_a_process_that_has_ended_keeps_no_copy_from_starting(
    resources: Resources, process: str, tmp_path: Path
) -> None:
    copy = copy_home(resources, tmp_path / "copy")
    with writing(resources.database) as session:
        session.get_one(Follower, (process, "staff", "identity")).seen_at = now() - ALIVE_SECONDS - 1.0
    check_other_services(resources.database, copy.home)


def test_where_no_sign_can_be_left_none_is_missed(
    resources: Resources, process: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = resources.settings.home / SIGNS_FOLDER
    shutil.rmtree(folder)
    folder.write_text("")
    check_other_services(resources.database, resources.settings.home)
    assert "no_signs_compared" in caplog.text


def test_a_worker_that_has_run_waits_while_the_processes_go_over_to_another_database(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    system, _, number = read_own_database(resources).partition("/")
    worker = Worker(resources, "default")
    worker.check_database()
    worker._knows_database = False  # as after an outage
    monkeypatch.setattr(worker.stopping, "wait", lambda _: worker.stopping.set())
    monkeypatch.setattr(worker, "step", lambda: pytest.fail("it looked for a job"))
    with OtherService(resources.settings.home, f"{system}/{int(number) + 1}"):
        worker.run()
    assert "with another database" in caplog.text


class OtherService:
    """A process of this home that leaves signs of the database that it reaches."""

    def __init__(self, home: Path, database: str) -> None:
        self.sign, self.database = home / SIGNS_FOLDER / "other-host-2-0123abcd", database
        self.written: str | None = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self) -> "OtherService":
        self.leave()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def leave(self) -> None:
        leave_sign(self.sign, self.database if self.database != self.written else None)
        self.written = self.database

    def run(self) -> None:
        while not self.ended.wait(home_sharing.POLLING_SECONDS):
            self.leave()


def read_own_database(resources: Resources) -> str:
    with reading(resources.database) as session:
        return describe_database(session.connection())


def test_a_home_is_not_used_with_another_database_while_a_service_runs(resources: Resources) -> None:
    system, _, number = read_own_database(resources).partition("/")
    other = OtherService(resources.settings.home, f"{system}/{int(number) + 1}")
    with other, pytest.raises(CannotStart, match="and with another database"):
        Worker(resources, "default").check_database()
    check_other_services(resources.database, resources.settings.home)  # which has ended


def test_a_process_that_goes_over_to_this_database_meanwhile_is_none_of_another_one(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = read_own_database(resources)
    with OtherService(resources.settings.home, "1/1") as other:
        wait_for_next = home_sharing._has_next_signs

        def go_over(signs: list[Path]) -> bool:
            assert signs == [other.sign]
            other.database = own
            return wait_for_next(signs)

        monkeypatch.setattr(home_sharing, "_has_next_signs", go_over)
        check_other_services(resources.database, resources.settings.home)

"""A photo that was written for a face, but has no row since its process was killed, is gone when a receipt is final."""

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.enrolment import store
from app.errors import Busy
from app.storage.blob_store import Blobs
from app.storage.unfinished_photos import UNFINISHED_FOLDER, UnfinishedPhotos
from tests.flows.test_training import STRONG
from tests.gallery import crops
from tests.service import Service
from tests.workers.test_erasing import BASE, wait_until_final

MAX_SECONDS = 30.0


def enrol(service: Service, subject: str, photo: bytes) -> Any:
    data = {"subject": subject, "aligned": "true"}
    return service.client.post(f"{BASE}/faces", files={"file": photo}, data=data)


def erase(service: Service, subject: str) -> None:
    erased = service.client.delete(f"{BASE}/subjects/{subject}").raise_for_status().json()
    assert wait_until_final(service, erased["erasure"])["state"] == "final"


@pytest.fixture
def photos(service: Service) -> list[bytes]:
    """Two photos; the first is enrolled in the collection "staff"."""
    service.client.put(BASE)
    drawn = [crops(3, 3000 + number, STRONG)["grey"] for number in range(2)]
    assert enrol(service, "anna", drawn[0]).status_code == 201
    return drawn


def test_a_photo_of_a_killed_enrolment_is_gone_when_the_receipt_is_final(service: Service, photos: list[bytes]) -> None:
    resources, name = service.resources, Blobs.photo(Blobs.digest(photos[1]))
    killed = UnfinishedPhotos(resources.settings.home).note("staff", [name])
    killed.__enter__()
    resources.blobs.put("staff", [(name, photos[1])])
    erase(service, "anna")
    assert not resources.blobs.has("staff", [name])


def test_an_enrolment_that_runs_beside_an_erasure_keeps_its_photo(
    service: Service, photos: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, writing = Blobs.photo(Blobs.digest(photos[1])), store.writing
    is_written, may_go_on, answers = threading.Event(), threading.Event(), list[Any]()

    @contextmanager
    def wait_and_write(*args: Any, **options: Any) -> Iterator[Any]:
        is_written.set()
        may_go_on.wait(MAX_SECONDS)
        with writing(*args, **options) as session:
            yield session

    monkeypatch.setattr(store, "writing", wait_and_write)
    enrolment = threading.Thread(target=lambda: answers.append(enrol(service, "bruno", photos[1])))
    enrolment.start()
    assert is_written.wait(MAX_SECONDS)
    assert service.resources.blobs.has("staff", [name])
    erase(service, "anna")
    assert not service.resources.blobs.has("staff", [name]), "it might be one that was killed"
    may_go_on.set()
    enrolment.join(MAX_SECONDS)
    assert [answer.status_code for answer in answers] == [201]
    [face] = (f["face_id"] for f in service.client.get(f"{BASE}/faces", params={"subject": "bruno"}).json()["faces"])
    assert service.client.get(f"{BASE}/faces/{face}/image").content == photos[1]


def test_enrolments_that_have_ended_leave_nothing(tmp_path: Path) -> None:
    one, other = UnfinishedPhotos(tmp_path), UnfinishedPhotos(tmp_path)
    with one.note("a", ["x"]):
        with one.note("b", ["y", "z"]), other.note("c", []):
            assert sorted(other.read()) == [("a", ["x"]), ("b", ["y", "z"]), ("c", [])]
        assert ("a", ["x"]) in other.read()
    assert list(one.read()) == []
    assert not list((tmp_path / UNFINISHED_FOLDER).iterdir())


def test_a_full_disk_is_named_and_a_note_that_cannot_be_removed_loses_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    one = UnfinishedPhotos(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail)
        with pytest.raises(Busy, match="the disk is full"), one.note("a", ["x"]):
            raise AssertionError("it must not begin")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        with one.note("b", ["y"]):
            pass
    with one.note("c", []):
        pass
    assert list(one.read()) == []


def test_what_did_not_end_well_is_found_until_it_is_old(tmp_path: Path) -> None:
    one = UnfinishedPhotos(tmp_path)
    with pytest.raises(OSError, match="full"), one.note("a", ["x"]):
        raise OSError("full")
    with one.note("b", ["y"]):
        pass
    assert list(UnfinishedPhotos(tmp_path).read()) == [("a", ["x"])]
    [path] = (tmp_path / UNFINISHED_FOLDER).iterdir()
    path.write_text(path.read_text() + '["b", ["')
    assert list(one.read()) == [("a", ["x"])], "the last line was cut"
    one.remove_old(60.0)
    assert list(one.read()) == [("a", ["x"])]
    time.sleep(0.01)
    one.remove_old(0.0)
    assert list(one.read()) == []

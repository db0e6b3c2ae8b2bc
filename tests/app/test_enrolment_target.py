"""A person or a collection that is deleted while a photo is analysed is not written again."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from app.db.session import writing
from app.db.tables import Key, now
from app.faces import service as faces_service
from tests.app.test_faces import BASE, enrol, picture
from tests.databases import remove_test_data
from tests.service import Service
from tests.workers.test_erasing import wait_until_final

UNTIL_ERASED_SECONDS = 30.0


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    yield lasting_service
    remove_test_data(lasting_service.resources)


@pytest.fixture
def enrol_while(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Callable[[], object], str], httpx.Response]:
    """Enrol a photo of `ada`; act: what happens while it is analysed, or while its rows are written."""

    def enrol_photo(function: str, act: Callable[[], object], subject: str = "ada") -> httpx.Response:
        original = getattr(faces_service, function)

        def acting(*arguments: Any) -> Any:
            monkeypatch.setattr(faces_service, function, original)
            act()
            return original(*arguments)

        monkeypatch.setattr(faces_service, function, acting)
        return enrol(service.client, picture(9), subject=subject)

    return enrol_photo


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
@pytest.mark.parametrize("function", ["prepare_photos", "enrol_photos"])
@pytest.mark.parametrize("what", ["/subjects/ada", ""])
@pytest.mark.parametrize("made_again", [False, True])
def test_what_is_erased_during_an_enrolment_is_not_written_again(
    service: Service, enrol_while: Callable[..., httpx.Response], function: str, what: str, made_again: bool
) -> None:
    client = service.client
    client.put(BASE).raise_for_status()
    enrol(client, picture(1), subject="ada").raise_for_status()
    client.put(f"{BASE}/subjects/bob").raise_for_status()

    def erase() -> None:
        gone = client.delete(f"{BASE}{what}").raise_for_status()
        if made_again:
            client.put(f"{BASE}{what}").raise_for_status()
        wait_until_final(service, gone.headers.get("X-Erasure") or gone.json()["erasure"])

    refused = enrol_while(function, erase)
    assert refused.status_code == (409 if what or made_again else 404), refused.text
    deadline = time.monotonic() + UNTIL_ERASED_SECONDS
    while list(service.resources.blobs.names("staff")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(service.resources.blobs.names("staff")) == []
    client.put(BASE).raise_for_status()
    assert client.get(f"{BASE}/faces").json()["faces"] == []


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
def test_an_enrolment_goes_on_while_others_of_the_same_person_are_written(
    service: Service, enrol_while: Callable[..., httpx.Response]
) -> None:
    service.client.put(BASE).raise_for_status()
    made = enrol_while("prepare_photos", lambda: enrol(service.client, picture(1), subject="ada").raise_for_status())
    assert made.status_code == 201


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
@pytest.mark.parametrize("function", ["prepare_photos", "enrol_photos"])
def test_a_photo_whose_key_is_revoked_while_it_is_analysed_is_not_enrolled(
    service: Service, enrol_while: Callable[..., httpx.Response], monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    client = service.client
    client.put(BASE).raise_for_status()
    made = client.post("/v1/keys", json={"role": "operator"}).raise_for_status().json()

    def revoke() -> None:
        with writing(service.resources.database) as session:
            session.execute(update(Key).where(Key.id == made["id"]).values(revoked_at=now()))

    with monkeypatch.context() as patched:
        patched.setitem(client.headers, "authorization", f"Bearer {made['key']}")
        assert enrol_while(function, revoke).status_code == 401
    assert client.get(f"{BASE}/faces").raise_for_status().json()["faces"] == []
    folder = service.resources.blobs.root
    assert not [file for file in folder.rglob("*") if file.is_file() and BASE.rsplit("/")[-1] in file.parts]

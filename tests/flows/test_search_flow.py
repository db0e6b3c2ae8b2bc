"""The way from a photo to an answer, over HTTP and without test doubles."""

from typing import Any

from app.config import Settings
from tests.gallery import draw_photo
from tests.service import Service, run_service

BASE = "/v1/collections/staff"
PEOPLE = 5


def photo(who: int, shot: int) -> bytes:
    return draw_photo(who, shot, strength=0.4)


def enrol(service: Service) -> dict[tuple[int, int], str]:
    assert service.client.put(BASE).status_code == 201
    faces = {}
    for who in range(PEOPLE):
        for shot in range(2):
            files, form = {"file": photo(who, shot)}, {"subject": f"p{who}", "metadata": f'{{"shot": {shot}}}'}
            answer = service.client.post(f"{BASE}/faces", files=files, data=form)
            assert answer.status_code == 201, answer.text
            faces[who, shot] = answer.json()["face_records"][0]["face_id"]
    return faces


def search(service: Service, who: int, shot: int, **params: Any) -> list[dict[str, Any]]:
    """The matches of the largest face, each face by itself, once the index holds what was written."""
    params = {"group_by": "face"} | params
    change = service.client.get(BASE).json()["change"]
    for _ in range(200):
        answer = service.client.post(f"{BASE}/search", files={"file": photo(who, shot)}, params=params)
        assert answer.status_code == 200, answer.text
        if answer.json()["index_generation"] == f"1.{change}":
            return list(answer.json()["faces"][0]["matches"])
    raise AssertionError(f"the index did not come to change {change}: {answer.text}")


def test_an_enrolled_photo_is_found_until_it_is_deleted(service: Service) -> None:
    faces = enrol(service)
    for who in range(PEOPLE):
        nearest = search(service, who, 1, limit=1)[0]
        assert (nearest["face_id"], nearest["subject"]["id"]) == (faces[who, 1], f"p{who}")
        assert nearest["distance"] < 1e-3
    assert search(service, 2, 9, limit=1)[0]["subject"]["id"] == "p2", "another photo of somebody known"
    filtered = search(service, 3, 0, filter='{"metadata": {"shot": 1}}')
    assert {m["face_id"] for m in filtered} == {faces[who, 1] for who in range(PEOPLE)}
    by_face = service.client.post(f"{BASE}/faces/{faces[4, 0]}/search", params={"limit": 1}).json()
    assert by_face["faces"][0]["matches"][0]["face_id"] == faces[4, 1]
    assert service.client.delete(f"{BASE}/subjects/p1").status_code in (200, 202, 204)
    left = {m["face_id"] for m in search(service, 1, 0, limit=100)}
    assert left == {face for (who, _), face in faces.items() if who != 1}
    assert service.client.get("/readyz").status_code == 200


def test_a_restarted_service_gives_the_same_answers(settings: Settings) -> None:
    with run_service(settings) as service:
        enrol(service)
        before = search(service, 0, 5, limit=10)
    with run_service(settings) as service:
        assert search(service, 0, 5, limit=10) == before
        assert service.client.get("/readyz").json()["reasons"] == []

"""Enrolling one face of a photo by its bounding box."""

import base64
import json
from typing import Any

import httpx
import pytest
from PIL import Image as Pillow

from ml.synthetic_faces import draw, person
from tests.app.test_faces import BASE, encoded, picture, staff
from tests.service import Service

__all__ = ["staff"]

PEOPLE = (1, 2, 5, 7)


@pytest.fixture
def database_url() -> str:
    """SQLite only: the choice is made before any row is written."""
    return ""


def group_photo(people: tuple[int, ...] = PEOPLE, shot: int = 1) -> bytes:
    """Draw several people side by side; the first is the largest."""
    faces = [Pillow.fromarray(draw(person(who), shot, 250 - 20 * n)) for n, who in enumerate(people)]
    photo = Pillow.new("RGB", (sum(f.width for f in faces), 250), (90, 90, 90))
    left = 0
    for face in faces:
        photo.paste(face, (left, 0))
        left += face.width
    return encoded(photo)


def enrol_at(client: httpx.Client, photo: bytes, box: Any, **fields: Any) -> httpx.Response:
    return client.post(f"{BASE}/faces", files={"file": photo}, data={"bounding_box": json.dumps(box), **fields})


def boxes_of(client: httpx.Client, photo: bytes) -> list[dict[str, float]]:
    answer = client.post(f"{BASE}/search", files={"file": photo}, params={"face_selection": "all"})
    assert answer.status_code == 200, answer.text
    return [face["bounding_box"] for face in answer.json()["faces"]]


def test_only_the_face_at_the_bounding_box_is_enrolled(service: Service, staff: httpx.Client) -> None:
    photo = group_photo()
    boxes = boxes_of(staff, photo)
    assert len(boxes) == len(PEOPLE)
    answer = enrol_at(staff, photo, boxes[3], subject="dora")
    assert answer.status_code == 201, answer.text
    [face] = answer.json()["face_records"]
    assert face["bounding_box"] == boxes[3]
    assert face["subject"]["id"] == "dora"
    assert staff.get(BASE).json()["face_count"] == 1
    assert enrol_at(staff, photo, boxes[3], subject="dora").status_code == 200
    second = enrol_at(staff, photo, boxes[1], subject="bea")
    assert (second.status_code, second.json()["face_records"][0]["bounding_box"]) == (201, boxes[1])
    assert staff.get(BASE).json()["subject_count"] == 2


def test_enrolling_a_face_again_under_another_subject_is_refused_with_its_face_id(staff: httpx.Client) -> None:
    photo = group_photo()
    boxes = boxes_of(staff, photo)
    [face] = enrol_at(staff, photo, boxes[2], subject="cleo").json()["face_records"]
    refused = enrol_at(staff, photo, boxes[2])
    assert (refused.status_code, refused.json()["code"]) == (409, "DuplicateWithOtherSubject")
    assert refused.json()["face_id"] == face["face_id"]
    assert enrol_at(staff, photo, boxes[0]).status_code == 201, "the other faces of the photo are free"


def test_a_bounding_box_without_a_face_enrols_nothing(staff: httpx.Client) -> None:
    photo = group_photo()
    nowhere = {"x": 5.0, "y": 5.0, "width": 12.0, "height": 12.0}
    answer = enrol_at(staff, photo, nowhere, subject="ada")
    assert (answer.status_code, answer.json()["face_records"]) == (200, [])
    assert answer.json()["unindexed_faces"] == [{"bounding_box": nowhere, "reasons": ["NO_FACE"]}]
    assert staff.get(BASE).json()["subject_count"] == 0


def test_a_base64_photo_accepts_a_bounding_box(staff: httpx.Client) -> None:
    photo = group_photo((1, 2))
    box = boxes_of(staff, photo)[1]
    answer = staff.post(f"{BASE}/faces", json={"image": base64.b64encode(photo).decode(), "bounding_box": box})
    assert (answer.status_code, answer.json()["face_records"][0]["bounding_box"]) == (201, box)


def test_an_invalid_bounding_box_is_refused(staff: httpx.Client) -> None:
    good = {"x": 0.0, "y": 0.0, "width": 50.0, "height": 50.0}
    for wrong in (good | {"width": 0}, good | {"height": -3}, {"x": 1}, [1, 2, 3, 4], "box", good | {"angle": 3}):
        answer = enrol_at(staff, picture(), wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidParameter"), wrong
        assert "bounding_box" in answer.json()["detail"]
    both = enrol_at(staff, picture(), good, aligned=True)
    assert both.status_code == 422
    assert "leave out bounding_box" in both.json()["detail"]

"""Faces over HTTP: enrol, list, change and delete."""

import base64
import io
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest
from PIL import Image as Pillow
from sqlalchemy import select

from app.db.session import reading
from app.db.tables import Embedding, Face
from ml.synthetic_faces import draw, person
from tests.service import Service

NAME = "staff"
BASE = f"/v1/collections/{NAME}"
"""The fixture `service` gives each test a collection of its own."""


def picture(seed: int = 0, size: tuple[int, int] = (100, 170)) -> bytes:
    """A textured picture that passes for an aligned face."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(40, 215, (size[1] // 5, size[0] // 5, 3), dtype=np.uint8)
    return encoded(Pillow.fromarray(pixels).resize(size, Pillow.Resampling.BICUBIC))


def encoded(image: Pillow.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def service(lasting_service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """The service of the module, for a collection of this test alone."""
    name = f"staff-{uuid4().hex[:8]}"
    monkeypatch.setattr(f"{__name__}.NAME", name)
    monkeypatch.setattr(f"{__name__}.BASE", f"/v1/collections/{name}")
    return lasting_service


@pytest.fixture
def staff(service: Service) -> httpx.Client:
    """A client of a service that has the collection of this test, which is empty."""
    service.client.put(BASE).raise_for_status()
    return service.client


def enrol(client: httpx.Client, photo: bytes, aligned: bool = True, **fields: Any) -> httpx.Response:
    return client.post(f"{BASE}/faces", files={"file": photo}, data={"aligned": aligned, **fields})


def test_the_same_photo_is_enrolled_once(staff: httpx.Client) -> None:
    first = enrol(staff, picture(), subject="ada", metadata=json.dumps({"age": 36}), external_image_id="a.png")
    assert first.status_code == 201, first.text
    [face] = first.json()["face_records"]
    assert face["subject"] == {"id": "ada", "external_id": "ada"}
    assert (face["role"], face["metadata"], face["external_image_id"]) == ("gallery", {"age": 36}, "a.png")
    assert len(face["landmarks"]) == 5
    assert face["bounding_box"] == {"x": 0, "y": 0, "width": 100, "height": 170}

    again = enrol(staff, picture(), subject="ada")
    assert again.status_code == 200
    assert again.json()["face_records"] == [face]

    shown = staff.get(BASE).json()
    assert (shown["face_count"], shown["subject_count"], shown["change"]) == (1, 1, 1)


def test_the_same_photo_under_another_subject_or_role_is_refused(staff: httpx.Client) -> None:
    enrol(staff, picture(), subject="ada").raise_for_status()
    others: list[dict[str, str]] = [{"subject": "bob"}, {"subject": "ada", "role": "distractor"}, {}]
    for other in others:
        answer = enrol(staff, picture(), **other)
        assert (answer.status_code, answer.json()["code"]) == (409, "DuplicateWithOtherSubject")
    assert staff.get(f"{BASE}/subjects").json()["subjects"][0]["id"] == "ada"


def test_simultaneous_equal_uploads_create_one_face(staff: httpx.Client) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: enrol(staff, picture(), subject="ada"), range(6)))
    assert sorted(a.status_code for a in answers) == [200] * 5 + [201]
    assert len({a.json()["face_records"][0]["face_id"] for a in answers}) == 1
    assert len(staff.get(f"{BASE}/faces").json()["faces"]) == 1


def test_every_face_has_an_embedding_for_the_champion(service: Service, staff: httpx.Client) -> None:
    for seed in range(3):
        enrol(staff, picture(seed)).raise_for_status()
    with reading(service.resources.database) as session:
        here = select(Embedding.vector).join(Face, Face.pk == Embedding.face_pk).where(Face.collection_id == NAME)
        vectors = session.scalars(here).all()
        assert len(vectors) == 3
        vector = vectors[0]
        assert len(vector) == 4 * 9860
        assert np.isfinite(np.frombuffer(vector, "<f4")).all()


def test_a_synthetic_face_is_detected_and_cropped(staff: httpx.Client) -> None:
    image = draw(person(1), 1)
    answer = enrol(staff, encoded(Pillow.fromarray(image)), aligned=False, subject="drawn")
    [face] = answer.json()["face_records"]
    crop = staff.get(f"{BASE}/faces/{face['face_id']}/crop")
    assert (crop.headers["content-type"], crop.headers["cache-control"]) == ("image/png", "no-store")
    assert Pillow.open(io.BytesIO(crop.content)).size == (112, 112)
    grey = staff.get(f"{BASE}/faces/{face['face_id']}/crop", params={"kind": "grey"})
    assert Pillow.open(io.BytesIO(grey.content)).size == (100, 170)
    photo = staff.get(f"{BASE}/faces/{face['face_id']}/image")
    assert (photo.headers["content-type"], photo.content) == ("image/png", encoded(Pillow.fromarray(image)))


def test_the_largest_of_several_faces_is_assigned_to_the_subject(staff: httpx.Client) -> None:
    near, far = (draw(person(n), n) for n in (1, 2))
    far = np.asarray(Pillow.fromarray(far).resize((far.shape[1] // 2, far.shape[0] // 2)))
    together = np.full((near.shape[0], near.shape[1] + far.shape[1], 3), 90, np.uint8)
    together[:, : near.shape[1]], together[: far.shape[0], near.shape[1] :] = near, far
    photo = encoded(Pillow.fromarray(together))

    one = enrol(staff, photo, aligned=False, subject="ada").json()
    assert [f["subject"]["id"] for f in one["face_records"]] == ["ada"]
    assert [u["reasons"] for u in one["unindexed_faces"]] == [["EXCEEDS_MAX_FACES"]]

    both = staff.post(f"{BASE}/faces", params={"max_faces": 2}, files={"file": photo}, data={"subject": "ada"})
    assert both.status_code == 201
    assert [f["subject"] and f["subject"]["id"] for f in both.json()["face_records"]] == ["ada", None]
    assert staff.get(BASE).json()["face_count"] == 2


def test_a_damaged_photo_and_a_damaged_crop_are_not_served(service: Service) -> None:
    service.client.put(BASE).raise_for_status()
    enrolled = enrol(service.client, picture(0)).json()
    face = f"{BASE}/faces/{enrolled['face_records'][0]['face_id']}"
    for path in [p for p in service.resources.blobs.root.glob(f"*{NAME}/**/*") if p.is_file()]:
        path.write_bytes(path.read_bytes()[:-30])
    for part in ("image", "crop"):
        answer = service.client.get(f"{face}/{part}")
        assert (answer.status_code, answer.json()["code"]) == (500, "StoredFileDamaged")
    assert 'likeness_damaged_files_total{kind="photo"}' in service.client.get("/metrics").text
    assert enrol(service.client, picture(0)).status_code == 200
    assert service.client.get(f"{face}/image").status_code == 200, "the photo was written again"


def test_a_photo_without_a_face_is_refused(staff: httpx.Client) -> None:
    answer = enrol(staff, encoded(Pillow.new("RGB", (300, 300), "grey")), aligned=False, subject="ada")
    assert answer.status_code == 200
    assert answer.json() == {"face_records": [], "unindexed_faces": [{"bounding_box": None, "reasons": ["NO_FACE"]}]}
    assert staff.get(BASE).json()["subject_count"] == 0


def test_photos_of_every_colour_mode_are_accepted(staff: httpx.Client) -> None:
    grey = Pillow.open(io.BytesIO(picture())).convert("L")
    deep = Pillow.fromarray(np.asarray(grey).astype(np.uint16) * 256)
    for image in [deep, *(grey.convert(mode) for mode in ("L", "LA", "RGBA", "P", "1"))]:
        assert enrol(staff, encoded(image)).status_code == 201, image.mode


def test_cmyk_and_rotated_photos_are_accepted(staff: httpx.Client) -> None:
    image = Pillow.open(io.BytesIO(picture()))
    assert enrol(staff, encoded(image.convert("CMYK"), "JPEG")).status_code == 201
    turned = Pillow.Exif()
    turned[0x0112] = 6
    lying = image.convert("RGB").transpose(Pillow.Transpose.ROTATE_90)
    [face] = enrol(staff, encoded(lying, "JPEG", exif=turned)).json()["face_records"]
    assert (face["bounding_box"]["width"], face["bounding_box"]["height"]) == (100, 170)


def broken() -> dict[str, bytes]:
    image = Pillow.open(io.BytesIO(picture()))
    return {
        "text": b"this is no picture",
        "nothing": b"",
        "cut short": encoded(image)[:-200],
        "gif": encoded(image.convert("P"), "GIF"),
        "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    }


def test_a_file_that_is_not_a_photo_is_refused(staff: httpx.Client) -> None:
    for what, data in broken().items():
        answer = enrol(staff, data)
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidImageFormat"), what
        assert answer.headers["content-type"] == "application/problem+json"
    bomb = enrol(staff, encoded(Pillow.new("1", (16_000, 16_000))))
    assert (bomb.status_code, bomb.json()["code"]) == (422, "ImageTooLarge")
    assert "50,000,000" in bomb.json()["detail"]
    assert staff.get(BASE).json()["face_count"] == 0


def test_invalid_form_fields_are_refused(staff: httpx.Client) -> None:
    for fields in [
        {"role": "hero"},
        {"subject": "a/b"},
        {"subject": ".."},
        {"subject": "x" * 256},
        {"subject": "zero\0byte"},
        {"metadata": "[1]"},
        {"metadata": '{"a": NaN}'},
        {"metadata": "{"},
        {"metadata": '{"a": "\\ud800"}'},
        {"metadata": json.dumps({"a": "x" * 70_000})},
        {"external_image_id": "x" * 1025},
        {"consent": "false"},  # in JSON it was refused, in a form ignored
        {"subjekt": "ada"},
    ]:
        assert enrol(staff, picture(), **fields).status_code == 422, fields
    assert staff.get(BASE).json()["face_count"] == 0


def test_a_form_with_a_field_twice_is_refused(staff: httpx.Client) -> None:
    photo, other = ("file", ("a.png", picture())), ("file", ("b.png", picture(1)))
    subject, role = ("subject", (None, "ada")), ("role", (None, "gallery"))
    for parts, name in (([photo, other], "file"), ([photo, subject, ("subject", (None, "bob"))], "subject")):
        answer = staff.post(f"{BASE}/faces", files=parts)
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidParameter"), name
        assert repr(name) in answer.json()["detail"]
    assert staff.post(f"{BASE}/faces", files=[photo, subject, role]).status_code < 300


def by_json(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post(f"{BASE}/faces", json={"aligned": True} | body)


def test_a_base64_photo_and_an_uploaded_photo_are_enrolled_alike(staff: httpx.Client) -> None:
    fields = {"subject": "ada", "role": "gallery", "external_image_id": "a.png"}
    image = base64.encodebytes(picture()).decode()
    first = by_json(staff, image=image, metadata={"age": 36}, **fields)
    assert first.status_code == 201, first.text
    [face] = first.json()["face_records"]
    assert (face["subject"]["id"], face["metadata"], face["external_image_id"]) == ("ada", {"age": 36}, "a.png")
    again = enrol(staff, picture(), metadata='{"age": 36}', **fields)
    assert (again.status_code, again.json()["face_records"]) == (200, [face])
    assert staff.get(f"{BASE}/faces/{face['face_id']}/image").content == picture()


def test_an_invalid_json_body_is_refused_with_the_field(staff: httpx.Client) -> None:
    image = base64.b64encode(picture()).decode()
    for wrong in (image[:-1], "not base64!", f"data:image/png;base64,{image}", "\u00e9"):
        answer = by_json(staff, image=wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidImageFormat"), wrong[:30]
        assert "is not base64" in answer.json()["detail"]
    for body in (
        {},
        {"image": 5},
        {"image": image, "role": "hero"},
        {"image": image, "metadata": [1]},
        {"file": image},
    ):
        answer = by_json(staff, **body)
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidParameter"), str(body)[:50]
    for bare in (b"{", b"[]", b"", b"\xff"):
        answer = staff.post(f"{BASE}/faces", content=bare, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, bare
    text = base64.b64encode(b"this is no picture").decode()
    assert by_json(staff, image=text).json()["code"] == "InvalidImageFormat"
    assert staff.get(BASE).json()["face_count"] == 0


def test_a_json_body_over_the_limit_is_refused_before_it_is_parsed(service: Service, staff: httpx.Client) -> None:
    limit = service.resources.settings.max_image_bytes
    over = staff.post(f"{BASE}/faces", content=b"{" * 3 * limit, headers={"Content-Type": "application/json"})
    assert (over.status_code, over.json()["code"]) == (413, "RequestTooLarge")
    large = by_json(staff, image=base64.b64encode(bytes(limit + 1)).decode())
    assert (large.status_code, large.json()["code"]) == (422, "ImageTooLarge")


def test_a_body_over_the_limit_is_refused_before_it_is_read(service: Service) -> None:
    key = service.key("operator")["Authorization"]
    address = httpx.URL(service.url)
    with socket.create_connection((address.host, address.port or 80), timeout=10) as wire:
        head = [f"POST {BASE}/faces HTTP/1.1", "Host: x", f"Authorization: {key}", f"Content-Length: {10**9}", "", ""]
        wire.sendall("\r\n".join(head).encode())
        assert b" 413 " in wire.recv(4096).splitlines()[0]


def test_the_key_is_checked_before_the_body_is_read(service: Service, staff: httpx.Client) -> None:
    with httpx.Client(base_url=service.url) as stranger:
        assert enrol(stranger, picture()).status_code == 401
        stranger.headers.update(service.key("reader"))
        assert enrol(stranger, picture()).status_code == 403
        stranger.headers.update(service.key("operator", "other"))
        assert enrol(stranger, picture()).status_code == 404
        stranger.headers.update(service.key("operator", NAME))
        assert enrol(stranger, picture()).status_code == 201


def test_an_unknown_collection_or_face_is_404(staff: httpx.Client) -> None:
    assert staff.post("/v1/collections/none/faces", files={"file": picture()}).status_code == 404
    for path in ("faces/none", "faces/none/crop", "faces/none/image", "subjects/none", "faces?subject=none"):
        answer = staff.get(f"{BASE}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "ResourceNotFound")


def test_faces_are_listed_by_page_subject_and_role(staff: httpx.Client) -> None:
    for seed in range(5):
        enrol(staff, picture(seed), subject=f"s{seed % 2}")
    enrol(staff, picture(9), role="distractor")
    seen: list[str] = []
    token: str | None = None
    while True:
        page = staff.get(f"{BASE}/faces", params={"limit": 4} | ({"next_token": token} if token else {})).json()
        seen += [f["face_id"] for f in page["faces"]]
        token = page.get("next_token")
        if token is None:
            break
    assert len(seen) == len(set(seen)) == 6
    assert len(staff.get(f"{BASE}/faces", params={"subject": "s0"}).json()["faces"]) == 3
    assert len(staff.get(f"{BASE}/faces", params={"role": "distractor"}).json()["faces"]) == 1
    assert len(staff.get(f"{BASE}/faces?subject=&role=").json()["faces"]) == 6
    assert staff.get(f"{BASE}/faces", params={"role": "hero"}).status_code == 422
    assert staff.get(f"{BASE}/faces", params={"next_token": "nonsense"}).status_code == 422


def test_faces_can_be_listed_newest_first(staff: httpx.Client) -> None:
    for seed in range(5):
        enrol(staff, picture(seed), subject=f"s{seed % 2}")
    oldest = [f["face_id"] for f in staff.get(f"{BASE}/faces").json()["faces"]]
    seen: list[str] = []
    params: dict[str, Any] = {"order": "newest", "limit": 2}
    while True:
        page = staff.get(f"{BASE}/faces", params=params).json()
        seen += [f["face_id"] for f in page["faces"]]
        if page["next_token"] is None:
            break
        params["next_token"] = page["next_token"]
    assert seen == oldest[::-1]
    [last, *_] = staff.get(f"{BASE}/faces", params={"order": "newest", "subject": "s1"}).json()["faces"]
    assert last["face_id"] == oldest[3]
    assert staff.get(f"{BASE}/faces?order=prettiest").status_code == 422


def test_a_face_has_a_source_by_which_faces_are_listed(staff: httpx.Client) -> None:
    [masked] = enrol(staff, picture(1), source="masked").json()["face_records"]
    [other] = enrol(staff, picture(2)).json()["face_records"]
    assert (masked["source"], other["source"]) == ("masked", None)
    assert [f["face_id"] for f in staff.get(f"{BASE}/faces?source=masked").json()["faces"]] == [masked["face_id"]]
    changed = staff.patch(f"{BASE}/faces/{other['face_id']}", json={"source": "gate-2"})
    assert changed.json()["source"] == "gate-2"
    taken_back = staff.patch(f"{BASE}/faces/{other['face_id']}", json={"source": None})
    assert taken_back.json()["source"] is None
    assert staff.patch(f"{BASE}/faces/{other['face_id']}", json={}).json()["source"] is None


@pytest.mark.parametrize("source", ["two words", "a/b", "x" * 65, "\u00e9"])
def test_a_source_is_a_short_plain_name(staff: httpx.Client, source: str) -> None:
    answer = enrol(staff, picture(1), source=source)
    assert answer.status_code == 422
    assert "source" in answer.text


def test_a_page_token_is_valid_only_for_its_own_order(staff: httpx.Client) -> None:
    for seed in range(3):
        enrol(staff, picture(seed))
    for order, other in (("newest", "oldest"), ("oldest", "newest")):
        page = staff.get(f"{BASE}/faces", params={"order": order, "limit": 1}).json()
        answer = staff.get(f"{BASE}/faces", params={"order": other, "next_token": page["next_token"]})
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidPaginationToken")


def test_a_face_can_be_changed(service: Service, staff: httpx.Client) -> None:
    [face] = enrol(staff, picture(), subject="ada", metadata='{"a": 1}').json()["face_records"]
    path = f"{BASE}/faces/{face['face_id']}"
    changed = staff.patch(path, json={"subject": "bob", "role": "distractor"}).json()
    assert (changed["subject"]["id"], changed["role"], changed["metadata"]) == ("bob", "distractor", {"a": 1})
    assert staff.patch(path, json={"subject": None, "metadata": {}}).json()["subject"] is None
    assert staff.patch(path, json={"colour": "red"}).status_code == 422
    with reading(service.resources.database) as session:
        assert session.scalars(select(Face.change).where(Face.collection_id == NAME)).all() == [3]


def test_a_deleted_face_loses_its_files_and_can_be_enrolled_again(service: Service, staff: httpx.Client) -> None:
    [face] = enrol(staff, picture(), subject="ada").json()["face_records"]
    blobs = service.resources.blobs
    assert len(list(blobs.names(NAME))) == 3
    assert staff.delete(f"{BASE}/faces/{face['face_id']}").status_code == 204
    assert staff.delete(f"{BASE}/faces/{face['face_id']}").status_code == 404
    wait_until(lambda: not list(blobs.names(NAME)))
    assert enrol(staff, picture(), subject="ada").status_code == 201
    assert len(list(blobs.names(NAME))) == 3


def wait_until(true: Any, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.05)

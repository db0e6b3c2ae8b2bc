"""A photo over which the service raises an error is answered with 422 and counted; other photos are served."""

import re

import numpy as np
import pytest

from ml.descriptors.base import Descriptor
from ml.detectors.hog import Hog
from ml.images import encode_png
from ml.synthetic_faces import draw, person
from ml.types import Crops, Detection, Image, Rows
from tests.service import Service

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
MARK = 7
"""The height in pixels of the photo, and the grey level of the crop, over which the components below raise."""
FACE = encode_png(draw(person(0), 0))


@pytest.fixture
def staff(service: Service) -> Service:
    """A service with the collection `staff`."""
    service.client.put("/v1/collections/staff", json={})
    return service


def count_failures(service: Service, stage: str) -> float:
    text = service.client.get("/metrics").text
    return sum(map(float, re.findall(rf'^likeness_photo_failures_total{{stage="{stage}"}} (\S+)$', text, re.MULTILINE)))


def send_everywhere(service: Service, photo: bytes, **params: str) -> list[tuple[int, str]]:
    """Enrol, search and verify with a photo, and return the status and code of each answer."""
    answers = []
    for path in ("collections/staff/faces", "collections/staff/search", "verify"):
        files = [("file", ("photo", data)) for data in ((FACE, photo) if path == "verify" else (photo,))]
        form = params if path.endswith("faces") else {}
        answer = service.client.post(f"/v1/{path}", files=files, data=form, params={} if form else params)
        answers.append((answer.status_code, answer.json().get("code", "")))
    return answers


def test_an_error_of_the_detector_is_answered_with_422(staff: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    detect = Hog._detect

    def raising(self: Hog, image: Image) -> list[Detection]:
        if len(image) == MARK:
            raise RuntimeError("a photo that the detector cannot take")
        return detect(self, image)

    monkeypatch.setattr(Hog, "_detect", raising)
    before = count_failures(staff, "analyse")
    odd = encode_png(np.full((MARK, 90, 3), 90, np.uint8))
    assert send_everywhere(staff, odd) == [(422, "PhotoFailed")] * 3
    assert count_failures(staff, "analyse") == before + 3
    assert [status for status, _ in send_everywhere(staff, FACE)] == [201, 200, 200]


def test_an_error_of_the_descriptor_is_answered_with_422(staff: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = Descriptor.describe

    def raising(self: Descriptor, crops: Crops) -> Rows:
        if any((crop == MARK).all() for crop in crops):
            raise IndexError("a crop that the descriptor cannot take")
        return describe(self, crops)

    monkeypatch.setattr(Descriptor, "describe", raising)
    before = count_failures(staff, "embed")
    flat = encode_png(np.full((170, 100, 3), MARK, np.uint8))
    assert send_everywhere(staff, flat, aligned="true") == [(422, "PhotoFailed")] * 3
    assert count_failures(staff, "embed") == before + 3


@pytest.mark.parametrize("size", [(16_384, 1), (1, 16_384), (1, 1)])
def test_a_photo_of_an_extreme_shape_has_no_face(staff: Service, size: tuple[int, int]) -> None:
    line = encode_png(np.full((*size, 3), 90, np.uint8))
    assert send_everywhere(staff, line) == [(200, ""), (422, "NoFace"), (422, "NoFace")]

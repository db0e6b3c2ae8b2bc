"""A photo over which the service raises an error is refused alone, and its neighbours are enrolled."""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from sqlalchemy import delete, select

from app.db.session import reading, writing
from app.db.tables import Collection, Face, JobItem
from app.enrolment.archives.photo_files import Photo
from app.enrolment.store import _EnrolmentTransaction
from app.errors import Conflict
from app.galleries.learned_collections import LearnedCollection
from app.resources import Resources
from app.serving.limits.photo_failures import PHOTO_FAILURES
from app.storage.recognisers.external_models import make_external_model
from ml.descriptors.base import Descriptor
from ml.descriptors.external import External
from ml.detectors.base import Detector
from ml.images import encode_png
from ml.model import Recipe
from ml.synthetic_faces import draw, person
from ml.types import Crops, Detection, Image, Rows
from tests.gallery import enrol
from tests.rows import GalleryWriter, make_model
from tests.workers.test_import import PEOPLE, asked, count, drain, items, picture, staff, uploaded
from workers import embedding
from workers.context import JobContext
from workers.description import describe_faces
from workers.embedding import FaceRow, embed_sample, read_faces
from workers.importing.batch_enrolment import BatchEnrolment

__all__ = ["staff"]
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
MARK = 7
"""The height in pixels of the photo, and the grey level of the crop, over which the components below raise."""


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Pillow.new("RGB", (width, height), (MARK, MARK, MARK)).save(file, "PNG")
    return file.getvalue()


FACES = {f"p{n}/0.png": encode_png(draw(person(n), 0)) for n in range(4)}


def count_failures(stage: str) -> float:
    return float(PHOTO_FAILURES.labels(stage)._value.get())


def describe_but_raise(describe: Callable[[Descriptor, Crops], Rows]) -> Callable[[Descriptor, Crops], Rows]:
    """Raise an error if any crop is all MARK."""

    def raising(descriptor: Descriptor, crops: Crops) -> Rows:
        if any((crop == MARK).all() for crop in crops):
            raise IndexError("a crop that the descriptor cannot take")
        return describe(descriptor, crops)

    return raising


@dataclass(frozen=True)
class RaisingDetector(Detector):
    """Raises an error over photos that are MARK pixels high."""

    inner: Detector

    def _detect(self, image: Image) -> list[Detection]:
        if len(image) == MARK:
            raise RuntimeError("a photo that the detector cannot take")
        return self.inner._detect(image)


@pytest.mark.parametrize("size", [(16_384, 1), (1, 16_384), (1, 1), (3, 16_000)])
def test_a_photo_of_an_extreme_shape_has_no_face_and_harms_no_neighbour(
    staff: Resources, size: tuple[int, int]
) -> None:
    job = drain(staff, asked(staff, uploaded(staff, {"a/line.png": png(*size)} | FACES), aligned=False))
    assert (job.state, job.done, job.failed) == ("succeeded", 4, 1)
    assert items(staff, job.id)["a/line.png"] == ("failed", {"face_ids": [], "reasons": ["NO_FACE"]})


def test_a_photo_over_which_the_detector_raises_is_refused_alone(staff: Resources) -> None:
    raising = replace(staff.front_end, detector=RaisingDetector(staff.front_end.detector))
    object.__setattr__(staff, "front_end", raising)
    before = count_failures("analyse")
    job = drain(staff, asked(staff, uploaded(staff, {"a/0.png": png(90, MARK)} | FACES), aligned=False))
    assert (job.state, job.done, job.failed) == ("succeeded", 4, 1)
    assert items(staff, job.id)["a/0.png"] == ("failed", {"reasons": ["PHOTO_FAILED"]})
    assert job.result is not None
    assert job.result["photo_failures"] == 1
    assert count_failures("analyse") == before + 1


def test_a_photo_over_which_the_descriptor_raises_is_refused_alone(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Descriptor, "describe", describe_but_raise(Descriptor.describe))
    files = PEOPLE | {"p3/odd.png": png(100, 170)}
    job = drain(staff, asked(staff, uploaded(staff, files)))
    assert (job.state, job.done, job.failed, count(staff, Face)) == ("succeeded", 40, 1, 40)
    assert items(staff, job.id)["p3/odd.png"] == ("failed", {"reasons": ["PHOTO_FAILED"]})


def test_a_photo_whose_rows_cannot_be_stored_is_refused_alone(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol_all = _EnrolmentTransaction.enrol

    def raising(self: _EnrolmentTransaction) -> object:
        if any(photo.request.external_image_id == "p3/3.png" for photo in self.photos):
            raise ValueError("a value that the database cannot take")
        return enrol_all(self)

    monkeypatch.setattr(_EnrolmentTransaction, "enrol", raising)
    job = drain(staff, asked(staff, uploaded(staff, PEOPLE)))
    assert (job.state, job.done, job.failed, count(staff, Face)) == ("succeeded", 39, 1, 39)
    assert items(staff, job.id)["p3/3.png"] == ("failed", {"reasons": ["PHOTO_FAILED"]})


def test_an_import_of_which_a_part_failed_is_not_succeeded(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    analyse = BatchEnrolment._analyse

    def raising(self: BatchEnrolment, item: JobItem, photo: Photo) -> object:
        if item.name == "p3/3.png":
            raise OSError("the disk cannot be read")
        return analyse(self, item, photo)

    monkeypatch.setattr(BatchEnrolment, "_analyse", raising)
    path = uploaded(staff, PEOPLE)
    job = drain(staff, asked(staff, path))
    assert (job.state, job.done, job.failed) == ("failed", 8, 32)
    assert job.problem is not None
    assert (job.problem["code"], job.problem["enrolled"], job.problem["refused"]) == ("PartFailed", 8, 32)
    assert "32 of its photos" in job.problem["detail"]
    assert not path.exists()
    again = drain(staff, asked(staff, uploaded(staff, {"p9/9.png": picture(900)})))
    assert again.state == "succeeded"


@pytest.fixture
def odd(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> list[Face]:
    """Two of the ten faces of `c`, over whose crops the descriptor raises an error."""
    faces = enrol(resources, "c", range(5), shots=2)
    odd = [faces[3], faces[8]]
    grey = np.full((170, 100), MARK, np.uint8)
    for face in odd:
        name = resources.blobs.crop(face.image_id, 0, "grey")
        resources.blobs.remove("c", [name])
        resources.blobs.put("c", [(name, encode_png(grey))])
    monkeypatch.setattr(Descriptor, "describe", describe_but_raise(Descriptor.describe))
    return odd


def test_the_faces_that_a_descriptor_cannot_take_are_named(resources: Resources, odd: list[Face]) -> None:
    with reading(resources.database) as session:
        faces = list(session.scalars(select(Face).order_by(Face.pk)))
    context = JobContext("j", "w", resources)
    with pytest.raises(Conflict, match="lbp") as refused:
        describe_faces(context, Recipe(), faces)
    assert refused.value.code == "FacesFailed"
    assert refused.value.extra["face_ids"] == [face.face_id for face in odd]
    assert describe_faces(context, Recipe(), faces[:3]).shape == (3, Recipe().dim)


def test_a_sample_of_another_collection_leaves_out_the_faces_that_a_descriptor_cannot_take(
    resources: Resources, odd: list[Face], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.description.FACES_PER_TASK", 4)
    context, model = JobContext("j", "w", resources), make_model("m1")
    count, rows = embed_sample(context, model, "identity", LearnedCollection("c", None, np.inf))
    assert (count, len(rows)) == (10, 8)


def test_a_sample_of_another_collection_leaves_out_what_is_erased_meanwhile(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    external = make_external_model(External(recogniser="mine", size=8, metric="cosine"))
    studio = GalleryWriter(staff, "studio").make(external)
    ids = studio.add({external.id: np.eye(3, 8, dtype=np.float32)}, [None] * 3)
    with writing(staff.database) as session:
        session.get_one(Collection, "studio").external_model = external.id
    context = JobContext("j", "w", staff)

    def erase_first(*erased: Any) -> Callable[..., list[FaceRow]]:
        def read_and_erase(*args: Any) -> list[FaceRow]:
            rows = read_faces(*args)
            with writing(staff.database) as session:
                session.execute(delete(erased[0]).where(*erased[1:]))
            return rows

        return read_and_erase

    source = LearnedCollection("studio", None, np.inf)
    monkeypatch.setattr(embedding, "read_faces", erase_first(Face, Face.face_id == ids[0]))
    assert len(embed_sample(context, external, "identity", source)[1]) == 2
    monkeypatch.setattr(embedding, "read_faces", erase_first(Collection, Collection.id == "studio"))
    assert embed_sample(context, external, "identity", source)[1].shape == (0, 8)

"""From the bytes of a photo to the faces that may be enrolled; no table is touched."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.db.field_types import Role
from app.resources import Resources
from app.storage.blob_store import Blobs
from ml import images
from ml.types import AlignedFace, Box, Detection, Image

MIN_OVERLAP = 0.5
"""Intersection over union from which a detected face is the one at a given box."""


@dataclass(frozen=True)
class EnrolmentRequest:
    """What is asked of one photo. max_faces: None is 1 where a subject is given, else as many as a photo may have.

    The subject's face is the largest; further faces that `max_faces` lets in belong to nobody. bounding_box: only the
    face there is enrolled, and it is the subject's; `number` is then its number in the photo.
    """

    subject: str | None = None
    role: Role = "gallery"
    external_image_id: str | None = None
    external_id: str | None = None  # of the subject, where it is made
    metadata: dict[str, Any] = field(default_factory=dict)
    aligned: bool = False
    max_faces: int | None = None
    bounding_box: Box | None = None
    number: int = 0

    def of(self, number: int) -> str | None:
        """The subject of this face of the photo."""
        return self.subject if number == self.number else None

    def most(self, limit: int) -> int:
        return min(limit, self.max_faces or (1 if self.subject else limit))


@dataclass(frozen=True)
class Unindexed:
    """A face, or a photo without one, that is not enrolled, and why."""

    bounding_box: dict[str, float] | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class AnalysedPhoto:
    """A photo after it was looked at. faces: number in the photo (the largest is 0) -> the face, good enough."""

    image_id: str
    data: bytes
    wish: EnrolmentRequest
    faces: dict[int, AlignedFace]
    unindexed: tuple[Unindexed, ...] = ()

    def files(self) -> Iterator[tuple[str, bytes]]:
        """The photo and its crops, as they are kept; nothing where no face is."""
        if self.faces:
            yield Blobs.photo(self.image_id), self.data
        for number, face in self.faces.items():
            for kind, crop in face.crops.items():
                yield Blobs.crop(self.image_id, number, kind), images.encode_png(crop)

    def names(self) -> list[str]:
        crops = [Blobs.crop(self.image_id, n, kind) for n, face in self.faces.items() for kind in face.crops]
        return [Blobs.photo(self.image_id), *crops] if crops else []


def analyse_photo(resources: Resources, data: bytes, wish: EnrolmentRequest) -> AnalysedPhoto:
    """Decodes, detects, aligns and judges. Raises ml.Unreadable."""
    settings = resources.settings
    image = images.read(data, images.ImageLimits(settings.max_image_bytes, settings.max_image_pixels))
    image_id = Blobs.digest(data)
    if wish.aligned:
        return AnalysedPhoto(image_id, data, wish, {0: resources.front_end.aligned(image)})
    detections = resources.front_end.detector.detect(image)
    if wish.bounding_box is not None:
        return _analyse_face_in_box(
            resources, image, AnalysedPhoto(image_id, data, wish, {}), detections, wish.bounding_box
        )
    faces: dict[int, AlignedFace] = {}
    refused = [] if detections else [Unindexed(None, ("NO_FACE",))]
    limit = wish.most(settings.max_faces_per_image)
    for number, seen in enumerate(detections[:limit]):
        face = resources.front_end.align(image, seen)
        reasons = ("NO_LANDMARKS",) if face is None else face.quality.reasons
        if face is not None and not reasons:
            faces[number] = face
        else:
            refused.append(Unindexed(rounded_box(seen.box), reasons))
    refused += [Unindexed(rounded_box(seen.box), ("EXCEEDS_MAX_FACES",)) for seen in detections[limit:]]
    return AnalysedPhoto(image_id, data, wish, faces, tuple(refused))


def _analyse_face_in_box(
    resources: Resources, image: Image, photo: AnalysedPhoto, detections: Sequence[Detection], wanted: Box
) -> AnalysedPhoto:
    """The photo with the one face that overlaps `wanted` most, or the reason why there is none."""
    overlaps = [_overlap(seen.box, wanted) for seen in detections]
    if max(overlaps, default=0.0) < MIN_OVERLAP:
        return replace(photo, unindexed=(Unindexed(rounded_box(wanted), ("NO_FACE",)),))
    number = overlaps.index(max(overlaps))
    face = resources.front_end.align(image, detections[number])
    reasons = ("NO_LANDMARKS",) if face is None else face.quality.reasons
    if face is None or reasons:
        return replace(photo, unindexed=(Unindexed(rounded_box(detections[number].box), reasons),))
    return replace(photo, wish=replace(photo.wish, number=number), faces={number: face})


def _overlap(a: Box, b: Box) -> float:
    """Intersection over union, 0 to 1."""
    width = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
    height = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
    shared = max(0.0, width) * max(0.0, height)
    return shared / (a.area + b.area - shared)


def rounded_box(box: Box) -> dict[str, float]:
    """In pixels of the upright photo."""
    return {side: round(value, 2) for side, value in vars(box).items()}

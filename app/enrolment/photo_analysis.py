"""Analyse a photo: decode it, and detect, align and judge its faces. No table is read or written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.db.field_types import Role
from app.resources import Resources
from app.serving.limits.photo_failures import report_photo_failure
from app.storage.blob_store import Blobs
from ml import images
from ml.types import AlignedFace, Box, Detection, Image

MIN_OVERLAP = 0.5
"""The intersection over union from which a detected face counts as the face at a requested box."""


@dataclass(frozen=True)
class EnrolmentRequest:
    """How to enrol one photo.

    max_faces: None means 1 if a subject is given, else as many as a photo may have
    bounding_box: enrol only the face at this box; `number` is then its number in the photo

    The face with this `number`, by default the largest, belongs to the subject; other faces have no subject.
    """

    subject: str | None = None
    role: Role = "gallery"
    external_image_id: str | None = None
    external_id: str | None = None  # of the subject, if it is created
    source: str | None = None  # of the photo
    metadata: dict[str, Any] = field(default_factory=dict)
    aligned: bool = False
    max_faces: int | None = None
    bounding_box: Box | None = None
    number: int = 0

    def get_subject(self, number: int) -> str | None:
        """Return the subject of the face with this number in the photo."""
        return self.subject if number == self.number else None

    def limit_faces(self, limit: int) -> int:
        """Return how many faces of the photo may be enrolled. limit: of any photo"""
        return min(limit, self.max_faces or (1 if self.subject else limit))


@dataclass(frozen=True)
class Unindexed:
    """A face that is not enrolled, or a photo without a face, and the reasons."""

    bounding_box: dict[str, float] | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class AnalysedPhoto:
    """An analysed photo. faces: number in the photo (the largest is 0) -> face that is good enough to enrol"""

    image_id: str
    data: bytes
    request: EnrolmentRequest
    faces: dict[int, AlignedFace]
    unindexed: tuple[Unindexed, ...] = ()

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the names and bytes of the photo and its crops, to be stored; nothing if it has no face."""
        if self.faces:
            yield Blobs.photo(self.image_id), self.data
        for number, face in self.faces.items():
            for kind, crop in face.crops.items():
                yield Blobs.crop(self.image_id, number, kind), images.encode_png(crop)

    def names(self) -> list[str]:
        """The names of these files."""
        crops = [Blobs.crop(self.image_id, n, kind) for n, face in self.faces.items() for kind in face.crops]
        return [Blobs.photo(self.image_id), *crops] if crops else []


def analyse_photo(resources: Resources, data: bytes, request: EnrolmentRequest) -> AnalysedPhoto:
    """Decode a photo, and detect, align and judge its faces. Raises ml.Unreadable, PhotoFailed."""
    with report_photo_failure("analyse"):
        image = images.read(data, resources.image_limits)
        return _analyse_faces(resources, image, AnalysedPhoto(Blobs.digest(data), data, request, {}))


def _analyse_faces(resources: Resources, image: Image, photo: AnalysedPhoto) -> AnalysedPhoto:
    """Return the photo with its faces, and with those that are not enrolled."""
    request = photo.request
    if request.aligned:
        return replace(photo, faces={0: resources.front_end.aligned(image)})
    detections = resources.front_end.detector.detect(image)
    if request.bounding_box is not None:
        return _analyse_face_in_box(resources, image, photo, detections, request.bounding_box)
    faces: dict[int, AlignedFace] = {}
    refused = [] if detections else [Unindexed(None, ("NO_FACE",))]
    limit = request.limit_faces(resources.settings.max_faces_per_image)
    for number, seen in enumerate(detections[:limit]):
        face = resources.front_end.align(image, seen)
        reasons = ("NO_LANDMARKS",) if face is None else face.quality.reasons
        if face is not None and not reasons:
            faces[number] = face
        else:
            refused.append(Unindexed(round_box(seen.box), reasons))
    refused += [Unindexed(round_box(seen.box), ("EXCEEDS_MAX_FACES",)) for seen in detections[limit:]]
    return replace(photo, faces=faces, unindexed=tuple(refused))


def _analyse_face_in_box(
    resources: Resources, image: Image, photo: AnalysedPhoto, detections: Sequence[Detection], wanted: Box
) -> AnalysedPhoto:
    """The photo with the one face that overlaps `wanted` most, or the reason why there is none."""
    overlaps = [_compute_overlap(seen.box, wanted) for seen in detections]
    if max(overlaps, default=0.0) < MIN_OVERLAP:
        return replace(photo, unindexed=(Unindexed(round_box(wanted), ("NO_FACE",)),))
    number = overlaps.index(max(overlaps))
    face = resources.front_end.align(image, detections[number])
    reasons = ("NO_LANDMARKS",) if face is None else face.quality.reasons
    if face is None or reasons:
        return replace(photo, unindexed=(Unindexed(round_box(detections[number].box), reasons),))
    return replace(photo, request=replace(photo.request, number=number), faces={number: face})


def _compute_overlap(a: Box, b: Box) -> float:
    """Intersection over union, 0 to 1."""
    width = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
    height = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
    shared = max(0.0, width) * max(0.0, height)
    return shared / (a.area + b.area - shared)


def round_box(box: Box) -> dict[str, float]:
    """Return x, y, width and height in pixels of the upright photo, with two decimals."""
    return {side: round(value, 2) for side, value in vars(box).items()}

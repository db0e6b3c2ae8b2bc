from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import from_json

from app.db.tables import Face, Subject
from app.deps.photos import SHORTEST, PhotoIn
from app.engine.looking import Unindexed
from app.engine.names import ExternalImageId, Metadata, Role, SubjectId

EXAMPLE: dict[str, Any] = {
    "face_id": "7f9c24e5-0c1d-4f0e-9a53-5b1c6c1d2e3f",
    "image_id": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "external_image_id": "badge-0042.jpg",
    "bounding_box": {"x": 83.0, "y": 92.0, "width": 87.0, "height": 87.0},
    "landmarks": [[108.2, 113.9], [143.6, 114.1], [125.8, 136.0], [110.9, 153.7], [141.5, 153.9]],
    "quality": {"sharpness": 214.7, "brightness": 121.3, "yaw": 3.1},
    "subject": {"id": "ada", "external_id": "personnel-7"},
    "role": "gallery",
    "metadata": {"age": 36},
    "created_at": 1767225600.0,
}


class SubjectRef(BaseModel):
    id: str
    external_id: str | None


class FaceOut(BaseModel):
    """An enrolled face. Points and boxes are in pixels of the upright photo; landmarks are the left eye, the right eye,
    the nose, the left and the right corner of the mouth, as the viewer sees them."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    face_id: str
    image_id: str = Field(description="SHA-256 of the photo")
    external_image_id: str | None
    bounding_box: dict[str, float]
    landmarks: list[list[float]]
    quality: dict[str, float]
    subject: SubjectRef | None
    role: Role
    metadata: dict[str, Any]
    created_at: float

    @classmethod
    def of(cls, face: Face, subject: Subject | None) -> Self:
        return cls(
            face_id=face.face_id,
            image_id=face.image_id,
            external_image_id=face.external_image_id,
            bounding_box=face.bounding_box,
            landmarks=face.landmarks,
            quality=face.quality,
            subject=subject and SubjectRef(id=subject.id, external_id=subject.external_id),
            role=face.role,
            metadata=face.attributes,
            created_at=face.created_at,
        )


class UnindexedOut(BaseModel):
    """What was seen and not enrolled: NO_FACE, NO_LANDMARKS, EXCEEDS_MAX_FACES, LOW_QUALITY_SHARPNESS,
    SMALL_BOUNDING_BOX, EXTREME_POSE, LOW_BRIGHTNESS, HIGH_BRIGHTNESS, LOW_CONTRAST, LOW_CONFIDENCE."""

    bounding_box: dict[str, float] | None
    reasons: list[str]

    @classmethod
    def of(cls, seen: Unindexed) -> Self:
        return cls(bounding_box=seen.bounding_box, reasons=list(seen.reasons))


def _object(told: object) -> object:
    """A form has JSON as text."""
    return from_json(told) if isinstance(told, str) else told


class EnrolIn(PhotoIn):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"image": SHORTEST, "subject": "ada", "role": "gallery"}]}
    )
    subject: SubjectId | None = Field(None, description="whose face it is; made where it is missing")
    role: Role = "gallery"
    external_image_id: ExternalImageId | None = None
    metadata: Annotated[Metadata, BeforeValidator(_object)] = Field({}, description="a JSON object")
    aligned: bool = Field(False, description="it is one aligned face and is taken as it is")


class EnrolledOut(BaseModel):
    face_records: list[FaceOut]
    unindexed_faces: list[UnindexedOut]


class FacesOut(BaseModel):
    faces: list[FaceOut]
    next_token: str | None = None


class FacePatch(BaseModel):
    """Fields that are left out stay as they are."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"subject": "ada", "metadata": {"age": 36}}]}
    )
    subject: SubjectId | None = Field(None, description="made where it is missing; null: nobody's face")
    role: Role = "gallery"
    external_image_id: ExternalImageId | None = None
    metadata: Metadata = Field({}, description="takes the place of all that was there")


class DirectoryIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"directory": "/data/staff"}]})
    directory: str = Field(min_length=1, max_length=4096)

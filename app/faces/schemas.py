"""Bodies and answers of the routes for faces."""

from typing import Annotated, Any, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import from_json

from app.db import examples
from app.db.field_types import NO_NUL, ExternalImageId, Metadata, NewSubjectId, Role, Source
from app.db.tables import Face, Subject
from app.deps.photos import SMALLEST_IMAGE, PhotoIn
from app.deps.server.json_limits import check_json
from app.deps.shared_schemas import BoundingBox, SubjectRef
from app.enrolment.photo_analysis import Unindexed
from ml.types import Box

MAX_COORDINATE_PIXELS = 1_000_000

EXAMPLE: dict[str, Any] = {
    "face_id": examples.FACE,
    "image_id": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "external_image_id": "badge-0042.jpg",
    "bounding_box": examples.BOX,
    "landmarks": [[108.2, 113.9], [143.6, 114.1], [125.8, 136.0], [110.9, 153.7], [141.5, 153.9]],
    "quality": {"sharpness": 214.7, "brightness": 121.3, "yaw": 3.1},
    "subject": {"id": examples.SUBJECT, "external_id": examples.EXTERNAL_ID},
    "role": "gallery",
    "source": "gate-2",
    "metadata": {"age": 36},
    "created_at": examples.MOMENT,
}
UNINDEXED: dict[str, Any] = {
    "bounding_box": {"x": 402.0, "y": 17.0, "width": 21.0, "height": 21.0},
    "reasons": ["SMALL_BOUNDING_BOX"],
}
ENROLLED: dict[str, Any] = {"face_records": [EXAMPLE], "unindexed_faces": [UNINDEXED]}
BOX_SCHEMA: dict[str, Any] = {
    "type": ["object", "null"],
    "required": ["x", "y", "width", "height"],
    "additionalProperties": False,
    "properties": {
        "x": {"type": "number"},
        "y": {"type": "number"},
        "width": {"type": "number", "exclusiveMinimum": 0},
        "height": {"type": "number", "exclusiveMinimum": 0},
    },
    "examples": [examples.BOX],
}
PATCH: dict[str, Any] = {"subject": examples.SUBJECT, "metadata": {"age": 36}}
ENROL: dict[str, Any] = PATCH | {
    "image": SMALLEST_IMAGE,
    "role": "gallery",
    "external_image_id": "badge-0042.jpg",
    "source": "gate-2",
}


class FaceOut(BaseModel):
    """An enrolled face. Points and boxes are in pixels of the upright photo. The landmarks are the left eye, the right
    eye, the nose, and the left and the right corner of the mouth, as the viewer sees them."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    face_id: str
    image_id: str = Field(description="SHA-256 of the photo; of an imported vector, its first 32 digits")
    external_image_id: str | None
    bounding_box: BoundingBox | None = Field(description="null: an imported vector, which has no photo")
    landmarks: list[list[float]]
    quality: dict[str, float]
    subject: SubjectRef | None
    role: Role
    source: str | None = Field(description="what the photo comes from; null: not stated")
    metadata: dict[str, Any]
    created_at: float

    @classmethod
    def of(cls, face: Face, subject: Subject | None) -> Self:
        return cls(
            face_id=face.face_id,
            image_id=face.image_id,
            external_image_id=face.external_image_id,
            bounding_box=cast(BoundingBox, face.bounding_box) if face.bounding_box else None,
            landmarks=face.landmarks,
            quality=face.quality,
            subject=subject and SubjectRef(id=subject.id, external_id=subject.external_id),
            role=face.role,
            source=face.source,
            metadata=face.attributes,
            created_at=face.created_at,
        )


class UnindexedOut(BaseModel):
    """A face, or a photo without one, that was not enrolled. The reasons are NO_FACE, NO_LANDMARKS, EXCEEDS_MAX_FACES,
    LOW_QUALITY_SHARPNESS, SMALL_BOUNDING_BOX, EXTREME_POSE, LOW_BRIGHTNESS, HIGH_BRIGHTNESS, LOW_CONTRAST and
    LOW_CONFIDENCE."""

    model_config = ConfigDict(json_schema_extra={"examples": [UNINDEXED]})
    bounding_box: BoundingBox | None
    reasons: list[str]

    @classmethod
    def of(cls, face: Unindexed) -> Self:
        return cls(bounding_box=cast(BoundingBox | None, face.bounding_box), reasons=list(face.reasons))


def _parse_json(value: object) -> object:
    """Parse a value that a form sends as JSON text. Raises Invalid."""
    if not isinstance(value, str):
        return value
    check_json(value)
    return from_json(value)


class BoxIn(BaseModel):
    """A rectangle in pixels of the upright photo; x and y are its top-left corner."""

    model_config = ConfigDict(extra="forbid")
    x: float = Field(strict=True, allow_inf_nan=False, ge=-MAX_COORDINATE_PIXELS, le=MAX_COORDINATE_PIXELS)
    y: float = Field(strict=True, allow_inf_nan=False, ge=-MAX_COORDINATE_PIXELS, le=MAX_COORDINATE_PIXELS)
    width: float = Field(strict=True, allow_inf_nan=False, gt=0, le=MAX_COORDINATE_PIXELS)
    height: float = Field(strict=True, allow_inf_nan=False, gt=0, le=MAX_COORDINATE_PIXELS)


class EnrolIn(PhotoIn):
    model_config = ConfigDict(json_schema_extra={"examples": [ENROL]})
    subject: NewSubjectId | None = Field(None, description="the subject of the face; created if it is new")
    role: Role = Field("gallery", description="distractor: a face of somebody who is not of interest")
    external_image_id: ExternalImageId | None = None
    source: Source | None = None
    metadata: Annotated[Metadata, BeforeValidator(_parse_json)] = Field({}, description="a JSON object")
    aligned: bool = Field(False, description="the photo is one aligned face: skip detection")
    bounding_box: Annotated[BoxIn | None, BeforeValidator(_parse_json), WithJsonSchema(BOX_SCHEMA)] = Field(
        None,
        description="enrol only the face at this box, as a search returns it; max_faces then has no effect",
    )

    @model_validator(mode="after")
    def _check_bounding_box(self) -> Self:
        if self.aligned and self.bounding_box is not None:
            raise ValueError("an aligned photo is one face: leave out bounding_box")
        return self

    @property
    def box(self) -> Box | None:
        """The bounding box of the only face to enrol; None means all faces."""
        box = self.bounding_box
        return None if box is None else Box(box.x, box.y, box.width, box.height)


class EnrolledOut(BaseModel):
    """The faces of one photo that are enrolled, and those that are not, with the reasons."""

    model_config = ConfigDict(json_schema_extra={"examples": [ENROLLED]})
    face_records: list[FaceOut]
    unindexed_faces: list[UnindexedOut]


class FacesOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"faces": [EXAMPLE], "next_token": None}]})
    faces: list[FaceOut]
    next_token: str | None = None


class FacePatch(BaseModel):
    """Fields that are left out keep their values."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [PATCH]})
    subject: NewSubjectId | None = Field(None, description="created if it is new; null: the face has no subject")
    role: Role = "gallery"
    external_image_id: ExternalImageId | None = None
    source: Source | None = None
    metadata: Metadata = Field({}, description="replaces all metadata of the face")


class DirectoryIn(BaseModel):
    """A folder on the server. It must be inside a folder that the setting `import_roots` names."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"directory": "/data/staff"}]})
    directory: str = Field(min_length=1, max_length=4096, pattern=NO_NUL, description="its path on the server")

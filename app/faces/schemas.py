from typing import Annotated, Any, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import from_json

from app.db import examples
from app.db.field_types import ExternalImageId, Metadata, Role, SubjectId
from app.db.tables import Face, Subject
from app.deps.photos import SHORTEST, PhotoIn
from app.deps.shapes import BoundingBox, SubjectRef
from app.enrolment.photo_analysis import Unindexed
from ml.types import Box

MAX_PIXELS = 1_000_000  # of a side

EXAMPLE: dict[str, Any] = {
    "face_id": examples.FACE,
    "image_id": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "external_image_id": "badge-0042.jpg",
    "bounding_box": examples.BOX,
    "landmarks": [[108.2, 113.9], [143.6, 114.1], [125.8, 136.0], [110.9, 153.7], [141.5, 153.9]],
    "quality": {"sharpness": 214.7, "brightness": 121.3, "yaw": 3.1},
    "subject": {"id": examples.SUBJECT, "external_id": examples.EXTERNAL_ID},
    "role": "gallery",
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
ENROL: dict[str, Any] = PATCH | {"image": SHORTEST, "role": "gallery", "external_image_id": "badge-0042.jpg"}


class FaceOut(BaseModel):
    """An enrolled face. Points and boxes are in pixels of the upright photo; landmarks are the left eye, the right eye,
    the nose, the left and the right corner of the mouth, as the viewer sees them."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    face_id: str
    image_id: str = Field(description="SHA-256 of the photo")
    external_image_id: str | None
    bounding_box: BoundingBox
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
            bounding_box=cast(BoundingBox, face.bounding_box),
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

    model_config = ConfigDict(json_schema_extra={"examples": [UNINDEXED]})
    bounding_box: BoundingBox | None
    reasons: list[str]

    @classmethod
    def of(cls, seen: Unindexed) -> Self:
        return cls(bounding_box=cast(BoundingBox | None, seen.bounding_box), reasons=list(seen.reasons))


def _object(value: object) -> object:
    """A form has JSON as text."""
    return from_json(value) if isinstance(value, str) else value


class BoxIn(BaseModel):
    """A rectangle in pixels of the upright photo; x and y are its top-left corner."""

    model_config = ConfigDict(extra="forbid")
    x: Annotated[float, Field(allow_inf_nan=False, ge=-MAX_PIXELS, le=MAX_PIXELS)]
    y: Annotated[float, Field(allow_inf_nan=False, ge=-MAX_PIXELS, le=MAX_PIXELS)]
    width: Annotated[float, Field(allow_inf_nan=False, gt=0, le=MAX_PIXELS)]
    height: Annotated[float, Field(allow_inf_nan=False, gt=0, le=MAX_PIXELS)]


class EnrolIn(PhotoIn):
    model_config = ConfigDict(json_schema_extra={"examples": [ENROL]})
    subject: SubjectId | None = Field(None, description="whose face it is; made where it is missing")
    role: Role = Field("gallery", description="distractor: a face of nobody of interest")
    external_image_id: ExternalImageId | None = None
    metadata: Annotated[Metadata, BeforeValidator(_object)] = Field({}, description="a JSON object")
    aligned: bool = Field(False, description="it is one aligned face and is taken as it is")
    bounding_box: Annotated[BoxIn | None, BeforeValidator(_object), WithJsonSchema(BOX_SCHEMA)] = Field(
        None, description="enrol only the face here, as the answer of a search gives it; then max_faces has no effect"
    )

    @model_validator(mode="after")
    def _chooses_once(self) -> Self:
        if self.aligned and self.bounding_box is not None:
            raise ValueError("an aligned photo is one face: leave out bounding_box")
        return self

    @property
    def box(self) -> Box | None:
        """Where the one face is that is to be enrolled."""
        given = self.bounding_box
        return None if given is None else Box(given.x, given.y, given.width, given.height)


class EnrolledOut(BaseModel):
    """Of one photo: what is enrolled, and what is not and why."""

    model_config = ConfigDict(json_schema_extra={"examples": [ENROLLED]})
    face_records: list[FaceOut]
    unindexed_faces: list[UnindexedOut]


class FacesOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"faces": [EXAMPLE], "next_token": None}]})
    faces: list[FaceOut]
    next_token: str | None = None


class FacePatch(BaseModel):
    """Fields that are left out stay as they are."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [PATCH]})
    subject: SubjectId | None = Field(None, description="made where it is missing; null: nobody's face")
    role: Role = "gallery"
    external_image_id: ExternalImageId | None = None
    metadata: Metadata = Field({}, description="takes the place of all that was there")


class DirectoryIn(BaseModel):
    """A folder on the server, in one that `import_roots` in its settings names."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"directory": "/data/staff"}]})
    directory: str = Field(min_length=1, max_length=4096, description="its path on the server")

"""What a search answers. Plain dictionaries: an answer may hold thousands of matches."""

from typing import Any, NotRequired

from pydantic import ConfigDict
from typing_extensions import TypedDict

EXAMPLE: dict[str, Any] = {
    "faces": [
        {
            "bounding_box": {"x": 83.0, "y": 92.0, "width": 87.0, "height": 87.0},
            "unknown": None,
            "matches": [
                {
                    "face_id": "5e7c63d2-4b5e-4b0e-9a53-0b9d0d3e1c55",
                    "subject": {"id": "ann", "external_id": "4711"},
                    "role": "gallery",
                    "distance": 0.41,
                    "similarity": 98.2,
                    "probability": 0.982,
                    "fmr_estimate": 0.0001,
                    "passes": True,
                }
            ],
        }
    ],
    "model": "g-20260101",
    "index_generation": "3.1042",
    "task": "identity",
    "m": 8,
    "fraction": 0.07,
    "calibrated": True,
    "threshold": {
        "distance": 0.7,
        "similarity": 88.0,
        "fmr": 0.00097,
        "low": 0.00084,
        "high": 0.0011,
        "enough": True,
    },
    "unknown": None,
}


class BoundingBox(TypedDict):
    """In pixels of the upright photo, from its top-left corner."""

    x: float
    y: float
    width: float
    height: float


class SubjectRef(TypedDict):
    id: str
    external_id: str | None


class Score(TypedDict):
    """distance: as the model compares, smaller is more alike; similarity: 0 to 100, monotone in the distance."""

    distance: float
    similarity: float
    probability: float | None
    fmr_estimate: float | None
    passes: bool | None


class Match(Score):
    face_id: str
    subject: SubjectRef | None
    role: str
    crop: NotRequired[str | None]


class Matches(TypedDict):
    """One face of the photo. unknown: a threshold or fmr was given, and nobody passes. null: none was given."""

    bounding_box: BoundingBox | None
    unknown: bool | None
    crop: NotRequired[str | None]
    matches: list[Match]


class Limit(TypedDict):
    """Where the line lies, and how sure that is: of the impostor pairs of this gallery, `fmr` are as near, between
    low and high (95 %). enough: whether the evidence carries it."""

    distance: float
    similarity: float
    fmr: float | None
    low: float | None
    high: float | None
    enough: bool | None


class Answer(TypedDict):
    """m: cells probed; fraction: distances computed over faces held; calibrated: whether similarity is a probability
    (else it is an order only); threshold: what `passes` goes by."""

    faces: list[Matches]
    model: str
    index_generation: str
    task: str
    m: int
    fraction: float
    calibrated: bool
    threshold: Limit | None
    unknown: bool | None


class Verdict(Score):
    """passes: taken for one person at the threshold. face_id: the nearest face of the subject, or the one named."""

    bounding_boxes: list[BoundingBox]
    face_id: str | None
    model: str
    index_generation: str
    task: str
    calibrated: bool
    threshold: Limit | None


setattr(Answer, "__pydantic_config__", ConfigDict(json_schema_extra={"examples": [EXAMPLE]}))  # noqa: B010

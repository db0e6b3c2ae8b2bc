"""The answers of search and verify. They are plain dictionaries, since an answer may hold thousands of matches."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from app.db import examples
from app.deps.shapes import BoundingBox, SubjectRef

SCORE: dict[str, Any] = {
    "distance": 0.41, "similarity": 98.2, "probability": 0.982, "fmr_estimate": 0.0001,
    "person_distance": 0.22, "passes": True,
}  # fmt: skip
THRESHOLD: dict[str, Any] = {
    "kind": "fpir", "fpir": 0.01, "fmr": None, "distance": 0.31, "possible_distance": 0.42, "similarity": None,
    "low": 0.0055, "high": 0.0163, "enough": True,
    "evidence": {
        "source": "leave-one-out", "people": 500, "searches": 2431, "measured_faces": 2431, "gallery_faces": 2440,
        "more_people": 0, "rule": {"template_weight": 0.6667, "margin_weight": 0.75},
    },
    "note": None,
}  # fmt: skip
PAIRS: dict[str, Any] = THRESHOLD | {
    "kind": "fmr", "fpir": None, "fmr": 0.00097, "distance": 0.7, "possible_distance": None, "similarity": 88.0,
    "low": 0.00064, "high": 0.0014, "evidence": None,
}  # fmt: skip
SUBJECT: dict[str, Any] = {"id": examples.SUBJECT, "external_id": examples.EXTERNAL_ID}
MATCH: dict[str, Any] = {
    "face_id": examples.FACE,
    "subject": SUBJECT,
    "role": "gallery",
}
PART: dict[str, Any] = {
    "task": "identity",
    "descriptor": "lbp",
    "contribution": 0.41,
    "grid": {"crop": "grey", "rows": 3, "columns": 2, "size": 50},
    "cells": [[0.21, 0.12], [-0.02, 0.06], [0.03, 0.01]],
}
FACES: dict[str, Any] = {"faces": [{"face_id": examples.FACE, "distance": 0.41, "similarity": 98.2}]}
EXPLAINED = MATCH | SCORE | FACES | {"explanation": {"distance": 0.41, "parts": [PART], "rest": 0.0}}
EXAMPLE: dict[str, Any] = {
    "faces": [{"bounding_box": examples.BOX, "decision": "match", "subject": SUBJECT, "matches": [EXPLAINED]}],
    "model": examples.MODEL,
    "index_generation": "3.1042",
    "task": "identity",
    "m": 8,
    "fraction": 0.07,
    "calibrated": True,
    "threshold": THRESHOLD,
}
ORDERED: dict[str, Any] = {
    "distance": 0.49, "similarity": None, "probability": None, "fmr_estimate": None,
    "person_distance": None, "passes": None,
}  # fmt: skip
WEIGHED: dict[str, Any] = {
    "task": "identity", "share": 0.7, "scale": 1.0, "model": examples.MODEL, "index_generation": "3.1042", "m": 8,
}  # fmt: skip
MIXED: dict[str, Any] = EXAMPLE | {
    "faces": [
        {
            "bounding_box": examples.BOX,
            "decision": None,
            "subject": None,
            "matches": [MATCH | ORDERED | {"distances": {"identity": 0.4, "age": 0.35}}],
        }
    ],
    "index_generation": "3.1042,1.1042",
    "task": "identity:0.7,age:0.3",
    "fraction": 0.14,
    "calibrated": False,
    "threshold": None,
    "tasks": [WEIGHED, WEIGHED | {"task": "age", "share": 0.3, "scale": 0.5, "index_generation": "1.1042"}],
    "complete": True,
}
VERDICT: dict[str, Any] = {
    **SCORE,
    "person_distance": None,
    "bounding_boxes": [examples.BOX, examples.BOX],
    "face_id": None,
    "model": examples.MODEL,
    "index_generation": "3.1042",
    "task": "identity",
    "calibrated": True,
    "threshold": PAIRS,
}


def field(description: str, **more: Any) -> Any:
    """What the OpenAPI document says of a field."""
    return Field(description=description, **more)


class ScoreOut(TypedDict):
    """How alike two faces are, and whether that is enough."""

    distance: Annotated[float, field("of the two faces as the model compares them; smaller is more alike")]
    similarity: Annotated[
        float | None,
        field(
            "0 to 100: 100 x the calibrated probability that both faces show one person, at even odds; it speaks of a "
            "pair, not of a search. null where nothing is calibrated"
        ),
    ]
    probability: Annotated[float | None, field("similarity / 100; null where nothing is calibrated")]
    fmr_estimate: Annotated[
        float | None, field("the share of pairs of different people here that are at least as near; null if unknown")
    ]
    person_distance: Annotated[
        float | None,
        field(
            "what the decision goes by; smaller is more alike: the distance of the nearest face and of the mean of the "
            "person's faces, weighed, less a part of the lead over the next person (`threshold.evidence.rule`). null "
            "beyond the ten nearest people, for verify, and for a mix of tasks"
        ),
    ]
    passes: Annotated[bool | None, field("whether it is accepted at `threshold`; null where nothing is calibrated")]


class GridOut(TypedDict):
    """rows x columns of squares, `size` pixels a side, from the top-left corner of that kind of crop: grey is 100 wide
    and 170 high, colour 112 x 112."""

    crop: str
    rows: int
    columns: int
    size: int


class ExplanationPart(TypedDict):
    """What one descriptor made of a distance: `contribution` is the sum of its `cells`, row after row of the grid.
    Above 0 it draws the faces apart, below 0 together. null: the descriptor tells of the whole face at once."""

    task: str
    descriptor: str
    contribution: float
    grid: GridOut | None
    cells: list[list[float]] | None


class ExplanationOut(TypedDict):
    """distance = the contributions of all parts + rest, in double precision. rest: what no cell made (0 for one linear
    map; with local maps, what came of the faces' belonging to different ones)."""

    distance: float
    parts: list[ExplanationPart]
    rest: float


class MatchedFace(TypedDict):
    """One of several faces of a matched person."""

    face_id: Annotated[str, field("id of the enrolled face")]
    distance: Annotated[float, field("to the face that was searched with")]
    similarity: Annotated[float | None, field("of this pair, 0 to 100; null where nothing is calibrated")]


class Match(ScoreOut):
    """A person who may be the one, by the nearest of their faces; or a face of nobody known."""

    face_id: Annotated[str, field("id of the person's nearest enrolled face")]
    subject: Annotated[SubjectRef | None, field("the person; null for a face without a name and for a distractor")]
    role: Annotated[str, field("gallery, or distractor: a face of nobody of interest")]
    faces: NotRequired[
        Annotated[list[MatchedFace], field("the person's faces among the nearest, nearest first, at most 10")]
    ]
    distances: NotRequired[Annotated[dict[str, float], field("of a mix of tasks: each task's own distance")]]
    crop: NotRequired[Annotated[str | None, field("the aligned crop as base64 PNG; null where its file is gone")]]
    explanation: NotRequired[Annotated[ExplanationOut | None, field("what made the distance; null: see `unexplained`")]]
    unexplained: NotRequired[Annotated[str, field("why an explanation that was asked for is null")]]


Decision = Literal["match", "possible", "unknown"]


class FaceResult(TypedDict):
    """The answer for one face of the photo."""

    bounding_box: Annotated[BoundingBox | None, field("where the face is in the photo; null without a photo")]
    decision: Annotated[
        Decision | None,
        field(
            "match: this is `subject`, at the rate of `threshold`; possible: the first match is worth a look; unknown: "
            "nobody enrolled. null where nothing is calibrated, and for a mix of tasks"
        ),
    ]
    subject: Annotated[
        SubjectRef | None,
        field("who it is, of a match; null otherwise, and where the face that matches has no name"),
    ]
    matches: Annotated[list[Match], field("nearest first; one a person, unless group_by=face")]
    crop: NotRequired[Annotated[str | None, field("the aligned crop of the face that was searched with, base64 PNG")]]


class PersonDistanceRule(TypedDict):
    """person_distance = base - margin_weight x (base of the next person - base), where base = (1 - template_weight) x
    distance of the nearest face + template_weight x distance to the mean of the person's faces."""

    template_weight: float
    margin_weight: float


class Evidence(TypedDict):
    """What the threshold of a decision was measured by."""

    source: Annotated[
        Literal["leave-one-out", "held-out", "distractors", "pairs"],
        field(
            "leave-one-out: enrolled people searched the gallery without their own faces; held-out: people kept out of "
            "the model's training did; distractors: those did; pairs: too few searches, so pairs of faces, on the safe "
            "side"
        ),
    ]
    people: Annotated[int, field("strangers who searched")]
    searches: Annotated[int, field("searches they made")]
    measured_faces: Annotated[int, field("faces in the gallery when it was measured")]
    gallery_faces: Annotated[int, field("faces in it now; the threshold is extrapolated to as many")]
    more_people: Annotated[int, field("how many more enrolled people it would take; 0 where the evidence is enough")]
    rule: Annotated[PersonDistanceRule, field("how person distances are computed")]


class AppliedThreshold(TypedDict):
    """Where matches stop being accepted, and how sure that is."""

    kind: Annotated[
        Literal["fpir", "fmr", "similarity"],
        field("what was asked for: a rate of strangers named (the default), a rate of false pairs, a similarity"),
    ]
    fpir: Annotated[float | None, field("the share of strangers' searches that may name somebody; null: another kind")]
    fmr: Annotated[float | None, field("the share of pairs of different people that pass; null: another kind")]
    distance: Annotated[float, field("up to here a match passes: a person distance for fpir, else one of two faces")]
    possible_distance: Annotated[float | None, field("up to this person distance a person is worth a look")]
    similarity: Annotated[float | None, field("of a pair at `distance`; null for fpir")]
    low: Annotated[float | None, field("95 % interval of the true rate; null where only pairs are known")]
    high: Annotated[float | None, field("its other end")]
    enough: Annotated[bool | None, field("whether the evidence carries it; null for a similarity")]
    evidence: Annotated[Evidence | None, field("what it was measured by; null for fmr and similarity")]
    note: Annotated[str | None, field("what is missing where the evidence is not enough")]


class TaskShare(TypedDict):
    """A task's part in a mix: share x its distance / scale. scale: how far this gallery's strangers spread by it."""

    task: str
    share: float
    scale: float
    model: str
    index_generation: str
    m: int


class SearchOut(TypedDict):
    """m: cells probed; fraction: distances computed over faces held; calibrated: whether similarities are known;
    threshold: what decisions and `passes` go by; null where nothing is calibrated.

    Of a mix of tasks: `tasks` says what each of them is in it, model and index_generation name those of all, m is the
    largest, fraction the sum; complete: no face of the cells probed that is missing here is nearer."""

    faces: list[FaceResult]
    model: str
    index_generation: str
    task: str
    m: int
    fraction: float
    calibrated: bool
    threshold: AppliedThreshold | None
    tasks: NotRequired[list[TaskShare]]
    complete: NotRequired[bool]


class VerifyOut(ScoreOut):
    """passes: taken for one person at the threshold. face_id: the nearest face of the subject, or the one named."""

    bounding_boxes: list[BoundingBox]
    face_id: str | None
    model: str
    index_generation: str
    task: str
    calibrated: bool
    threshold: AppliedThreshold | None


setattr(SearchOut, "__pydantic_config__", ConfigDict(json_schema_extra={"examples": [EXAMPLE, MIXED]}))  # noqa: B010
setattr(VerifyOut, "__pydantic_config__", ConfigDict(json_schema_extra={"examples": [VERDICT]}))  # noqa: B010

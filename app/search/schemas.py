"""The answers of search and verify. They are plain dictionaries, since an answer may have thousands of matches."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from app.db import examples
from app.deps.shared_schemas import BoundingBox, SubjectRef

SCORE: dict[str, Any] = {
    "distance": 0.41, "similarity": 98.2, "probability": 0.982, "fmr_estimate": 0.0001,
    "person_distance": 0.22, "passes": True,
}  # fmt: skip
THRESHOLD: dict[str, Any] = {
    "kind": "fpir", "fpir": 0.01, "fmr": None, "distance": 0.31, "possible_distance": 0.42,
    "nameless_distance": 0.28, "nameless_possible_distance": 0.35, "similarity": None,
    "low": 0.0055, "high": 0.0163, "enough": True,
    "evidence": {
        "source": "leave-one-out", "people": 500, "searches": 2431, "measured_faces": 2431, "gallery_faces": 2440,
        "more_people": 0, "rule": {"template_weight": 0.6667, "margin_weight": 0.75},
    },
    "note": None,
}  # fmt: skip
PAIR_THRESHOLD: dict[str, Any] = THRESHOLD | {
    "kind": "fmr", "fpir": None, "fmr": 0.00097, "distance": 0.7, "possible_distance": None,
    "nameless_distance": None, "nameless_possible_distance": None, "similarity": 88.0,
    "low": 0.00064, "high": 0.0014, "evidence": None,
}  # fmt: skip
SUBJECT: dict[str, Any] = {"id": examples.SUBJECT, "external_id": examples.EXTERNAL_ID}
MATCH: dict[str, Any] = {
    "face_id": examples.FACE,
    "subject": SUBJECT,
    "role": "gallery",
}
EXPLANATION_PART: dict[str, Any] = {
    "task": "identity",
    "descriptor": "lbp",
    "contribution": 0.41,
    "grid": {"crop": "grey", "rows": 3, "columns": 2, "size": 50},
    "cells": [[0.21, 0.12], [-0.02, 0.06], [0.03, 0.01]],
}
FACES: dict[str, Any] = {"faces": [{"face_id": examples.FACE, "distance": 0.41, "similarity": 98.2}]}
EXPLAINED = MATCH | SCORE | FACES | {"explanation": {"distance": 0.41, "parts": [EXPLANATION_PART], "rest": 0.0}}
CORRECTION: dict[str, Any] = {
    "effect": "ruled_out",
    "same": False,
    "face_a": examples.FACE,
    "face_b": examples.OTHER_FACE,
    "subject": {"id": "p2", "external_id": None},
}
EXAMPLE: dict[str, Any] = {
    "faces": [
        {
            "bounding_box": examples.BOX,
            "decision": "match",
            "subject": SUBJECT,
            "matches": [EXPLAINED],
            "corrected_by": [CORRECTION],
        }
    ],
    "model": examples.MODEL,
    "index_generation": "3.1042",
    "task": "identity",
    "m": 8,
    "fraction": 0.07,
    "calibrated": True,
    "threshold": THRESHOLD,
}
UNCALIBRATED_SCORE: dict[str, Any] = {
    "distance": 0.49, "similarity": None, "probability": None, "fmr_estimate": None,
    "person_distance": None, "passes": None,
}  # fmt: skip
TASK_SHARE: dict[str, Any] = {
    "task": "identity", "share": 0.7, "scale": 1.0, "model": examples.MODEL, "index_generation": "3.1042", "m": 8,
}  # fmt: skip
MIXED_EXAMPLE: dict[str, Any] = EXAMPLE | {
    "faces": [
        {
            "bounding_box": examples.BOX,
            "decision": None,
            "subject": None,
            "corrected_by": [],
            "matches": [MATCH | UNCALIBRATED_SCORE | {"distances": {"identity": 0.4, "age": 0.35}}],
        }
    ],
    "index_generation": "3.1042,1.1042",
    "task": "identity:0.7,age:0.3",
    "fraction": 0.14,
    "calibrated": False,
    "threshold": None,
    "tasks": [TASK_SHARE, TASK_SHARE | {"task": "age", "share": 0.3, "scale": 0.5, "index_generation": "1.1042"}],
    "complete": True,
}
VERIFY_EXAMPLE: dict[str, Any] = {
    **SCORE,
    "person_distance": None,
    "bounding_boxes": [examples.BOX, examples.BOX],
    "face_id": None,
    "corrected_by": [],
    "model": examples.MODEL,
    "index_generation": "3.1042",
    "task": "identity",
    "calibrated": True,
    "threshold": PAIR_THRESHOLD,
}


def field(description: str, **more: Any) -> Any:
    """Describe a field in the OpenAPI document."""
    return Field(description=description, **more)


class ScoreOut(TypedDict):
    """How alike two faces are, and whether they pass."""

    distance: Annotated[float, field("the distance of the two faces by the model; smaller is more alike")]
    similarity: Annotated[
        float | None,
        field(
            "0 to 100: 100 x the calibrated probability that both faces show one person, at even odds. It is about a "
            "pair, not about a search. null: not calibrated"
        ),
    ]
    probability: Annotated[float | None, field("similarity / 100; null: not calibrated")]
    fmr_estimate: Annotated[
        float | None,
        field("the share of this gallery's impostor pairs that are at least as near; null: unknown"),
    ]
    person_distance: Annotated[
        float | None,
        field(
            "the number that the decision is based on; smaller is more alike. It is the weighted mean of the distance "
            "to the nearest face and to the mean of the person's faces, minus a part of the lead over the next person "
            "(`threshold.evidence.rule`). null beyond the ten nearest people, for verify, and for a mix of tasks"
        ),
    ]
    passes: Annotated[bool | None, field("whether it is accepted at `threshold`; null: there is none")]


class GridOut(TypedDict):
    """A grid of rows x columns of square cells, `size` pixels wide, from the top-left corner of a crop. Grey crops are
    100 pixels wide and 170 high, colour crops 112 x 112."""

    crop: str
    rows: int
    columns: int
    size: int


class ExplanationPart(TypedDict):
    """The part of one descriptor in a distance. `contribution` is the sum of its `cells`, row by row of the grid.
    Positive values increase the distance, negative ones decrease it. `cells` is null for a descriptor without cells."""

    task: str
    descriptor: str
    contribution: float
    grid: GridOut | None
    cells: list[list[float]] | None


class ExplanationOut(TypedDict):
    """distance = the contributions of all parts + rest, in double precision. `rest` belongs to no cell: it is 0 for one
    linear map, and the effect of different local maps for an embedder with several. It also holds what the compensation
    of a source changes."""

    distance: float
    parts: list[ExplanationPart]
    rest: float


class MatchedFace(TypedDict):
    """One of several faces of a matched person."""

    face_id: Annotated[str, field("id of the enrolled face")]
    distance: Annotated[float, field("the distance to the query face")]
    similarity: Annotated[float | None, field("the similarity of this pair, 0 to 100; null: not calibrated")]


class Match(ScoreOut):
    """A person near the query face, represented by the nearest of their faces; or a face without a subject."""

    face_id: Annotated[str, field("id of the person's nearest enrolled face")]
    subject: Annotated[SubjectRef | None, field("the person; null for a face without a subject")]
    role: Annotated[str, field("gallery, or distractor: a face of somebody who is not of interest")]
    faces: NotRequired[
        Annotated[list[MatchedFace], field("the person's faces among the nearest, nearest first, at most 10")]
    ]
    distances: NotRequired[Annotated[dict[str, float], field("for a mix of tasks: each task's distance")]]
    crop: NotRequired[Annotated[str | None, field("the aligned crop as base64 PNG; null: its file is missing")]]
    explanation: NotRequired[Annotated[ExplanationOut | None, field("the parts of the distance; null: `unexplained`")]]
    unexplained: NotRequired[Annotated[str, field("the reason why the explanation is null")]]


Effect = Literal["ruled_out", "rejected", "joined"]


class Correction(TypedDict):
    """A label that changed an answer."""

    effect: Annotated[
        Effect,
        field(
            "ruled_out: a person or face is left out; rejected: a match does not pass, since the query is nearer to a "
            "face that is somebody else; joined: faces are taken for one person"
        ),
    ]
    same: Annotated[bool, field("the settled answer of the label")]
    face_a: Annotated[str, field("id of the first labelled face")]
    face_b: Annotated[str, field("id of the second labelled face")]
    subject: Annotated[SubjectRef | None, field("the person who is ruled out or joined; null without a name")]


Decision = Literal["match", "possible", "unknown"]


class FaceResult(TypedDict):
    """The answer for one face of the photo."""

    bounding_box: Annotated[BoundingBox | None, field("the face in the photo; null without a photo")]
    decision: Annotated[
        Decision | None,
        field(
            "match: this is `subject`, at the rate of `threshold`; possible: the first match is worth a look; unknown: "
            "probably nobody who is enrolled. null: not calibrated, a mix of tasks, or another task than "
            "identity, which names nobody"
        ),
    ]
    subject: Annotated[
        SubjectRef | None,
        field("the person of a `match`; null for other decisions, and if the face that matches has no subject"),
    ]
    matches: Annotated[list[Match], field("nearest first: people by person_distance, or each face by distance")]
    corrected_by: Annotated[list[Correction], field("the labels that changed this answer; they act without training")]
    crop: NotRequired[Annotated[str | None, field("the aligned crop of the query face as base64 PNG")]]


class PersonDistanceRule(TypedDict):
    """person_distance = base - margin_weight x (base of the next person - base), where base = (1 - template_weight) x
    distance of the nearest face + template_weight x distance to the mean of the person's faces."""

    template_weight: float
    margin_weight: float


class Evidence(TypedDict):
    """How the threshold of a decision was measured."""

    source: Annotated[
        Literal["leave-one-out", "held-out", "distractors", "pairs"],
        field(
            "leave-one-out: searches of enrolled people, each without their own faces; held-out: searches of people "
            "held out of the model's training; distractors: searches of distractors; pairs: too few searches, so a "
            "cautious estimate from pairs of faces"
        ),
    ]
    people: Annotated[int, field("the number of people whose searches were measured")]
    searches: Annotated[int, field("the number of their searches")]
    measured_faces: Annotated[int, field("the size of the gallery at that time, in faces")]
    gallery_faces: Annotated[int, field("its size now, to which the threshold is extrapolated")]
    more_people: Annotated[int, field("how many more enrolled people are needed; 0: the evidence is enough")]
    rule: Annotated[PersonDistanceRule, field("how person distances are computed")]


class AppliedThreshold(TypedDict):
    """The threshold up to which matches are accepted, and the evidence for it."""

    kind: Annotated[
        Literal["fpir", "fmr", "similarity"],
        field("the kind that was requested: a rate of strangers named (the default), a false-match rate, a similarity"),
    ]
    fpir: Annotated[float | None, field("the share of strangers' searches that may name somebody; null: another kind")]
    fmr: Annotated[float | None, field("the share of impostor pairs that pass; null: another kind")]
    distance: Annotated[float, field("the largest distance that passes: a person distance for fpir, else of two faces")]
    possible_distance: Annotated[float | None, field("the largest person distance of a `possible` match")]
    nameless_distance: Annotated[
        float | None, field("for fpir, the largest distance of a face without a name that passes; null: none does")
    ]
    nameless_possible_distance: Annotated[float | None, field("the same for a `possible` match")]
    similarity: Annotated[float | None, field("the similarity of a pair at `distance`; null for fpir")]
    low: Annotated[float | None, field("low end of the 95 % interval of the true rate; null: measured by pairs only")]
    high: Annotated[float | None, field("high end of this interval")]
    enough: Annotated[bool | None, field("whether there is enough evidence; null for a similarity")]
    evidence: Annotated[Evidence | None, field("how the threshold was measured; null for fmr and similarity")]
    note: Annotated[str | None, field("what is missing if the evidence is not enough")]


class TaskShare(TypedDict):
    """A task's part in a mix, share x distance / scale. `scale` is the spread of this gallery's impostor distances."""

    task: str
    share: float
    scale: float
    model: str
    index_generation: str
    m: int


class SearchOut(TypedDict):
    """The answer of a search. `m`: cells probed; `fraction`: distances computed / faces in the index; `calibrated`:
    whether similarities are known; `threshold`: the basis of `decision` and `passes`, null if nothing is calibrated,
    and by default for tasks other than identity.

    For a mix of tasks, `tasks` describes each of them, `model` and `index_generation` list those of all tasks, `m` is
    the largest and `fraction` the sum. `complete`: no face in the probed cells that is missing here is nearer."""

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
    """The answer of a verification. `passes`: both faces show one person, at the threshold; `face_id`: the enrolled
    face of the comparison, for a subject its nearest face; `corrected_by`: the label that rules out a match."""

    bounding_boxes: list[BoundingBox]
    face_id: str | None
    corrected_by: list[Correction]
    model: str
    index_generation: str
    task: str
    calibrated: bool
    threshold: AppliedThreshold | None


setattr(SearchOut, "__pydantic_config__", ConfigDict(json_schema_extra={"examples": [EXAMPLE, MIXED_EXAMPLE]}))  # noqa: B010
setattr(VerifyOut, "__pydantic_config__", ConfigDict(json_schema_extra={"examples": [VERIFY_EXAMPLE]}))  # noqa: B010

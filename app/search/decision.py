"""Choose the threshold up to which matches are accepted, and decide whether a search names somebody."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.deps.shared_schemas import SubjectRef
from app.errors import Conflict
from app.search.schemas import AppliedThreshold, Decision, Evidence, Match, ScoreOut
from app.serving.scores import Scores
from ml.identification.open_set import PersonThreshold
from ml.identification.person_distance import DecisionRule

FaceDecision = tuple[Decision | None, SubjectRef | None]
"""The decision and, for a match, the person."""
UNCALIBRATED = (
    "this collection is not calibrated yet: enrol 100 faces or more, of people with two or more faces each, or serve "
    "it with a recogniser that has a reference calibration"
)


@dataclass(frozen=True)
class AcceptanceThreshold:
    """The limit up to which matches are accepted.

    kind: what the limit applies to: the person distance for fpir, the distance of a face for fmr and similarity; None:
        nothing is calibrated, or several tasks are mixed, and nothing is accepted or rejected
    possible_distance: for fpir, up to here a person is a possible match; rule: how person distances are computed
    """

    kind: Literal["fpir", "fmr", "similarity"] | None
    distance: float = np.nan
    similarity: float | None = None
    possible_distance: float = np.nan
    rule: DecisionRule = field(default_factory=DecisionRule)
    description: AppliedThreshold | None = None

    @property
    def is_filter(self) -> bool:
        """Whether the answer leaves out the matches beyond it."""
        return self.kind in ("fmr", "similarity")

    def accepts(self, score: ScoreOut) -> bool | None:
        """Whether a match with these scores passes."""
        if self.kind == "fpir":
            return score["person_distance"] is not None and score["person_distance"] <= self.distance
        if self.kind == "similarity":
            return score["similarity"] is not None and score["similarity"] >= (self.similarity or 0)
        return None if self.kind is None else score["distance"] <= self.distance


def make_person_threshold(scores: Scores, fpir: float | None, faces: int) -> AcceptanceThreshold:
    """Return the threshold at a false positive identification rate, None meaning the default rate.

    faces: the number of faces in the gallery
    Raises Conflict if a rate is given and nothing is calibrated.
    """
    measured = scores.person_threshold(fpir, faces)
    if measured is None:
        if fpir is not None:
            raise Conflict(UNCALIBRATED, code="NotCalibrated")
        return AcceptanceThreshold(None, rule=scores.rule)
    return AcceptanceThreshold(
        "fpir",
        measured.person_distance,
        possible_distance=measured.possible_distance,
        rule=measured.rule,
        description=_describe_threshold(measured, faces),
    )


def make_pair_threshold(
    scores: Scores, fmr: float | None = None, similarity: float | None = None
) -> AcceptanceThreshold:
    """Return the threshold on pairs: at a false-match rate, by default the collection's, or a similarity of 1 to 100.

    Raises Conflict if one of them is given and nothing is calibrated.
    """
    blank = AppliedThreshold(
        kind="similarity", fpir=None, fmr=None, distance=0.0, possible_distance=None, similarity=similarity,
        low=None, high=None, enough=None, evidence=None, note=None,
    )  # fmt: skip
    measured = scores.threshold(fmr)
    if measured is None:
        if fmr is not None or similarity is not None:
            raise Conflict(UNCALIBRATED, code="NotCalibrated")
        return AcceptanceThreshold(None, rule=scores.rule)
    if similarity is not None:
        limit = scores.distance(similarity)
        assert limit is not None, "where there is a threshold, there is a calibration"
        return AcceptanceThreshold("similarity", limit, similarity, description=blank | {"distance": limit})
    similarities = scores.similarity(np.array([measured.distance]))
    similarity = None if similarities is None else float(similarities[0])
    description = blank | {
        "kind": "fmr", "fmr": measured.fmr, "distance": measured.distance, "similarity": similarity,
        "low": measured.low, "high": measured.high, "enough": measured.enough,
    }  # fmt: skip
    return AcceptanceThreshold("fmr", measured.distance, description=description)


def score_faces(scores: Scores, distances: NDArray[np.float32]) -> list[ScoreOut]:
    """Return the scores of (n,) distances, before any threshold is applied."""
    blank: list[None] = [None] * len(distances)
    probability = scores.probability(distances)
    measures = (None if probability is None else 100 * probability, probability, scores.fmr(distances))
    columns = [blank if measure is None else measure.tolist() for measure in measures]
    return [
        ScoreOut(distance=d, similarity=s, probability=p, fmr_estimate=f, person_distance=None, passes=None)
        for d, s, p, f in zip(distances.tolist(), *columns, strict=True)
    ]


def decide(threshold: AcceptanceThreshold, matches: Sequence[Match]) -> FaceDecision:
    """Decide who a face is, from its nearest people, in any order.

    The nearest person with a name decides, even if a face without a name is nearer. A face without a name counts only
    if this person does not pass. If a distractor is nearer than everybody with a name, the face is unknown.
    """
    if threshold.kind is None:
        return None, None
    matches = sorted(matches, key=_make_sort_key)
    first = next((m for m in matches if m["subject"] is not None or m["role"] == "distractor"), None)
    if first is not None and first["role"] == "distractor":
        return "unknown", None
    if first is not None and first["passes"]:
        return "match", first["subject"]
    nameless = [m for m in matches if m["subject"] is None and m["role"] != "distractor"]
    if any(m["passes"] for m in nameless):
        return "match", None
    if threshold.kind == "fpir" and any(_is_possible(threshold, m) for m in ([first] if first else []) + nameless):
        return "possible", None
    return "unknown", None


def _is_possible(threshold: AcceptanceThreshold, match: Match) -> bool:
    distance = match["person_distance"]
    return distance is not None and distance <= threshold.possible_distance


def _make_sort_key(match: Match) -> tuple[float, float]:
    """Return the key to sort matches by: the person distance if it is known, then the distance."""
    distance = match["person_distance"]
    return (float("inf") if distance is None else distance), match["distance"]


def _describe_threshold(measured: PersonThreshold, faces: int) -> AppliedThreshold:
    evidence = Evidence(
        source=measured.source,
        people=measured.people,
        searches=measured.searches,
        measured_faces=measured.measured_faces,
        gallery_faces=faces,
        more_people=measured.more_people,
        rule=asdict(measured.rule),  # type: ignore[typeddict-item]
    )
    return AppliedThreshold(
        kind="fpir",
        fpir=measured.fpir,
        fmr=None,
        distance=measured.person_distance,
        possible_distance=measured.possible_distance,
        similarity=None,
        low=measured.low,
        high=measured.high,
        enough=measured.enough,
        evidence=evidence,
        note=None if measured.enough else _explain_evidence(measured),
    )


def _explain_evidence(measured: PersonThreshold) -> str:
    return (
        f"too few people are enrolled to measure a rate of {measured.fpir:.3g} by searches: this threshold is "
        f"estimated from pairs of faces and is cautious, so more people than necessary are unknown. About "
        f"{measured.more_people:,} more enrolled people would be enough"
    )

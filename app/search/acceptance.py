"""Which matches a search accepts: at a rate of strangers named, a rate of false pairs, or a similarity."""

from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.errors import Conflict
from app.search.schemas import Evidence, Score, Threshold
from app.serving.scores import Scores
from ml.identification.decision_rule import DecisionRule
from ml.identification.open_set import PersonThreshold

UNCALIBRATED = (
    "nothing is calibrated in this collection yet: enrol {wanted}, or serve it with a recogniser that brings its own "
    "calibration"
)


@dataclass(frozen=True)
class AcceptanceThreshold:
    """Where matches stop being accepted.

    kind: what the limit is on: the person distance for fpir, the distance of a face for fmr and similarity. None:
        nothing is calibrated, or several tasks are mixed, and nothing is accepted or refused
    possible_distance: for fpir, up to here a person is worth a look; rule: how person distances are computed
    """

    kind: Literal["fpir", "fmr", "similarity"] | None
    distance: float = np.nan
    similarity: float | None = None
    possible_distance: float = np.nan
    rule: DecisionRule = field(default_factory=DecisionRule)
    description: Threshold | None = None

    @property
    def is_filter(self) -> bool:
        """Whether matches beyond it are left out of the answer."""
        return self.kind in ("fmr", "similarity")

    def accepts(self, score: Score) -> bool | None:
        """Whether a match with these scores passes."""
        if self.kind == "fpir":
            return score["person_distance"] is not None and score["person_distance"] <= self.distance
        if self.kind == "similarity":
            return score["similarity"] is not None and score["similarity"] >= (self.similarity or 0)
        return None if self.kind is None else score["distance"] <= self.distance


def person_threshold(scores: Scores, fpir: float | None, faces: int) -> AcceptanceThreshold:
    """At a rate of strangers named, or the default one, in a gallery of so many faces.

    Raises Conflict where a rate was asked for and nothing is calibrated.
    """
    found = scores.person_threshold(fpir, faces)
    if found is None:
        if fpir is not None:
            raise Conflict(UNCALIBRATED.format(wanted="100 faces or more, of people with two or more each"),
                           code="NotCalibrated")  # fmt: skip
        return AcceptanceThreshold(None, rule=scores.rule)
    return AcceptanceThreshold(
        "fpir",
        found.person_distance,
        possible_distance=found.possible_distance,
        rule=found.rule,
        description=_describe(found, faces),
    )


def pair_threshold(scores: Scores, fmr: float | None = None, similarity: float | None = None) -> AcceptanceThreshold:
    """On single pairs: a false-match rate, by default the collection's, or a similarity of 1 to 100.

    Raises Conflict where one was asked for and nothing is calibrated.
    """
    blank = Threshold(
        kind="similarity", fpir=None, fmr=None, distance=0.0, possible_distance=None, similarity=similarity,
        low=None, high=None, enough=None, evidence=None, note=None,
    )  # fmt: skip
    found = scores.threshold(fmr)
    if found is None:
        if fmr is not None or similarity is not None:
            wanted = "100 faces or more, of people with two or more each"
            raise Conflict(UNCALIBRATED.format(wanted=wanted), code="NotCalibrated")
        return AcceptanceThreshold(None, rule=scores.rule)
    if similarity is not None:
        far = scores.distance(similarity)
        assert far is not None, "a threshold is known, so a calibration is"
        return AcceptanceThreshold("similarity", far, similarity, description=blank | {"distance": far})
    at = scores.similarity(np.array([found.distance]))
    description = blank | {
        "kind": "fmr", "fmr": found.fmr, "distance": found.distance, "similarity": None if at is None else float(at[0]),
        "low": found.low, "high": found.high, "enough": found.enough,
    }  # fmt: skip
    return AcceptanceThreshold("fmr", found.distance, description=description)


def score_faces(scores: Scores, distances: NDArray[np.float32]) -> list[Score]:
    """What each of (n,) distances means; nothing passes or fails yet."""
    blank: list[None] = [None] * len(distances)
    similar, probable, false = scores.similarity(distances), scores.probability(distances), scores.fmr(distances)
    columns = [blank if column is None else column.tolist() for column in (similar, probable, false)]
    return [
        Score(distance=d, similarity=s, probability=p, fmr_estimate=f, person_distance=None, passes=None)
        for d, s, p, f in zip(distances.tolist(), *columns, strict=True)
    ]


def _describe(found: PersonThreshold, faces: int) -> Threshold:
    evidence = Evidence(
        source=found.source,
        people=found.people,
        searches=found.searches,
        measured_faces=found.measured_faces,
        gallery_faces=faces,
        more_people=found.more_people,
        rule=asdict(found.rule),  # type: ignore[typeddict-item]
    )
    return Threshold(
        kind="fpir",
        fpir=found.fpir,
        fmr=None,
        distance=found.person_distance,
        possible_distance=found.possible_distance,
        similarity=None,
        low=found.low,
        high=found.high,
        enough=found.enough,
        evidence=evidence,
        note=None if found.enough else _note(found),
    )


def _note(found: PersonThreshold) -> str:
    return (
        f"too few people are enrolled to measure a rate of {found.fpir:.3g} by searches: this threshold comes from "
        f"pairs of faces and is on the safe side, so that more people than necessary are answered as unknown; about "
        f"{found.more_people:,} more people would be enough"
    )

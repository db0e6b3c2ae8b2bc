"""Choose the threshold up to which matches are accepted, and decide whether a search names somebody."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.deps.shared_schemas import SubjectRef
from app.errors import Conflict
from app.search.schemas import AppliedThreshold, Decision, Evidence
from app.serving.scores import Scores
from ml.identification.open_set import PersonThreshold
from ml.identification.person_distance import DecisionRule
from ml.identification.stranger_searches import fpir_at_size

MAX_KEPT_THRESHOLDS = 64
FaceDecision = tuple[Decision | None, SubjectRef | None]
"""The decision and, for a match, the person."""
UNCALIBRATED = (
    "this collection is not calibrated yet: enrol 100 faces or more, of people with two or more faces each, or serve "
    "it with a recogniser that has a reference calibration"
)
UNSUPPORTED = (
    "this gallery does not tell a threshold at an fpir as small as {:g}: its people are few, or have one face each. "
    "Ask for a larger fpir, or enrol more people, or second faces of some"
)
PARTIAL = (
    "this search looks at fewer faces than those by which the rate was measured, and may miss the next person: its "
    "threshold is estimated from pairs of faces and is cautious. Leave out m, candidates, target_recall and "
    "max_latency_ms, or ask for more"
)
OUTDATED = "the gallery has changed too much since the rate was measured: nobody is named until it is measured again"
UNCHECKED = "the index was loaded just now, and its threshold is being checked: nobody is named until that is done"
NOTHING_PASSES = -1e30
"""A threshold that is finite, as numbers in JSON are, and below every distance."""


@dataclass(frozen=True)
class AcceptanceThreshold:
    """The limit up to which matches are accepted.

    kind: what the limit applies to: the person distance for fpir, the distance of a face for fmr and similarity; None:
        nothing is calibrated, or the tasks name nobody, and nothing is accepted or rejected
    possible_distance: for fpir, up to here a person is a possible match; rule: how person distances are computed
    nameless_distance, nameless_possible_distance: the same for the distance of a face without a name
    """

    kind: Literal["fpir", "fmr", "similarity"] | None
    distance: float = np.nan
    similarity: float | None = None
    possible_distance: float = np.nan
    nameless_distance: float = np.nan
    nameless_possible_distance: float = np.nan
    rule: DecisionRule = field(default_factory=DecisionRule)
    description: AppliedThreshold | None = None

    @property
    def is_filter(self) -> bool:
        """Whether the answer leaves out the matches beyond it."""
        return self.kind in ("fmr", "similarity")

    def accepts(
        self, distance: float, similarity: float | None, person_distance: float | None, is_named: bool
    ) -> bool | None:
        """Whether a match with these scores passes."""
        if self.kind == "fpir":
            if person_distance is None:
                return False
            return person_distance <= self.distance if is_named else distance <= self.nameless_distance
        if self.kind == "similarity":
            return similarity is not None and similarity >= (self.similarity or 0)
        return None if self.kind is None else distance <= self.distance


class PairScores(NamedTuple):
    """What n distances mean, before any threshold is applied; None for each where nothing is calibrated."""

    similarity: Sequence[float | None]
    probability: Sequence[float | None]


class RankedMatch(NamedTuple):
    """A person, or a face without a name, as a query ranks them.

    person: their number, see `LabelConstraints`; offsets: of their faces in the result of the search, nearest first
    distance, probability: of the nearest face; person_distance: None if it is not among the nearest people
    passes: whether it is accepted, None without a threshold
    """

    person: int
    offsets: list[int]
    distance: float
    probability: float | None
    person_distance: float | None
    passes: bool | None
    is_named: bool
    is_distractor: bool


def make_person_threshold(
    scores: Scores, fpir: float | None, faces: int, doubt: str | None = None
) -> AcceptanceThreshold:
    """Return the threshold at a false positive identification rate, None meaning the default rate.

    faces: the number of faces in the gallery; doubt: why what was measured does not hold. The threshold is then from
        pairs, or nobody passes it if these do not hold either (OUTDATED), or may not (UNCHECKED)
    Raises Conflict if a rate is given and nothing is calibrated.
    """
    measured = scores.person_threshold(fpir, faces, doubt is not None)
    if measured is None:
        if fpir is not None:
            is_measured = scores.open_set is not None and scores.open_set.strangers
            raise Conflict(UNSUPPORTED.format(fpir) if is_measured else UNCALIBRATED, code="NotCalibrated")
        return AcceptanceThreshold(None, rule=scores.rule)
    if doubt in (OUTDATED, UNCHECKED):
        measured = replace(
            measured,
            person_distance=NOTHING_PASSES,
            possible_distance=NOTHING_PASSES,
            nameless_distance=-math.inf,
            nameless_possible_distance=-math.inf,
        )
    return _accept_people(measured, faces, doubt)


@lru_cache(MAX_KEPT_THRESHOLDS)
def _accept_people(measured: PersonThreshold, faces: int, doubt: str | None) -> AcceptanceThreshold:
    """Return the threshold with its description, which takes longer to make than to serialise."""
    return AcceptanceThreshold(
        "fpir",
        measured.person_distance,
        possible_distance=measured.possible_distance,
        nameless_distance=measured.nameless_distance,
        nameless_possible_distance=measured.nameless_possible_distance,
        rule=measured.rule,
        description=_describe_threshold(measured, faces, doubt),
    )


def make_pair_threshold(
    scores: Scores, fmr: float | None = None, similarity: float | None = None, faces: int = 1
) -> AcceptanceThreshold:
    """Return the threshold on pairs: at a false-match rate, by default the collection's, or a similarity of 1 to 100.

    faces: with so many faces of one person a face is compared, of which the nearest counts. The rate is that of all of
        them together, as if each were an independent chance of a false match
    Raises Conflict if one of them is given and nothing is calibrated.
    """
    blank = AppliedThreshold(
        kind="similarity", fpir=None, fmr=None, distance=0.0, possible_distance=None, nameless_distance=None,
        nameless_possible_distance=None, similarity=similarity, low=None, high=None, enough=None, evidence=None,
        note=None,
    )  # fmt: skip
    of_pairs = fmr if faces == 1 else fpir_at_size(scores.default_fmr if fmr is None else fmr, faces, 1)
    measured = scores.threshold(of_pairs)
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
    rate, low, high = (
        of_pair if faces == 1 else fpir_at_size(of_pair, 1, faces)
        for of_pair in (measured.fmr, measured.low, measured.high)
    )
    description = blank | {
        "kind": "fmr", "fmr": rate, "distance": measured.distance, "similarity": similarity,
        "low": low, "high": high, "enough": measured.enough,
    }  # fmt: skip
    return AcceptanceThreshold("fmr", measured.distance, description=description)


def score_faces(scores: Scores, distances: NDArray[np.float32]) -> PairScores:
    """Return what (n,) distances mean."""
    probability = scores.probability(distances)
    if probability is None:
        unknown = [None] * len(distances)
        return PairScores(unknown, unknown)
    return PairScores((100 * probability).tolist(), probability.tolist())


def estimate_rates(scores: Scores, distances: NDArray[np.float32]) -> Sequence[float | None]:
    """Return the false-match rates of (n,) distances; None for each where nothing is calibrated."""
    rates = scores.fmr(distances)
    return [None] * len(distances) if rates is None else rates.tolist()


def decide(
    threshold: AcceptanceThreshold, matches: Sequence[RankedMatch], hidden_distractor: float = math.inf
) -> tuple[Decision | None, RankedMatch | None]:
    """Decide who a face is, from its nearest people. Returns the decision and, for a match, who it is.

    The nearest person with a name decides, even if a face without a name is nearer. A face without a name counts only
    if this person does not pass. If a distractor is nearer than everybody with a name, the face is unknown.

    matches: as `sort_matches` orders them
    hidden_distractor: the person distance of the nearest distractor that a filter leaves out
    """
    if threshold.kind is None:
        return None, None
    first = next((m for m in matches if m.is_named or m.is_distractor), None)
    if first is not None and first.is_distractor:
        return "unknown", None
    if hidden_distractor < (math.inf if first is None or first.person_distance is None else first.person_distance):
        return "unknown", None
    if first is not None and first.passes:
        return "match", first
    nameless = [m for m in matches if not m.is_named and not m.is_distractor]
    passing = next((m for m in nameless if m.passes), None)
    if passing is not None:
        return "match", passing
    if threshold.kind == "fpir" and any(_is_possible(threshold, m) for m in ([first] if first else []) + nameless):
        return "possible", None
    return "unknown", None


def _is_possible(threshold: AcceptanceThreshold, match: RankedMatch) -> bool:
    if match.person_distance is None:
        return False
    if match.is_named:
        return match.person_distance <= threshold.possible_distance
    return match.distance <= threshold.nameless_possible_distance


def sort_matches(matches: Sequence[RankedMatch]) -> list[RankedMatch]:
    """Return matches by rising person distance where it is known, then by rising distance."""
    return sorted(matches, key=lambda m: (math.inf if m.person_distance is None else m.person_distance, m.distance))


def _describe_threshold(measured: PersonThreshold, faces: int, doubt: str | None) -> AppliedThreshold:
    evidence = Evidence(
        source=measured.source,
        people=measured.people,
        searches=measured.searches,
        measured_faces=measured.measured_faces,
        gallery_faces=faces,
        more_people=0 if doubt else measured.more_people,
        rule=asdict(measured.rule),  # type: ignore[typeddict-item]
    )
    return AppliedThreshold(
        kind="fpir",
        fpir=measured.fpir,
        fmr=None,
        distance=measured.person_distance,
        possible_distance=measured.possible_distance,
        nameless_distance=_finite(measured.nameless_distance),
        nameless_possible_distance=_finite(measured.nameless_possible_distance),
        similarity=None,
        low=measured.low,
        high=measured.high,
        enough=measured.enough,
        evidence=evidence,
        note=doubt or (None if measured.enough else _explain_evidence(measured)),
    )


def _finite(distance: float) -> float | None:
    return distance if math.isfinite(distance) else None


def _explain_evidence(measured: PersonThreshold) -> str:
    if measured.high is not None:
        return (
            f"too few people tell how near strangers like some of the enrolled people come: up to {measured.high:.0%} "
            f"of strangers may be named. About {measured.more_people:,} more enrolled people would be enough"
        )
    return (
        f"too few people are enrolled to measure a rate of {measured.fpir:.3g} by searches: this threshold is "
        f"estimated from pairs of faces and is cautious: enrolled people are unknown more often than need be. About "
        f"{measured.more_people:,} more enrolled people would be enough"
    )

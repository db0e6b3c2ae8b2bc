"""Measure how strangers score against a deployment's gallery, by searches for its own people and its distractors."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.serving.loaded_index import LoadedIndex
from ml.calibration import NamedPairs
from ml.distances import Distance
from ml.errors import TooFewPairs
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import (
    Flags,
    Floats,
    GalleryPeople,
    SearchOutcomes,
    find_owners,
    list_people,
    search_gallery,
)
from ml.identification.stranger_searches import StrangerSearches
from ml.indexes.base import Neighbours
from ml.types import Ids, Rows

REPORTED_FPIRS = (0.001, 0.01, 0.05)
MAX_SEARCHES, MIN_SEARCHES = 3000, 500
MAX_DISTRACTOR_SEARCHES = 1500
MAX_MULTIPLICATIONS = 1e11
"""The limit of work, unless it would leave fewer than MIN_SEARCHES searches."""
MIN_COMPARED, MAX_COMPARED = 30, 300
MIN_PAIRED_FACES, MAX_PAIRED_FACES, PAIRED_BYTES = 500, 5000, 16 * 2**20
"""Of faces with a name, and of distractors, of whose pairs a sample is measured."""
NEAR_SHARE, MAX_EXCESS, MAX_DEVIATIONS = 0.2, 0.13, 2.0
"""The nearest fifth of strangers. How many more of the distractors may be as near as these: a share, or standard
deviations where these are more."""


@dataclass(frozen=True, eq=False)
class LockedIndex:
    """The index of a deployment, for a measurement while others search and change it.

    allowed: (n,) ids to search among if a search states none, or else some of these; None: all
    """

    loaded: LoadedIndex
    allowed: Ids | None = None

    @property
    def dim(self) -> int:
        return self.loaded.dim

    @property
    def metric(self) -> Distance:
        return self.loaded.index.metric

    def search(self, queries: Rows, k: int, *, allowed: Ids | None = None) -> Neighbours:
        among = self.allowed if allowed is None else allowed
        return self.loaded.search_many(queries, k) if among is None else self.loaded.search(queries, k, allowed=among)

    def rows(self, ids: Ids) -> Rows:
        with self.loaded.lock.gen_rlock():
            return self.loaded.index.rows(ids)

    def ids(self) -> Ids:
        return self.loaded.read_ids()


@dataclass(frozen=True, eq=False)
class ProbeFaces:
    """Which of the n faces of a gallery may be searched for.

    is_named: (n,) faces that were enrolled with a name: not those that labels alone name, since labels of faces that
        look alike would have strangers look farther away than they are
    is_distractor: (n,) distractors that the model has not learned from
    names: (n,) number of the name of each face. Of people whom labels joined, each name weighs as much as somebody else
    is_joined: (n,) faces of such people. They are measured with the others, since some kinds of people may be joined
        more often; and the others alone, since labels may join people who look alike
    all_named: (n,) these, those that labels name, and new faces of people from whom the model has learned otherwise.
        Such people may look farther apart than strangers do, or be of a poorer camera: searches for all of these faces
        make a threshold stricter alone
    with_learned: (n,) faces that were enrolled with a name, those that the model has learned from too
    """

    is_named: Flags
    is_distractor: Flags
    names: Ids
    is_joined: Flags
    all_named: Flags
    with_learned: Flags


@dataclass(frozen=True, eq=False)
class OpenSetMeasurement:
    """calibration: how strangers score; enrolled: searches for enrolled people, None if it was trained on them"""

    calibration: OpenSetCalibration
    enrolled: SearchOutcomes | None

    def to_dict(self, faces: int) -> dict[str, Any]:
        """Return the entry for `Deployment.measurements`: the calibration, and its rates in a gallery of that size."""
        rates = [self._rate(fpir, faces) for fpir in REPORTED_FPIRS]
        return {"calibration": self.calibration.to_dict(), "rates": [rate for rate in rates if rate]}

    def _rate(self, fpir: float, faces: int) -> dict[str, Any] | None:
        threshold = self.calibration.threshold(fpir, faces)
        if threshold is None:
            return None
        named = None
        if self.enrolled is not None and len(self.enrolled.mate):
            named = float((self.enrolled.mate <= threshold.person_distance).mean())
        return {
            "fpir": fpir,
            "distance": threshold.person_distance,
            "possible_distance": threshold.possible_distance,
            "low": threshold.low,
            "high": threshold.high,
            "enough": threshold.enough,
            "named_rightly": named,
        }


def measure_open_set(
    loaded: LoadedIndex,
    people: GalleryPeople,
    probes: ProbeFaces,
    learned: tuple[StrangerSearches, ...] | None,
    rule: DecisionRule,
    left_share: float = 1.0,
) -> OpenSetMeasurement:
    """Measure the scores of strangers.

    probes: which faces are searched for
    learned: None if the model was not trained on this gallery. Otherwise the searches of people held out of its
        training, which may be empty, and only people who have come since are probes: the distances between people that
        it was trained on are too large to stand for strangers.
    left_share: of the faces that these searched, those that are still there
    """
    index = LockedIndex(loaded, people.ids if len(people.ids) < loaded.state.vectors else None)
    rng = np.random.default_rng(0)
    limit = int(np.clip(MAX_MULTIPLICATIONS / max(1, len(people.ids) * loaded.dim), MIN_SEARCHES, MAX_SEARCHES))
    strangers: list[StrangerSearches] = list(learned or ())
    enrolled = None
    if people.is_named.sum() > 1:
        enrolled = search_gallery(index, people, people.sample(people.is_named, limit, rng, probes.is_named), rule)
        named = replace(enrolled, owners=probes.names[enrolled.positions])
        strangers += _summarise("leave-one-out", named, len(people.ids))
        is_alone = ~probes.is_joined[enrolled.positions]
        if not is_alone.all():
            strangers += _summarise("leave-one-out", named.select(is_alone), len(people.ids))
        if (probes.all_named & ~probes.is_named).any():
            positions = people.sample(people.is_named, limit, rng, probes.all_named)
            strangers += _summarise("leave-one-out", search_gallery(index, people, positions, rule), len(people.ids))
    if probes.is_distractor.any() and people.is_named.any():
        count = min(limit, MAX_DISTRACTOR_SEARCHES)
        positions, others = people.sample(people.is_distractor, count, rng, probes.is_distractor), people
        if _show_people_several_times(index, people, positions, rng):
            others = replace(people, is_distractor=np.zeros_like(people.is_distractor))
        strangers += _summarise("distractors", search_gallery(index, others, positions, rule), len(people.ids))
    several = None if enrolled is None or learned is not None else _keep_people_with_other_faces(enrolled, people)
    newcomers = 0.0 if learned is None else _find_newcomer_share(people, probes)
    pairs = _measure_named_pairs(index, people, probes, rng) if learned is None else None
    everybody: list[StrangerSearches] = []
    if learned is not None and people.is_named.sum() > 1:
        positions = people.sample(people.is_named, limit, rng, probes.with_learned)
        everybody = _summarise("leave-one-out", search_gallery(index, people, positions, rule), len(people.ids))
    calibration = OpenSetCalibration(
        rule,
        tuple(strangers),
        learned is not None,
        newcomer_share=newcomers,
        left_share=left_share,
        named_pairs=pairs,
        with_learned=next(iter(everybody), None),
    )
    return OpenSetMeasurement(calibration, several)


def _measure_named_pairs(
    index: LockedIndex, people: GalleryPeople, probes: ProbeFaces, rng: np.random.Generator
) -> NamedPairs | None:
    limit = int(np.clip(PAIRED_BYTES // (4 * index.dim), MIN_PAIRED_FACES, MAX_PAIRED_FACES))
    named, distractors = (
        rng.permutation(people.ids[chosen])[:limit] for chosen in (probes.is_named, probes.is_distractor)
    )
    ids, rows = index.loaded.read_rows(named)
    _, others = index.loaded.read_rows(distractors)
    return NamedPairs.measure(rows, find_owners(people, ids), others, index.metric)


def _find_newcomer_share(people: GalleryPeople, probes: ProbeFaces) -> float:
    """Return the share of new faces, of those of people with a name. Everybody weighs alike."""
    new = np.bincount(people.owners, probes.all_named, len(people.is_named))
    return float((new / people.face_counts)[people.is_named].mean()) if people.is_named.any() else 0.0


def _show_people_several_times(
    index: LockedIndex, people: GalleryPeople, positions: Ids, rng: np.random.Generator
) -> bool:
    """Return whether distractors, at (S,) positions, have a face as near as few strangers have.

    Then they show some people several times: a search for one finds the other photo of that person, a distractor, and
    names nobody, which no search for a stranger does. Searched for among the other faces alone, they are named no less
    often than strangers. If few people have a name, nothing is known.
    """
    named = people.sample(people.is_named, MAX_COMPARED, rng)
    compared = rng.permutation(positions)[:MAX_COMPARED]
    if min(len(named), len(compared)) < MIN_COMPARED:
        return False
    of_named, of_distractors = (_measure_nearest_others(index, people, faces) for faces in (named, compared))
    share = (of_distractors <= np.quantile(of_named, NEAR_SHARE)).mean()
    deviation = np.sqrt(NEAR_SHARE * (1 - NEAR_SHARE) * (1 / len(named) + 1 / len(compared)))
    return bool(share > NEAR_SHARE + max(MAX_EXCESS, MAX_DEVIATIONS * deviation))


def _measure_nearest_others(index: LockedIndex, people: GalleryPeople, positions: Ids) -> Floats:
    """Return (S,) distances of the nearest face of anybody else from the faces at these positions."""
    ids, rows = index.loaded.read_rows(people.ids[positions])
    return list_people(index, people, rows, find_owners(people, ids), ids)[0].nearest[:, 0]


def _summarise(source: Any, outcomes: SearchOutcomes, faces: int) -> list[StrangerSearches]:
    try:
        return [StrangerSearches.from_distances(source, outcomes.stranger, outcomes.owners, faces)]
    except TooFewPairs:
        return []


def _keep_people_with_other_faces(outcomes: SearchOutcomes, people: GalleryPeople) -> SearchOutcomes:
    """Return only the searches for people who have another face in the gallery."""
    return outcomes.select(people.face_counts[outcomes.owners] > 1)

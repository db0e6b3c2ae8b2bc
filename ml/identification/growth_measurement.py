"""Measure a gallery's rates at smaller sizes, predict those at larger ones, and check the prediction of a tenth."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml import indexes
from ml.errors import TooFewPairs
from ml.evaluation.intervals import Interval
from ml.identification.growth_forecast import GrowthForecast
from ml.identification.open_set import OpenSetCalibration, PersonThreshold
from ml.identification.person_distance import DecisionRule
from ml.identification.rival_lists import read_rival_lists
from ml.identification.searches import GalleryPeople, SearchableIndex
from ml.identification.stranger_searches import Source, StrangerSearches
from ml.types import Ids

Check = Callable[[int, int], None]

MEASURED_FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
GROWTHS = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
CHECKED_FRACTION = 0.1
MIN_PEOPLE = 100
"""With fewer people to search for, nothing is predicted."""
MAX_SEARCHES, MIN_SEARCHES, MAX_MULTIPLICATIONS = 1500, 500, 3e11


@dataclass(frozen=True)
class GrowthPoint:
    """The rates of a gallery of one size.

    factor: its size, over that of the gallery; people: with a name; is_measured: or else predicted
    strangers_named, distractors_named: the share of searches that name somebody, for enrolled people without their own
        faces and for enrolled distractors; people_found: the share of searches for people with another face that name
        them. None where nothing could be searched for.
    kept_distance: the threshold that keeps the rate of strangers named at this size, None if it is not known
    found_at_kept: `people_found` at that threshold
    """

    factor: float
    faces: int
    people: int
    is_measured: bool
    strangers_named: Interval | None
    distractors_named: Interval | None
    people_found: Interval | None
    kept_distance: float | None = None
    found_at_kept: Interval | None = None


@dataclass(frozen=True)
class GrowthCheck:
    """What a random part of the gallery alone predicts for the whole, and what was measured there.

    Each rate is (predicted, measured), None if it is not known.
    """

    faces: int
    people: int
    strangers_named: tuple[Interval, Interval] | None
    distractors_named: tuple[Interval, Interval] | None
    people_found: tuple[Interval, Interval] | None


@dataclass(frozen=True, eq=False)
class GrowthSearches:
    """The searches that stand for strangers and for enrolled people in one gallery; None: nobody could be searched for.

    enrolled: by people without their own faces; mated: by those of them who have another face
    """

    people: GalleryPeople
    rule: DecisionRule
    enrolled: GrowthForecast | None
    mated: GrowthForecast | None
    distractors: GrowthForecast | None

    @classmethod
    def run(
        cls,
        index: SearchableIndex,
        people: GalleryPeople,
        rule: DecisionRule,
        *,
        has_learned: bool = False,
        check: Check = lambda done, total: None,
        seed: int = 0,
    ) -> Self:
        """Search for a sample of the people and of the distractors.

        has_learned: whether the model was trained on these people. They then do not stand for strangers.
        check: called with the searches done and their number; it may raise an exception to stop
        Raises TooFewPairs if fewer than MIN_PEOPLE people or distractors can be searched for.
        """
        searchable = int(people.is_named.sum())
        if searchable < MIN_PEOPLE:
            raise TooFewPairs("people with a name", MIN_PEOPLE, searchable)
        rng, work = np.random.default_rng(seed), len(people.ids) * index.dim
        limit = int(np.clip(MAX_MULTIPLICATIONS / max(1, work), MIN_SEARCHES, MAX_SEARCHES))
        named = people.sample(people.is_named, limit, rng)
        distractors = people.sample(people.is_distractor, limit, rng)
        total = len(named) + len(distractors)
        lists = read_rival_lists(index, people, named, rule, lambda done: check(done, total))
        others = read_rival_lists(index, people, distractors, rule, lambda done: check(len(named) + done, total))
        mated = lists.select(np.isfinite(lists.own))
        return cls(
            people,
            rule,
            None if has_learned else GrowthForecast(lists, rule, seed),
            GrowthForecast(mated, rule, seed) if len(np.unique(mated.owners)) >= MIN_PEOPLE else None,
            GrowthForecast(others, rule, seed) if len(distractors) >= MIN_PEOPLE else None,
        )

    def find_threshold(self, fpir: float, growth: float = 1.0) -> PersonThreshold | None:
        """Return the threshold that the service would measure in a gallery that is `growth` times as large."""
        faces = int(len(self.people.ids) * growth)
        sources: list[tuple[Source, GrowthForecast | None]] = [
            ("leave-one-out", self.enrolled), ("distractors", self.distractors),
        ]  # fmt: skip
        searches = tuple(
            StrangerSearches.from_distances(source, forecast.person_distances(growth), forecast.lists.owners, faces)
            for source, forecast in sources
            if forecast is not None
        )
        return OpenSetCalibration(self.rule, searches).threshold(fpir, faces)

    def measure(self, distance: float, fraction: float, fpir: float | None = None) -> GrowthPoint:
        """Measure the rates in smaller galleries. fraction: of the people and distractors, 0..1

        fpir: also find the threshold that gives this rate in the whole gallery
        """
        kept = None if fpir is None else self._find_distance(fpir, 1.0)
        return GrowthPoint(
            fraction, round(len(self.people.ids) * fraction), round(int(self.people.is_named.sum()) * fraction), True,
            self.enrolled.measure_named(distance, fraction) if self.enrolled else None,
            self.distractors.measure_named(distance, fraction) if self.distractors else None,
            self.mated.measure_found(distance, fraction) if self.mated else None,
            kept,
            self.mated.measure_found(kept, fraction) if self.mated and kept is not None else None,
        )  # fmt: skip

    def predict(self, distance: float, growth: float, fpir: float | None = None) -> GrowthPoint:
        """Predict the rates in a larger gallery, with as many times more people and distractors.

        fpir: also find the threshold that keeps this rate
        """
        kept = None if fpir is None else self._find_distance(fpir, growth)
        return GrowthPoint(
            growth, round(len(self.people.ids) * growth), round(int(self.people.is_named.sum()) * growth), False,
            self.enrolled.predict_named(distance, [growth])[0] if self.enrolled else None,
            self.distractors.predict_named(distance, [growth])[0] if self.distractors else None,
            self.mated.predict_found(distance, [growth])[0] if self.mated else None,
            kept,
            self.mated.predict_found(kept, [growth])[0] if self.mated and kept is not None else None,
        )  # fmt: skip

    def _find_distance(self, fpir: float, growth: float) -> float | None:
        threshold = self.find_threshold(fpir, growth)
        return None if threshold is None else threshold.person_distance


def list_points(
    searches: GrowthSearches, distance: float, fpir: float, check: Check = lambda done, total: None
) -> list[GrowthPoint]:
    """Measure at MEASURED_FRACTIONS and predict at GROWTHS.

    distance: the threshold; fpir: the rate whose threshold each larger gallery would need
    check: called with the points done and their number; it may raise an exception to stop
    """
    total = len(MEASURED_FRACTIONS) + len(GROWTHS)
    points: list[GrowthPoint] = []
    for fraction in MEASURED_FRACTIONS:
        check(len(points), total)
        points.append(searches.measure(distance, fraction, fpir if fraction == 1 else None))
    for growth in GROWTHS:
        check(len(points), total)
        points.append(searches.predict(distance, growth, fpir))
    return points


def draw_part(people: GalleryPeople, fraction: float, seed: int = 0) -> GalleryPeople:
    """Return a random part of the gallery: this fraction of its people, of its distractors and of nameless faces."""
    rng = np.random.default_rng(seed)
    chosen: NDArray[np.bool_] = np.zeros(len(people.is_named), np.bool_)
    for kind in (people.is_named, people.is_distractor, ~people.is_rival):
        owners = np.flatnonzero(kind)
        chosen[rng.permutation(owners)[: round(fraction * len(owners))]] = True
    kept = chosen[people.owners]
    subjects: Ids = np.where(people.is_named[people.owners], people.owners, -1)
    return GalleryPeople.from_rows(people.ids[kept], subjects[kept], people.is_distractor[people.owners][kept])


def check_forecast(
    index: SearchableIndex,
    searches: GrowthSearches,
    distance: float,
    check: Check = lambda done, total: None,
    fraction: float = CHECKED_FRACTION,
    seed: int = 0,
) -> GrowthCheck | None:
    """Predict the rates of the whole gallery from a random part of it; None if the part has too few people."""
    part = draw_part(searches.people, fraction, seed)
    rows = index.rows(part.ids)
    try:
        small = GrowthSearches.run(
            indexes.build(part.ids, rows, index.metric),
            part,
            searches.rule,
            has_learned=searches.enrolled is None,
            check=check,
            seed=seed,
        )
        predicted = small.predict(distance, float(searches.people.is_named.sum() / part.is_named.sum()))
    except TooFewPairs:
        return None
    measured = searches.measure(distance, 1.0)
    pairs = [
        None if one is None or other is None else (one, other)
        for one, other in (
            (predicted.strangers_named, measured.strangers_named),
            (predicted.distractors_named, measured.distractors_named),
            (predicted.people_found, measured.people_found),
        )
    ]
    return GrowthCheck(len(part.ids), int(part.is_named.sum()), pairs[0], pairs[1], pairs[2])

"""Decide for each source whether its correction helps, on people whose faces it was not learned from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ml.compensation.correction import NO_SOURCE, SourceCompensation, SourceCorrection, Sources
from ml.compensation.fit import fit_compensation
from ml.compensation.guess import FOLDS, Discriminant
from ml.compensation.simulation import SimulatedFaces
from ml.distances import Distance
from ml.evaluation.comparisons.paired_tests import Comparison, compare
from ml.evaluation.retrieval import average_precision, ranks_of
from ml.types import Ids, Rows

MIN_PEOPLE_TO_JUDGE = 10
LARGE_SHIFT = 0.1
"""A shift that differences between populations do not reach, and that masks and coarse cameras exceed."""
MAX_QUERIES, MAX_GALLERY_FACES = 400, 10_000
Reason = Literal["reference", "helps", "does not help", "simulated", "large shift", "small shift", "too few faces"]


@dataclass(frozen=True)
class Decision:
    """Whether the correction of a source is applied, and why.

    faces: of the source; shift: see `SourceCorrection`, None without a correction
    comparison: mean average precision across sources with the correction minus without, over people named in this
        source and in others; None: too few people
    degradation: what simulates the source in this correction, a name of `DEGRADATIONS`
    recognised: the share of its faces that a search without a source takes to be of it; None: its source is not guessed
    """

    is_on: bool
    reason: Reason
    faces: int
    shift: float | None = None
    comparison: Comparison | None = None
    degradation: str | None = None
    recognised: float | None = None


@dataclass(frozen=True, eq=False)
class JudgedCompensation:
    """A compensation with the corrections that are on, and the decision for every source."""

    compensation: SourceCompensation
    decisions: Mapping[str, Decision]


def judge_compensation(
    rows: Rows,
    sources: Sources,
    people: Ids,
    metric: Distance,
    simulations: Mapping[str, SimulatedFaces] | None = None,
) -> JudgedCompensation:
    """Learn the compensation of a gallery, and keep the corrections that help.

    rows: (N, d) embeddings; sources: (N,); people: (N,) number of the person, -1 if unknown
    simulations: see `simulate_sources`, of some sources

    With MIN_PEOPLE_TO_JUDGE people or more who are named in a source and in others, its correction is on if searches
    across sources become better on people whom it was not learned from (95 % interval of the paired difference above
    0). Of the corrections with and without simulation, the one that helps more is judged. With fewer people, it is on
    if the source could be simulated or the shift is at least LARGE_SHIFT.

    Of the corrected sources, those that are recognised clearly get a discriminant; see `Discriminant`.
    """
    plain, simulated = fit_compensation(rows, sources), fit_compensation(rows, sources, None, simulations)
    folds = _CrossFit(rows, sources, people, metric, plain.reference, simulations or {})
    decisions, corrections = dict[str, Decision](), dict[str, SourceCorrection]()
    discriminants = dict[str, Discriminant]()
    for name, count in zip(*np.unique(sources, return_counts=True), strict=True):
        ways = [c.corrections[name] for c in (simulated, plain) if name in c.corrections]
        decision, correction = _decide(ways, str(name), int(count), folds)
        if decision.is_on and correction is not None:
            corrections[str(name)] = correction
            discriminant = folds.fit_discriminant(str(name))
            if discriminant is not None:
                discriminants[str(name)] = discriminant
                decision = replace(decision, recognised=discriminant.recognised)
        decisions[str(name)] = decision
    compensation = replace(plain, corrections=corrections, discriminants=discriminants)
    return JudgedCompensation(compensation, decisions)


def _decide(
    ways: Sequence[SourceCorrection], source: str, faces: int, folds: "_CrossFit"
) -> tuple[Decision, SourceCorrection | None]:
    """Choose a correction, and decide whether it is on.

    ways: with simulation where there is one, and without; empty if there is no correction
    """
    if not ways:
        return Decision(False, "reference" if source == folds.reference else "too few faces", faces), None
    chosen, comparison = ways[0], folds.compare(source, is_simulated=True)
    if comparison is not None and chosen.degradation is not None:
        without = folds.compare(source, is_simulated=False)
        if without is not None and without.difference.value > comparison.difference.value:
            chosen, comparison = ways[1], without
    reason: Reason
    if comparison is not None:
        is_on = bool(comparison.difference.low > 0)
        reason = "helps" if is_on else "does not help"
    else:
        is_on = chosen.degradation is not None or chosen.shift >= LARGE_SHIFT
        reason = "simulated" if chosen.degradation else "large shift" if is_on else "small shift"
    return Decision(is_on, reason, faces, chosen.shift, comparison, chosen.degradation), chosen


class _CrossFit:
    """Compensations learned without a part of the people, each to be measured on that part."""

    def __init__(
        self,
        rows: Rows,
        sources: Sources,
        people: Ids,
        metric: Distance,
        reference: str,
        simulations: Mapping[str, SimulatedFaces],
    ) -> None:
        self.rows, self.sources, self.people, self.metric = rows, sources, people, metric
        self.reference, self.simulations = reference, simulations
        self.fold_of_person = np.random.default_rng(0).integers(0, FOLDS, people.max(initial=0) + 1)
        self._fitted: dict[tuple[int, bool], SourceCompensation] = {}

    def compare(self, source: str, is_simulated: bool) -> Comparison | None:
        """Compare searches across the source's border with and without its correction; None with too few people.

        is_simulated: with the correction by simulation where there is one, or without simulation
        """
        crossing = self._find_crossing_faces(source)
        if len(np.unique(self.people[crossing])) < MIN_PEOPLE_TO_JUDGE:
            return None
        rng = np.random.default_rng(1)
        queries = np.sort(rng.permutation(crossing)[:MAX_QUERIES])
        others = rng.permutation(np.setdiff1d(np.arange(len(self.rows)), crossing))
        gallery = np.sort(np.concatenate([crossing, others[: max(0, MAX_GALLERY_FACES - len(crossing))]]))
        figures = [self._measure(source, queries, gallery, way) for way in (is_simulated, None)]
        return compare(figures[0], figures[1], self.people[queries].astype(np.float64))

    def fit_discriminant(self, source: str) -> Discriminant | None:
        """Learn to recognise a source, and measure it on people that were not learned from; None if it is not guessed.

        Faces without a source are guessed, so they must not be corrected themselves.
        """
        if source == NO_SOURCE or self.reference != NO_SOURCE:
            return None
        by_chance = np.random.default_rng(2).integers(0, FOLDS, len(self.rows))
        folds = np.where(self.people < 0, by_chance, self.fold_of_person[np.maximum(self.people, 0)])
        reference, own = self.sources == self.reference, self.sources == source
        return Discriminant.fit(self.rows[reference], self.rows[own], folds[reference], folds[own])

    def _find_crossing_faces(self, source: str) -> Ids:
        """Return the faces of people who are named both in this source and in another."""
        inside = (self.sources == source) & (self.people >= 0)
        outside = (self.sources != source) & (self.people >= 0)
        both = np.intersect1d(self.people[inside], self.people[outside])
        return np.flatnonzero(np.isin(self.people, both))

    def _measure(self, source: str, queries: Ids, gallery: Ids, is_simulated: bool | None) -> NDArray[np.float64]:
        """Return the average precision of each query, for the faces of its person on the other side of the border.

        is_simulated: see `compare`; None: without a correction
        """
        precisions = np.full(len(queries), np.nan)
        fold_of_query = self.fold_of_person[self.people[queries]]
        for fold in range(FOLDS):
            rows = self.rows[gallery]
            if is_simulated is not None:
                rows = self._fit_without(fold, is_simulated).keep([source]).apply(rows, self.sources[gallery])
            in_fold = fold_of_query == fold
            distances = self.metric.distances(rows[np.searchsorted(gallery, queries[in_fold])], rows)
            precisions[in_fold] = [
                self._average_precision(source, query, gallery, of_query)
                for query, of_query in zip(queries[in_fold], distances, strict=True)
            ]
        return precisions

    def _average_precision(self, source: str, query: int, gallery: Ids, distances: NDArray[np.float32]) -> float:
        """Search from one side of the border: faces of the query's person on its own side are left out.

        Other faces of that side stay, so that a search finds them if it finds the source rather than the person.
        """
        is_same_person = self.people[gallery] == self.people[query]
        is_same_side = (self.sources[gallery] == source) == (self.sources[query] == source)
        kept = ~(is_same_person & is_same_side)
        return average_precision(ranks_of(distances[kept], np.flatnonzero(is_same_person[kept])))

    def _fit_without(self, fold: int, is_simulated: bool) -> SourceCompensation:
        key = fold, is_simulated
        if key not in self._fitted:
            kept = (self.people < 0) | (self.fold_of_person[np.maximum(self.people, 0)] != fold)
            simulations = {name: one.keep(kept) for name, one in self.simulations.items()} if is_simulated else None
            self._fitted[key] = fit_compensation(self.rows[kept], self.sources[kept], self.reference, simulations)
        return self._fitted[key]

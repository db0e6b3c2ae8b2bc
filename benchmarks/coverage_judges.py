"""The designs of `benchmarks.coverage`: who calibrates, and what the intervals are compared with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from ml.calibration import ImpostorDistances, draw_impostor_pairs
from ml.calibration.rate_intervals import clopper_pearson, error_rate_interval, order_statistic_interval
from ml.distances import EUCLIDEAN, Distance
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
BLOCK_ROWS = 1000
NORMAL = 1.959964
SAMPLE_BYTES = 32 << 20
MAX_PHOTOS = 4
"""Largest number of photos per person for FNMR."""


@dataclass(frozen=True)
class CoverageOutcome:
    """One interval in one split.

    low, high: the interval, corrected for the error of the reference; ends: high / low as stated; truth: the reference
    pairs_hold: whether the former interval over pairs would have contained it
    """

    figure: str
    rate: float
    events: int
    low: float
    high: float
    ends: float
    truth: float
    pairs_hold: bool | None = None


@dataclass(frozen=True, eq=False)
class NearPairs:
    """(P,) rising distances of the nearest pairs of different people, and (P, 2) the people."""

    distances: Floats
    people: Ids


@dataclass(frozen=True, eq=False)
class PeopleSample:
    """Embedded people. rows: (N, d); people: (N,) numbered from 0 without gaps"""

    rows: Rows
    people: Ids
    metric: Distance

    @cached_property
    def photos(self) -> Ids:
        """(K,) number of photos of each person."""
        return np.bincount(self.people)

    def half(self, seed: int) -> Mask:
        return self.some(len(self.photos) // 2, seed)

    def some(self, n: int, seed: int) -> Mask:
        """Draw n people: (K,) mask."""
        chosen = np.zeros(len(self.photos), np.bool_)
        chosen[np.random.default_rng(seed).permutation(len(chosen))[:n]] = True
        return chosen

    def calibrate(self, chosen: Mask, seed: int) -> ImpostorDistances:
        """Calibrate with as many faces and pairs of these people as `gallery_calibration` uses."""
        faces = np.flatnonzero(chosen[self.people])
        dim = self.rows.shape[1]
        faces = np.random.default_rng(seed).permutation(faces)[: max(100, SAMPLE_BYTES // (4 * dim))]
        people = self.people[faces]
        pairs = draw_impostor_pairs(people, int(np.clip(2e8 / dim, 20_000, 200_000)), seed)
        return ImpostorDistances.of(self.metric.pair_distances(self.rows[faces], pairs), people[pairs])

    def near_pairs(self, share: float) -> NearPairs:
        """Return the nearest pairs of different people, about this share of all."""
        sample = draw_impostor_pairs(self.people, 20_000, 0)
        max_distance = np.quantile(self.metric.pair_distances(self.rows, sample), share)
        parts = [self._near(at, float(max_distance)) for at in range(0, len(self.rows), BLOCK_ROWS)]
        distances, people = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(distances, kind="stable")
        return NearPairs(distances[order], people[order])

    def _near(self, start: int, max_distance: float) -> tuple[Floats, Ids]:
        distances = self.metric.distances(self.rows[start : start + BLOCK_ROWS], self.rows[start:])
        first, second = np.nonzero(distances <= max_distance)
        kept = (second > first) & (self.people[first + start] != self.people[second + start])
        first, second = first[kept], second[kept]
        ends = np.stack([self.people[first + start], self.people[second + start]], axis=1)
        return distances[first, second].astype(np.float64), ends

    def rate(self, near: NearPairs, chosen: Mask, distance: float) -> tuple[float, float]:
        """Return the FMR among all pairs of these people at a distance, and its relative standard error."""
        ends = near.people[: np.searchsorted(near.distances, distance, side="right")]
        ends = ends[chosen[ends].all(axis=1)]
        photos = self.photos * chosen
        pairs_of = photos * (photos.sum() - photos).astype(np.float64)
        pairs = pairs_of.sum() / 2
        rate = len(ends) / pairs
        parts = (np.bincount(ends.ravel(), minlength=len(photos)) - rate * pairs_of) / (pairs - pairs_of)
        variance = max(np.square(parts).sum() - rate / pairs, rate / pairs)
        return float(rate), float(np.sqrt(variance) / max(rate, 1e-12))


def judge_halves(everybody: PeopleSample, near: NearPairs, rates: Sequence[float], seed: int) -> list[CoverageOutcome]:
    """Calibrate with one half; the other half is the reference, whose error widens the interval."""
    chosen, outcomes = everybody.half(seed), []
    impostors = everybody.calibrate(chosen, seed)
    for rate in rates:
        threshold = impostors.threshold(rate)
        truth, error = everybody.rate(near, ~chosen, threshold.distance)
        events = round(threshold.fmr * impostors.n)
        old = widened(threshold.fmr, *clopper_pearson(events, impostors.n), error)
        ends = threshold.high / max(threshold.low, 1e-12)
        low, high = widened(threshold.fmr, threshold.low, threshold.high, error)
        outcomes.append(CoverageOutcome("FMR", rate, events, low, high, ends, truth, old[0] <= truth <= old[1]))
    return outcomes


def judge_whole(
    everybody: PeopleSample, near: NearPairs, n: int, rates: Sequence[float], seed: int
) -> list[CoverageOutcome]:
    """Calibrate with n people; everybody, including them, is the reference."""
    chosen, outcomes = everybody.some(n, seed), []
    impostors = everybody.calibrate(chosen, seed)
    nobody_left_out, share = np.ones(len(chosen), np.bool_), n / len(chosen)
    for rate in rates:
        threshold = impostors.threshold(rate)
        truth, _ = everybody.rate(near, nobody_left_out, threshold.distance)
        events = round(threshold.fmr * impostors.n)
        low, high = within_population(impostors, threshold.fmr, threshold.distance, share)
        old_low, old_high = clopper_pearson(events, impostors.n)
        ends = threshold.high / max(threshold.low, 1e-12)
        outcomes.append(CoverageOutcome("FMR", rate, events, low, high, ends, truth, old_low <= truth <= old_high))
    return outcomes


def widened(rate: float, low: float, high: float, error: float) -> tuple[float, float]:
    """Widen an interval by the relative standard error of the reference."""
    judge = NORMAL * error
    if not rate:
        return 0.0, high * float(np.exp(judge))
    down, up = np.log(rate / low) if low else np.inf, np.log(high / rate)
    return float(rate * np.exp(-np.hypot(down, judge))), float(rate * np.exp(np.hypot(up, judge)))


def within_population(impostors: ImpostorDistances, rate: float, distance: float, share: float) -> tuple[float, float]:
    """Return the interval of the rate in a population of which the calibrating people are a share."""
    at = max(int(np.searchsorted(impostors.distances, distance, side="right")) - 1, 0)
    n = impostors.n
    effective = 1 / (1 / n + max(1 / impostors.effective[at] - 1 / n, 0) * (1 - share))
    return clopper_pearson(rate * effective, effective)


@dataclass(frozen=True, eq=False)
class JudgedSearches:
    """Searches of one gallery with one photo of each stranger and of each enrolled person, and genuine pairs.

    stranger, mate: distances of the nearest face, and of the nearest face of the same person
    genuine: distances of pairs of photos of one person, numbered by `owner`; threshold: a fixed one for these pairs
    """

    stranger: Floats
    mate: Floats
    genuine: Floats
    owner: Ids
    threshold: float

    @classmethod
    def of(cls, everybody: PeopleSample, near: NearPairs, seed: int = 0) -> "JudgedSearches":
        """Enrol half of the people with two or more photos, with all but one photo each."""
        draw, photos = np.random.default_rng(seed), everybody.photos
        several = draw.permutation(np.flatnonzero(photos > 1))
        enrolled = np.zeros(len(photos), np.bool_)
        enrolled[several[: len(several) // 2]] = True
        order = draw.permutation(len(everybody.people))
        queries = order[np.unique(everybody.people[order], return_index=True)[1]]  # one photo of each person
        gallery = np.setdiff1d(np.flatnonzero(enrolled[everybody.people]), queries)
        nearest, own = _nearest(everybody, queries, gallery)
        pairs = np.array(
            list(_genuine_pairs(everybody.people, np.flatnonzero(~enrolled & (photos > 1)), draw)), np.int64
        )
        genuine = everybody.metric.pair_distances(everybody.rows, pairs)
        threshold = float(near.distances[len(near.distances) // 40])
        return cls(nearest[~enrolled], own[enrolled], genuine, everybody.people[pairs[:, 0]], threshold)


def _nearest(everybody: PeopleSample, queries: Ids, gallery: Ids) -> tuple[Floats, Floats]:
    nearest, own = np.empty(len(queries)), np.empty(len(queries))
    for start in range(0, len(queries), BLOCK_ROWS):
        some = queries[start : start + BLOCK_ROWS]
        distances = everybody.metric.distances(everybody.rows[some], everybody.rows[gallery]).astype(np.float64)
        mates = everybody.people[some][:, None] == everybody.people[gallery][None]
        nearest[start : start + BLOCK_ROWS] = distances.min(axis=1)
        own[start : start + BLOCK_ROWS] = np.where(mates, distances, np.inf).min(axis=1)
    return nearest, own


def _genuine_pairs(people: Ids, several: Ids, draw: np.random.Generator) -> list[tuple[int, int]]:
    pairs, order = [], np.argsort(people, kind="stable")
    starts = np.searchsorted(people[order], several)
    ends = np.searchsorted(people[order], several, side="right")
    for start, end in zip(starts, ends, strict=True):
        photos = draw.permutation(order[start:end])[:MAX_PHOTOS].tolist()
        pairs += [(a, b) for i, a in enumerate(photos) for b in photos[:i]]
    return pairs


def judge_searches(searches: JudgedSearches, fpirs: Sequence[float], seed: int) -> list[CoverageOutcome]:
    """Judge FPIR at thresholds from half of the strangers, FNIR of half of the mates, FNMR of half of the people."""
    draw, outcomes = np.random.default_rng(seed), []
    strangers = draw.permutation(searches.stranger)
    strangers, judges = np.sort(strangers[: len(strangers) // 2]), strangers[len(strangers) // 2 :]
    mates = draw.permutation(searches.mate)
    mates, others = mates[: len(mates) // 2], mates[len(mates) // 2 :]
    for fpir in fpirs:
        rank = int(fpir * len(strangers) + 1e-9)
        threshold = strangers[rank - 1] if rank else np.nextafter(strangers[0], -np.inf)
        interval = order_statistic_interval(rank, len(strangers))
        outcomes.append(_searched("FPIR", fpir, rank, rank / len(strangers), interval, judges <= threshold, None))
        missed = mates > threshold
        outcomes.append(
            _searched("FNIR", fpir, int(missed.sum()), missed.mean(), error_rate_interval(missed), others > threshold)
        )
    owners = np.unique(searches.owner)
    first = np.isin(searches.owner, draw.permutation(owners)[: len(owners) // 2])
    errors, people = searches.genuine > searches.threshold, searches.owner
    interval, events = error_rate_interval(errors[first], people[first]), int(errors[first].sum())
    old = clopper_pearson(events, int(first.sum()))
    rate = errors[first].mean()
    outcomes.append(_searched("FNMR", 1e-3, events, rate, interval, errors[~first], people[~first], old))
    return outcomes


def _searched(
    figure: str,
    at: float,
    events: int,
    rate: float,
    interval: tuple[float, float],
    judges: Mask,
    people: Ids | None = None,
    old: tuple[float, float] | None = None,
) -> CoverageOutcome:
    truth = float(judges.mean())
    person = np.arange(len(judges)) if people is None else np.unique(people, return_inverse=True)[1]
    parts = np.bincount(person, judges - truth) / len(judges)
    error = float(np.sqrt(np.square(parts).sum()) / max(truth, 1e-12))
    low, high = widened(float(rate), *interval, error)
    hold = None
    if old is not None:
        old = widened(float(rate), *old, error)
        hold = old[0] <= truth <= old[1]
    return CoverageOutcome(figure, at, events, low, high, interval[1] / max(interval[0], 1e-12), truth, hold)


@dataclass(frozen=True)
class World:
    """The hierarchical Gaussian model of people.

    share: share of the variance that is between people; photos: draws the number of photos of n people
    """

    dim: int
    share: float
    photos: Callable[[np.random.Generator, int], Ids]

    def draw(self, n: int, seed: int) -> PeopleSample:
        draw = np.random.default_rng(seed)
        people = np.repeat(np.arange(n), self.photos(draw, n))
        means = draw.normal(scale=self.share**0.5, size=(n, self.dim))
        within = draw.normal(scale=(1 - self.share) ** 0.5, size=(len(people), self.dim))
        return PeopleSample((means[people] + within).astype(np.float32), people, EUCLIDEAN)

    def fmr(self, distance: float) -> float:
        return float(chi2.cdf(distance / 2, self.dim))


def judge_truth(world: World, everybody: PeopleSample, rates: Sequence[float], seed: int) -> list[CoverageOutcome]:
    """Calibrate with half of the simulated people; the true rate is known."""
    impostors, outcomes = everybody.calibrate(everybody.half(seed), seed), []
    for rate in rates:
        threshold = impostors.threshold(rate)
        truth, events = world.fmr(threshold.distance), round(threshold.fmr * impostors.n)
        old = clopper_pearson(events, impostors.n)
        ends = threshold.high / max(threshold.low, 1e-12)
        outcomes.append(
            CoverageOutcome("FMR", rate, events, threshold.low, threshold.high, ends, truth, old[0] <= truth <= old[1])
        )
    return outcomes

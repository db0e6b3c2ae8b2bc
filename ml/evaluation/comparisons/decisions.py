"""Open-set decisions: a search for somebody enrolled should name them, and a search for a stranger should name nobody.

A search names the person whose distance is smallest, where that distance lies below a threshold. The functions here
take one distance per person, so that they serve any rule that gives one: the person distance by which the service
decides (`SearchDistances.by_rule`), or the distance of a person's nearest face (`SearchDistances.of`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml import indexes
from ml.distances import Distance
from ml.errors import WrongShape
from ml.evaluation.comparisons.paired_tests import Comparison, compare
from ml.evaluation.intervals import Interval, Times, bootstrap
from ml.evaluation.retrieval import Ranked
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople, search_gallery
from ml.types import Ids, Rows

Numbers = NDArray[np.float64]

DEFAULT_FPIR = 0.01
FOLDS = 10


@dataclass(frozen=True, eq=False)
class SearchDistances:
    """Q searches of one gallery with one model. The query face itself is left out of the gallery.

    own: (Q,) distance of the query's own person, +inf if no other face of theirs is enrolled
    other: (Q,) distance of the nearest other person, +inf if there is none. Without the query's own person in the
        gallery, the same search is a stranger's, and this is the distance at which it must be rejected.
    people: (Q,) person of each query
    own_first: (Q,) whether the query's own person is the nearest; None: where `own` is below `other`. Person distances
        need this array, because they depend on the next person and cannot be compared between galleries.
    """

    own: Numbers
    other: Numbers
    people: Numbers
    own_first: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, ranked: Ranked) -> Self:
        """Use the distance of each person's nearest face."""
        return cls(ranked.mate.astype(np.float64), ranked.stranger.astype(np.float64), ranked.groups)

    @classmethod
    def by_rule(cls, rows: Rows, people: Ids, distractors: Rows, queries: Ids, metric: Distance) -> Self:
        """Use person distances, by which the service decides.

        rows: (N, d) embeddings; people: (N,) person of each; distractors: (M, d) embeddings of people who are not named
        queries: (Q,) indexes into rows
        """
        ids = np.arange(len(rows) + len(distractors))
        index = indexes.build(ids, np.concatenate([rows, distractors]), metric)
        nobody = np.full(len(distractors), -1)
        gallery = GalleryPeople.from_rows(ids, np.concatenate([people, nobody]), ids >= len(rows))
        outcomes = search_gallery(index, gallery, queries, DecisionRule())
        first = np.isfinite(outcomes.mate)
        own = np.where(first, outcomes.mate, np.finfo(np.float64).max)
        several = gallery.face_counts[outcomes.owners] > 1
        return cls(np.where(several, own, np.inf), outcomes.stranger, people[queries].astype(np.float64), first)

    @property
    def is_first(self) -> NDArray[np.bool_]:
        """(Q,) whether the query's own person is the nearest."""
        return self.own < self.other if self.own_first is None else self.own_first

    @property
    def enrolled(self) -> NDArray[np.bool_]:
        """(Q,) whether another face of the query's person is enrolled."""
        return np.isfinite(self.own)


@dataclass(frozen=True, eq=False)
class Decisions:
    """The decisions of Q searches: 1.0 for yes, 0.0 for no.

    named_rightly: (Q,) whether the search names the query's own person; NaN if no other face of theirs is enrolled
    stranger_named: (Q,) whether the same search names somebody if the query's own person is left out of the gallery
    """

    named_rightly: Numbers
    stranger_named: Numbers


def decide_searches(
    searches: SearchDistances, fpir: float = DEFAULT_FPIR, folds: int = FOLDS, seed: int = 0
) -> Decisions:
    """Decide every search at the threshold at which a share `fpir` (0..1) of strangers' searches names somebody.

    The share of searches that name the right person is 1 - FNIR at this FPIR (ISO/IEC 19795-1), with the mate at rank
    1. Strangers' searches are decided at thresholds from other people's searches, fold by fold: with a threshold from
    all searches, the share of strangers named would equal `fpir` by construction. Raises WrongShape without searches.
    """
    if not len(searches.other):
        raise WrongShape("searches", "one or more", 0)
    limit = _limit(searches.other, fpir)
    right = searches.is_first & (searches.own < limit)
    named = np.zeros(len(searches.other))
    for inside in _folds(searches.people, folds, seed):
        named[inside] = searches.other[inside] < _limit(searches.other[~inside], fpir)
    return Decisions(np.where(searches.enrolled, right.astype(np.float64), np.nan), named)


def rate_named_rightly(searches: SearchDistances, fpir: float = DEFAULT_FPIR, *, seed: int = 0) -> Interval:
    """Return the share of searches for enrolled people that name them, with a bootstrap interval over people.

    Each resample chooses its own threshold. NaN if nobody has two enrolled faces. Raises WrongShape without searches.
    """
    value = _mean(decide_searches(searches, fpir).named_rightly)
    people, member = np.unique(searches.people, return_inverse=True)
    shares = _shares(searches, member, fpir)
    interval = bootstrap(lambda times: shares(times)[:, None], len(people), seed=seed)[0]
    return Interval(value, min(interval.low, value), max(interval.high, value))


def compare_named_rightly(
    first: SearchDistances, second: SearchDistances, fpir: float = DEFAULT_FPIR, *, seed: int = 0
) -> Comparison:
    """Compare `rate_named_rightly` of two models on the same searches: the second minus the first.

    The interval resamples people, and each resample chooses both thresholds anew, so it includes the uncertainty of the
    thresholds. p comes from the permutation test at the thresholds of all searches.
    """
    before, after = (decide_searches(s, fpir).named_rightly for s in (first, second))
    plain = compare(after, before, first.people, seed=seed)
    people, member = np.unique(first.people, return_inverse=True)
    shares = [_shares(s, member, fpir) for s in (first, second)]

    def difference(times: Times) -> Numbers:
        return np.asarray((shares[1](times) - shares[0](times))[:, None], np.float64)

    interval, value = bootstrap(difference, len(people), seed=seed)[0], plain.difference.value
    return Comparison(Interval(value, min(interval.low, value), max(interval.high, value)), plain.p, plain.groups)


def _mean(values: Numbers) -> float:
    kept = values[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else float("nan")


def _limit(others: Numbers, fpir: float) -> float:
    """Return the threshold below which at most a share `fpir` of strangers' searches lies."""
    allowed = int(fpir * len(others) + 1e-9)
    return float(np.partition(others, allowed)[allowed]) if allowed < len(others) else np.inf


def _folds(people: Numbers, folds: int, seed: int) -> list[NDArray[np.bool_]]:
    """Split the searches into folds of whole people; at most one fold per person. Returns a (Q,) mask of each fold."""
    numbers, member = np.unique(people, return_inverse=True)
    count = min(folds, len(numbers))
    if count < 2:
        return []
    part = np.random.default_rng(seed).permutation(len(numbers)) % count
    return [part[member] == f for f in range(count)]


def _shares(searches: SearchDistances, member: Ids, fpir: float) -> Callable[[Times], Numbers]:
    """Return a function from (R, people) bootstrap counts to the (R,) shares of searches that name the right person."""
    order = np.argsort(searches.other, kind="stable")
    strangers, known = member[order], np.flatnonzero(searches.enrolled)
    mates = member[known]
    nearer = np.searchsorted(searches.other[order], searches.own[known], side="right")
    first = searches.is_first[known]

    def shares(times: Times) -> Numbers:
        named = np.concatenate([np.zeros((len(times), 1)), np.cumsum(times[:, strangers], axis=1)], axis=1)
        weights = times[:, mates]
        right = first & (named[:, nearer] <= fpir * named[:, -1:] + 1e-9)
        with np.errstate(invalid="ignore"):
            return np.asarray((weights * right).sum(1) / weights.sum(1), np.float64)

    return shares

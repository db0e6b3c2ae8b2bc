"""Compare two models on the same searches: the metrics of each, and the paired differences."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ml.errors import Corrupt, WrongShape
from ml.evaluation.comparisons.decisions import (
    SearchDistances,
    compare_named_rightly,
    decide_searches,
    rate_named_rightly,
)
from ml.evaluation.comparisons.paired_tests import Comparison, compare
from ml.evaluation.intervals import Interval, bootstrap_mean, bootstrap_rate
from ml.evaluation.retrieval import Ranked, average_precisions, n_call

Values = NDArray[np.float64]

MAP, FIRST, TENTH = "mAP", "1-call@1", "1-call@10"
NAMED, STRANGERS = "named_rightly", "strangers_named"
PAIRS = "labelled_pairs"
METRICS = (MAP, FIRST, TENTH, NAMED, STRANGERS, PAIRS)


@dataclass(frozen=True)
class Difference:
    """The candidate's value minus the baseline's, its 95 % interval over people, and p of the permutation test."""

    value: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, comparison: Comparison) -> Self:
        """Take over the interval and p of a comparison."""
        return cls(**asdict(comparison.difference), p=comparison.p)


@dataclass(frozen=True)
class ModelComparison:
    """The metrics of a baseline and a candidate on the same searches or labelled pairs. Rates are 0..1.

    baseline, candidate: value of each metric with its 95 % interval over people; `baseline` is empty if no model serves
    difference: candidate minus baseline for each metric; empty without a baseline. Higher is better, except for
        `strangers_named`.
    people: number of people with a face to be found, or with labelled faces; searches: number of queries
    gallery: number of faces ranked in each search, distractors included; pairs: number of labelled pairs
    chance: 1-call@1 of a random ranking; 0 if nothing was ranked
    identical: whether both models compare the measured faces alike, to the last bit
    """

    baseline: Mapping[str, Interval]
    candidate: Mapping[str, Interval]
    difference: Mapping[str, Difference]
    people: int = 0
    searches: int = 0
    gallery: int = 0
    pairs: int = 0
    chance: float = 0.0
    identical: bool = False
    labellers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For each labeller: the number of `pairs`, and how many of them `baseline` and `candidate` decided correctly."""

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Restore what `to_dict` returned, through JSON or not. Raises Corrupt."""
        try:
            figures = {
                side: {name: _interval(stored) for name, stored in state[side].items()}
                for side in ("baseline", "candidate")
            }
            difference = {name: Difference(**_numbers(stored)) for name, stored in state["difference"].items()}
            return cls(**dict(state) | figures | {"difference": difference})
        except (KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"this is not a comparison of two models: {error}") from error


def compare_rankings(
    baseline: Ranked | None,
    candidate: Ranked,
    *,
    open_set: bool = True,
    searches: tuple[SearchDistances | None, SearchDistances | None] = (None, None),
) -> ModelComparison:
    """Compare two models' rankings of the same gallery for the same queries.

    Intervals and tests treat all queries of a person together.
    open_set: whether to compare open-set decisions, which only make sense for the task identity
    searches: the distances for the decisions of baseline and candidate; default: the distances of nearest faces
    Raises WrongShape if no query has a relevant face in the gallery.
    """
    mated = candidate.mated
    if not mated.any():
        raise WrongShape("queries", "some with a relevant face in the gallery", 0)
    now = (searches[1] or SearchDistances.of(candidate)) if open_set else None
    figures, differences = [_figures(candidate, now)], {}
    if baseline is not None:
        before = (searches[0] or SearchDistances.of(baseline)) if open_set else None
        figures.insert(0, _figures(baseline, before))
        differences = _differences(baseline, candidate, before, now)
    shares = [len(r) / max(1, candidate.gallery) for r in candidate.ranks if len(r)]
    return ModelComparison(
        figures[0] if baseline is not None else {},
        figures[-1],
        differences,
        people=len(np.unique(candidate.groups[mated])),
        searches=len(candidate.ranks),
        gallery=candidate.gallery,
        chance=float(np.mean(shares)),
        identical=baseline is not None and _are_identical(baseline, candidate),
    )


def _are_identical(baseline: Ranked, candidate: Ranked) -> bool:
    """Whether all measured distances are equal. Then the models differ in name only."""
    measured = ((baseline.mate, candidate.mate), (baseline.stranger, candidate.stranger))
    return all(np.array_equal(before, after) for before, after in measured)


def _figures(ranked: Ranked, searches: SearchDistances | None) -> dict[str, Interval]:
    intervals = {
        MAP: bootstrap_mean(average_precisions(ranked), ranked.groups),
        FIRST: bootstrap_rate(n_call(ranked, 1), ranked.groups),
        TENTH: bootstrap_rate(n_call(ranked, 10), ranked.groups),
    }
    if searches is not None:
        intervals[NAMED] = rate_named_rightly(searches)
        intervals[STRANGERS] = bootstrap_rate(decide_searches(searches).stranger_named, ranked.groups)
    return intervals


def _differences(
    baseline: Ranked, candidate: Ranked, before: SearchDistances | None, after: SearchDistances | None
) -> dict[str, Difference]:
    def of(now: Values, before: Values) -> Difference:
        return Difference.of(compare(now, before, candidate.groups))

    differences = {MAP: of(average_precisions(candidate), average_precisions(baseline))}
    differences |= {name: of(n_call(candidate, k), n_call(baseline, k)) for name, k in ((FIRST, 1), (TENTH, 10))}
    if before is not None and after is not None:
        differences[NAMED] = Difference.of(compare_named_rightly(before, after))
        differences[STRANGERS] = of(decide_searches(after).stranger_named, decide_searches(before).stranger_named)
    return differences


def _interval(stored: Mapping[str, Any]) -> Interval:
    return Interval(**_numbers(stored))


def _numbers(stored: Mapping[str, Any]) -> dict[str, float]:
    """Convert null back to NaN, which JSON lacks."""
    return {name: float("nan") if value is None else value for name, value in stored.items()}

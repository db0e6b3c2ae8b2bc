"""Two models side by side: what each reaches on the same searches, and the paired differences."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ml.errors import Corrupt, WrongShape
from ml.evaluation.comparisons.decisions import (
    SearchDistances,
    compare_named_rightly,
    rate_named_rightly,
    strangers_named,
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
    """The candidate's figure less the baseline's, its 95 % interval over people, and the permutation test's p."""

    value: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, comparison: Comparison) -> Self:
        """Take the interval and p of a comparison."""
        return cls(**asdict(comparison.difference), p=comparison.p)


@dataclass(frozen=True)
class ModelComparison:
    """What a baseline and a candidate reach on the same searches or labelled pairs. Shares are 0..1.

    baseline, candidate: by metric, with 95 % intervals over people; `baseline` is empty where no model serves yet
    difference: by metric, candidate less baseline; empty without a baseline. More is better, but for `strangers_named`
    people: who have something to be found, or whose faces were labelled; searches: faces that searched
    gallery: faces that each search was ranked among, distractors included
    chance: 1-call@1 of a random order, 0 where nothing was ranked
    """

    baseline: Mapping[str, Interval]
    candidate: Mapping[str, Interval]
    difference: Mapping[str, Difference]
    people: int = 0
    searches: int = 0
    gallery: int = 0
    pairs: int = 0
    chance: float = 0.0
    labellers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """labeller -> `pairs` of theirs that were judged, and how many the `baseline` and the `candidate` got right"""

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote, also after JSON. Raises Corrupt."""
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
    """Two models' rankings of the same gallery for the same queries. Intervals and tests take people whole.

    open_set: whether the default decision has a meaning: where the task is who somebody is
    searches: what the decision goes by, of the baseline and of the candidate; else the distances of nearest faces
    Raises WrongShape where no query has anything to find.
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
    )


def _figures(ranked: Ranked, searches: SearchDistances | None) -> dict[str, Interval]:
    intervals = {
        MAP: bootstrap_mean(average_precisions(ranked), ranked.groups),
        FIRST: bootstrap_rate(n_call(ranked, 1), ranked.groups),
        TENTH: bootstrap_rate(n_call(ranked, 10), ranked.groups),
    }
    if searches is not None:
        intervals[NAMED] = rate_named_rightly(searches)
        intervals[STRANGERS] = bootstrap_rate(strangers_named(searches).stranger_named, ranked.groups)
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
        differences[STRANGERS] = of(strangers_named(after).stranger_named, strangers_named(before).stranger_named)
    return differences


def _interval(stored: Mapping[str, Any]) -> Interval:
    return Interval(**_numbers(stored))


def _numbers(stored: Mapping[str, Any]) -> dict[str, float]:
    """JSON has no NaN: what is null is one."""
    return {name: float("nan") if value is None else value for name, value in stored.items()}

"""Compare heads on the same digits, photos or queries: figures, paired differences, and their causes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ml.evaluation.comparisons.paired_tests import Comparison, compare
from ml.evaluation.intervals import bootstrap_mean
from papers.harness.results import percent
from papers.harness.table_types import Computation, Figure, Result, Row
from papers.manifolds.head_layers import HEADS

Values = NDArray[np.float64]
ALTERED = {"qconv-inverse": "the inverse metric, which the paper does not try"}
MAX_LOSS_RATIO = 1.1
"""A head whose loss is this many times Conv's has not learned as far."""


@dataclass(frozen=True, eq=False)
class PairedScores:
    """The scores of several fits.

    values: (Q,) 0..1, higher is better, fit after fit; groups: (Q,) units of resampling; means: (S,) one per fit
    """

    values: Values
    groups: Values
    means: Values

    @classmethod
    def of(cls, results: Sequence[Result], value: Callable[[Result], Values], group: str) -> "PairedScores":
        """Read the scores. group: the array with the person or digit of each value"""
        per_fit = [np.asarray(value(r), np.float64) for r in results]
        groups = np.concatenate([r.arrays[group] for r in results]).astype(np.float64)
        return cls(np.concatenate(per_fit), groups, np.array([v.mean() for v in per_fit]))

    @property
    def figure(self) -> Figure:
        """The mean in percent, with a bootstrap interval over groups; sd is over fits."""
        sd = float(np.std(self.means, ddof=1)) if len(self.means) > 1 else float("nan")
        return percent(bootstrap_mean(self.values, self.groups), sd, len(self.means))

    def over(self, other: "PairedScores") -> Comparison:
        return compare(self.values, other.values, self.groups)


def read_correct(result: Result) -> Values:
    return 1.0 - result.arrays["wrong"]


def read_correct_flat(result: Result) -> Values:
    return 1.0 - result.arrays["wrong_flat"]


def read_recall(k: int) -> Callable[[Result], Values]:
    """Return a function that reads Recall@k of every query."""
    return lambda result: np.asarray(result.arrays["first"] <= k, np.float64)


def complement_figure(figure: Figure) -> Figure:
    """Convert an accuracy to an error, or back."""
    return Figure(100 - figure.value, 100 - figure.high, 100 - figure.low, figure.sd, figure.draws)


def summarise_ratios(ratios: Sequence[float]) -> Figure:
    """Return the median and the quartiles, in percent."""
    median, low, high = (100 * float(q) for q in np.quantile(ratios, [0.5, 0.25, 0.75]))
    return Figure(median, low, high)


def score_heads(
    results: Mapping[str, Sequence[Result]], value: Callable[[Result], Values], group: str
) -> dict[str, PairedScores]:
    return {head: PairedScores.of(fits, value, group) for head, fits in results.items()}


def summarise_heads(results: Mapping[str, Sequence[Result]]) -> dict[str, dict[str, float]]:
    """Return for each head the means of `axes` (effective number), `scale` (trace of M) and `loss` over its fits."""
    names = ("axes", "scale", "loss")
    return {head: {k: float(np.mean([r.record[k] for r in fits])) for k in names} for head, fits in results.items()}


def mean_axes(results: Sequence[Result]) -> Figure:
    return Figure(float(np.mean([r.record["axes"] for r in results])), draws=len(results))


def measure_matrix_gap(results: Mapping[str, Sequence[Result]], head: str) -> float:
    """Return |M - M_Conv| / |M_Conv| in percent, averaged over seeds."""
    both = zip(results[head], results["plain"], strict=True)
    return 100 * float(np.mean([_measure_relative_difference(a.arrays["matrix"], b.arrays["matrix"]) for a, b in both]))


def _measure_relative_difference(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Compute the relative difference of M = L L^T, from small products only."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    own, other, mixed = (float(np.square(x.T @ y).sum()) for x, y in ((a, a), (b, b), (a, b)))
    return float(np.sqrt(max(own + other - 2 * mixed, 0.0) / other))


@dataclass(frozen=True, eq=False)
class HeadComparison:
    """A comparison of the heads in one experiment, by head; higher is better.

    judged: scores with the axes as learned; flat: with all axes of one weight, where that was measured
    like: see `summarise_heads`; paper: the paper's gain
    matrix_gap: the difference of the M of qConv as printed from Conv's in percent; NaN where their networks differ too
    """

    title: str
    judged: Mapping[str, PairedScores]
    like: Mapping[str, Mapping[str, float]]
    computations: Mapping[str, Sequence[Computation]]
    flat: Mapping[str, PairedScores] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    matrix_gap: float = float("nan")

    def row(self, head: str) -> Row:
        """Make a row with the gain over Conv, in points."""
        gain = self.judged[head].over(self.judged["plain"])
        figure = percent(gain.difference, draws=len(self.judged[head].means))
        paper = {"gain": self.paper[head]} if head in self.paper else {}
        computations = [*self.computations[head], *self.computations["plain"]]
        name, cause = f"{self.title}: {HEADS[head].title}", _join_cause(gain, self._explain_gain(head, figure))
        return Row(
            name, {"gain": figure}, paper, cause=cause, computations=computations, differences=("gain",), claim="above",
            altered=ALTERED.get(head, ""),
        )  # fmt: skip

    def _explain_gain(self, head: str, gain: Figure) -> str:
        if gain.low <= 0 <= gain.high:
            return self._explain_equality(head)
        own, conv = self.like[head], self.like["plain"]
        if gain.high < 0 and own["loss"] > MAX_LOSS_RATIO * conv["loss"]:
            loss, scale = (
                f"{own[k]:{form}} against {conv[k]:{form}}" for k, form in (("loss", ".2f"), ("scale", ".0f"))
            )
            return f"it has not learned as far as Conv: loss {loss}, trace of M {scale}"
        axes_text = f"its distances are made of {own['axes']:.0f} axes, Conv's of {conv['axes']:.0f}"
        if not self.flat:
            return axes_text
        alone = 100 * float(self.flat["plain"].means.mean() - self.judged["plain"].means.mean())
        left = 100 * float(self.flat[head].means.mean() - self.flat["plain"].means.mean())
        return (
            f"{axes_text}; all axes of one weight alone would give Conv {alone:+.1f}, and then this head is {left:+.1f}"
        )

    def _explain_equality(self, head: str) -> str:
        if head != "qconv":
            return ""
        end = "" if np.isnan(self.matrix_gap) else f"; its M ends {self.matrix_gap:.1f} % from Conv's"
        return "as printed a step leaves plain descent at second order only" + end


def _join_cause(gain: Comparison, cause: str) -> str:
    return f"p {gain.p:.2g}" + (f"; {cause}" if cause else "")

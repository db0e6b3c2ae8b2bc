"""Verification error rates over thresholds. Smaller distances mean more alike; `distance <= threshold` accepts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.errors import WrongShape

Distances = NDArray[np.float32] | NDArray[np.float64]


def fmr(impostor: Distances, threshold: float) -> float:
    """Return the false-match rate: the share of (n,) impostor pairs that the threshold accepts."""
    return float(np.mean(impostor <= threshold))


def fnmr(genuine: Distances, threshold: float) -> float:
    """Return the false non-match rate: the share of (n,) genuine pairs that the threshold rejects."""
    return float(np.mean(genuine > threshold))


@dataclass(frozen=True, eq=False)
class Det:
    """Both error rates at rising thresholds, each (P,) float64. ROC: (fmr, 1 - fnmr)."""

    threshold: NDArray[np.float64]
    fmr: NDArray[np.float64]
    fnmr: NDArray[np.float64]

    @property
    def eer(self) -> float:
        """Equal error rate: the mean of both rates at the threshold where they are closest."""
        at = int(np.argmin(np.abs(self.fmr - self.fnmr)))
        return float((self.fmr[at] + self.fnmr[at]) / 2)

    @property
    def auc(self) -> float:
        """Area under the ROC: how often a genuine pair is nearer than an impostor pair, ties counted half."""
        return float(np.trapezoid(1 - self.fnmr, self.fmr))


def det(genuine: Distances, impostor: Distances) -> Det:
    """Compute the DET curve at every distance that occurs, starting with a threshold that accepts nothing.

    genuine: (n,), impostor: (m,) distances. Raises WrongShape if one of them is empty.
    """
    if not len(genuine) or not len(impostor):
        raise WrongShape("genuine and impostor distances", "not empty", f"{len(genuine)} and {len(impostor)}")
    threshold = np.unique(np.concatenate([genuine, impostor])).astype(np.float64)
    accepted = [np.searchsorted(np.sort(part), threshold, side="right") for part in (genuine, impostor)]
    return Det(
        np.concatenate([[-np.inf], threshold]),
        np.concatenate([[0.0], accepted[1] / len(impostor)]),
        np.concatenate([[1.0], 1 - accepted[0] / len(genuine)]),
    )


def fnmr_at(curve: Det, rates: Sequence[float]) -> list[float]:
    """Return, for each rate, FNMR at the largest threshold whose FMR does not exceed it; 1 if nothing is accepted."""
    return [float(curve.fnmr[np.searchsorted(curve.fmr, rate + 1e-12, side="right") - 1]) for rate in rates]


def thinned(curve: Det, points: int = 101) -> Det:
    """Reduce a curve to about `points` points for plotting, evenly spread over log FMR and including both ends."""
    finest = np.log10(max(curve.fmr[curve.fmr > 0].min(initial=1.0), 1e-9))
    wanted = np.concatenate([[0.0], np.logspace(finest, 0, points - 1)])
    at = np.unique(np.searchsorted(curve.fmr, wanted, side="right") - 1)
    return Det(curve.threshold[at], curve.fmr[at], curve.fnmr[at])


def threshold_at_fmr(impostor: Distances, rate: float) -> float:
    """Return the largest threshold whose FMR on (n,) impostor distances is at most `rate`; -inf if there is none."""
    ordered = np.sort(impostor).astype(np.float64)
    allowed = int(np.floor(rate * len(ordered) + 1e-9))
    if allowed >= len(ordered):
        return float("inf")
    return float(np.nextafter(ordered[allowed], -np.inf))


def misses_at_fpir(mate: Distances, stranger: Distances, rate: float) -> NDArray[np.float64]:
    """Return (Q,) 1.0 if a search misses at a false positive identification rate of `rate`. The mean is FNIR at FPIR.

    mate: (Q,) distance of the nearest relevant face; if it is +inf (no such face), the result is NaN
    stranger: (Q,) distance of the nearest other face; each query also counts as a stranger's search
    """
    missed = (mate > threshold_at_fmr(stranger, rate)).astype(np.float64)
    missed[~np.isfinite(mate)] = np.nan
    return missed


def best_threshold(distances: Distances, same: NDArray[np.bool_]) -> float:
    """Return the threshold with the highest accuracy on (P,) pairs, midway between two distances."""
    order = np.argsort(distances, kind="stable")
    ordered, truth = distances[order].astype(np.float64), same[order]
    right = np.concatenate([[0], np.cumsum(np.where(truth, 1, -1))]) + np.count_nonzero(~truth)
    edges = np.concatenate([[ordered[0] - 1], ordered, [ordered[-1] + 1]])
    between = np.concatenate([[True], ordered[1:] > ordered[:-1], [True]])
    at = int(np.argmax(np.where(between, right, -1)))
    return float((edges[at] + edges[at + 1]) / 2)


def accuracy(distances: Distances, same: NDArray[np.bool_], threshold: float) -> float:
    """Return the share of (P,) pairs that the threshold decides correctly."""
    return float(np.mean((distances <= threshold) == same))


@dataclass(frozen=True)
class Folds:
    """Verification accuracy over folds: mean, standard deviation (n - 1), and standard error = SD / sqrt(folds)."""

    mean: float
    sd: float
    se: float


def over_folds(accuracies: NDArray[np.float64]) -> Folds:
    """Return mean, standard deviation and standard error of (F,) accuracies."""
    sd = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else 0.0
    return Folds(float(np.mean(accuracies)), sd, sd / len(accuracies) ** 0.5)

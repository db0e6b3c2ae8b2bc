"""Confidence intervals of error rates whose trials share people.

A false-match rate is a mean over pairs, and pairs that share a person err together, so n pairs say less than n
independent trials. Here the variance of such a rate is estimated over people, and turned into an *effective number* of
independent trials: the number that would leave as much variance. The exact binomial interval of that many trials then
holds for rates near 0 too, where a normal approximation does not. This is how Korn and Graubard (1998) treat surveys.

The variance of a mean over pairs is the part of each person (the first projection of Hoeffding's decomposition; Bickel
et al. call it the user effect) and the part of each pair. The person part is the delete-one-person jackknife, less what
that counts twice, which is the part of the pairs (Fafchamps and Gubert 2007; Aronow, Samii and Assenova 2015).
"""

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.errors import WrongShape
from ml.types import Ids

CONFIDENCE = 0.95
MAX_END_RATIO = 3.0
"""Evidence is enough if the upper end of an interval is at most this many times the lower end."""
MIN_EVENTS = 100
"""With fewer events, the variance between people is extrapolated, because too few events fall on each person."""
TAIL_EXPONENT = 0.5
"""The squared relative spread of people's own rates grows as rate ** -TAIL_EXPONENT towards small rates. Measured:
0.35 to 0.7 between rates of 1e-2 and 1e-4 on LFW and CelebA (docs/research/evaluation.md)."""

Floats = NDArray[np.float64]


def clopper_pearson(errors: float, n: float) -> tuple[float, float]:
    """Return the exact 95 % interval of a rate with `errors` errors in n trials (Clopper and Pearson 1934).

    Both may be fractions, as effective numbers are.
    """
    tail = (1 - CONFIDENCE) / 2
    low = scipy.special.betaincinv(errors, n - errors + 1, tail) if errors > 0 else 0.0
    high = scipy.special.betaincinv(errors + 1, n - errors, 1 - tail) if errors < n else 1.0
    return float(low), float(high)


def is_enough(low: float, high: float) -> bool:
    """Whether an interval is narrow enough for decisions: its ends differ by at most a factor `MAX_END_RATIO`."""
    return low > 0 and high <= MAX_END_RATIO * low


def error_rate_interval(errors: NDArray[np.bool_], people: Ids | None = None) -> tuple[float, float]:
    """Return the 95 % interval of an error rate, such as FNMR, FNIR, or FPIR at a fixed threshold.

    errors: (n,) whether each trial failed; people: (n,) person of each trial; None: everybody has one trial
    Raises WrongShape if there is no trial.
    """
    n = len(errors)
    if not n:
        raise WrongShape("errors", "one trial or more", 0)
    rate = float(np.mean(errors))
    effective = float(n) if people is None else effective_trials(errors, people)
    return clopper_pearson(rate * effective, effective)


def effective_trials(errors: NDArray[np.bool_], people: Ids) -> float:
    """Return the number of independent trials that would be as informative as these (n,) trials of repeated people.

    It lies between the effective number of people, (sum of trials)^2 / sum of squared trials, and n.
    """
    person = np.unique(people, return_inverse=True)[1]
    trials = np.bincount(person).astype(np.float64)
    n, rate = len(errors), float(np.mean(errors))
    fewest = float(n**2 / np.square(trials).sum())
    independent = rate * (1 - rate) / n
    if not independent or len(trials) < 2:
        return fewest
    parts = np.square((np.bincount(person, errors) - rate * trials) / (n - trials))
    total, fourths = parts.sum(keepdims=True), np.square(parts).sum(keepdims=True)
    inflated = float((_student_factor(total, fourths, len(trials)) * total)[0])
    return float(np.clip(rate * (1 - rate) / max(inflated, independent), fewest, n))


def order_statistic_interval(rank: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of the true rate at the rank-th smallest of n independent distances.

    For continuous distances this rate follows Beta(rank, n - rank + 1), whatever their distribution (Wilks 1941), so
    the interval is exact. It serves for FPIR at a threshold that `rank` of n strangers' searches pass, where each
    stranger searches once. With rank 0 the threshold lies just below all distances. Raises WrongShape.
    """
    if not 0 <= rank <= n or not n:
        raise WrongShape("rank", f"0 to {n}, of at least one distance", rank)
    tail = (1 - CONFIDENCE) / 2
    low = scipy.special.betaincinv(rank, n - rank + 1, tail) if rank else 0.0
    return float(low), float(scipy.special.betaincinv(max(rank, 1), n - max(rank, 1) + 1, 1 - tail))


def leave_one_out_interval(false_positives: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of FPIR from leave-one-out searches: each of n people searches without their own faces.

    The threshold is either fixed, or set so that `false_positives` searches find somebody. Two people who look alike
    find each other, so false positives come in pairs, and n searches are only as informative as n / 2 searches of
    strangers. A decision rule with a margin to the second person weakens this dependence. Raises WrongShape.
    """
    if not 0 <= false_positives <= n or not n:
        raise WrongShape("false_positives", f"0 to {n}, of at least one search", false_positives)
    return clopper_pearson(false_positives / 2, n / 2)


def trials_needed(rate: float, max_ratio: float = MAX_END_RATIO) -> int:
    """Return the number of independent trials for which the ends of this rate's interval differ by at most `max_ratio`.

    This is about 15 / rate for a factor of 3. Trials are, for example, strangers' searches. Raises WrongShape.
    """
    if not 0 < rate <= 1 or max_ratio <= 1:
        raise WrongShape("rate", "above 0 and at most 1, and a ratio above 1", (rate, max_ratio))
    too_few, enough = 1, 2
    while not _within(rate, enough, max_ratio):
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if _within(rate, middle, max_ratio) else (middle, enough)
    return enough


def _within(rate: float, n: int, max_ratio: float) -> bool:
    low, high = clopper_pearson(rate * n, n)
    return low > 0 and high <= max_ratio * low


def effective_pairs(people: Ids, ranks: Ids | None = None) -> Floats:
    """Return the effective number of independent pairs for the rate at some distances.

    people: (P, 2) numbers of the two people of each pair, in rising order of the pairs' distances
    ranks: (R,) the distances, counted from 1 in this order; None: all, 1 to P
    Returns (R,): the entry of rank k is for the rate k / P. Above 0 and at most P.
    """
    n = len(people)
    first, second = people.T
    alone = people.max() + 1 + np.arange(n)  # a pair within one person has no second person, so it gets a unique one
    person = np.unique([first, np.where(first == second, alone, second)], return_inverse=True)[1].reshape(2, n).T
    pairs_of = np.bincount(person.ravel()).astype(np.float64)
    fewest = max(1.0, 1 / (2 * np.square(pairs_of).sum() / pairs_of.sum() ** 2 + 1 / n))
    if pairs_of.max() >= n:  # one person is in every pair: the variance over people is unknown
        return np.full(n if ranks is None else len(ranks), fewest)
    chosen = np.arange(n) if ranks is None else np.asarray(ranks) - 1
    rates = np.arange(1, n + 1) / n
    part, fourths, twice = _variances(person, pairs_of)
    independent = rates * (1 - rates) / n
    between = (_extrapolated(np.maximum(part - twice - independent, 0) / rates**2) * rates**2)[chosen]
    held = np.maximum(chosen, _anchor(n) - 1)  # at distances with few pairs, the factor of the first one with enough
    inflated = independent[chosen] + _student_factor(part[held], fourths[held], len(pairs_of)) * between
    rates = rates[chosen]
    effective = np.divide(rates * (1 - rates), inflated, out=np.zeros(len(chosen)), where=inflated > 0)
    return np.clip(effective, fewest, n)


def _variances(people: Ids, pairs_of: Floats) -> tuple[Floats, Floats, Floats]:
    """Estimate the variance of the share of (P, 2) pairs up to each distance.

    Returns (P,) the jackknife over people, (P,) the sum over people of the squares of their parts of it, and (P,) what
    the jackknife counts twice. pairs_of: (K,) number of pairs of each person.

    A person with n pairs, y of them near, contributes ((y - n rate) / (P - n))^2. The sums over people of y^2, y n, ...
    grow by a simple amount with each further pair, so one pass computes them for all distances.
    """
    size = len(people)
    rate = np.arange(1, size + 1) / size
    weight = 1 / (size - pairs_of) ** 2
    near, n, w = _rank_within(people.ravel()).reshape(-1, 2), pairs_of[people], weight[people]

    def risen(power: int, other: int, weights: Floats) -> Floats:
        """Return (P,) the sum over people of weight * y^power * n^other, up to each distance."""
        more = near**power - (near - 1) ** power
        return np.asarray(np.cumsum((weights * more * n**other).sum(1)), np.float64)

    squares = risen(2, 0, w) - 2 * rate * risen(1, 1, w) + rate**2 * (weight * pairs_of**2).sum()
    fourths = (
        risen(4, 0, w**2)
        - 4 * rate * risen(3, 1, w**2)
        + 6 * rate**2 * risen(2, 2, w**2)
        - 4 * rate**3 * risen(1, 3, w**2)
        + rate**4 * (weight**2 * pairs_of**4).sum()
    )
    codes = people.min(1) * len(pairs_of) + people.max(1)
    together = np.unique(codes, return_inverse=True)[1]
    pairs, met = np.bincount(together).astype(np.float64), _rank_within(together)
    twice = np.cumsum(2 * met - 1) - 2 * rate * np.cumsum(pairs[together]) + rate**2 * np.square(pairs).sum()
    return squares, fourths, twice / size**2


def _rank_within(groups: Ids) -> Floats:
    """Return (n,) the position of each element within its group, counted from 1."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    ranks = np.empty(len(groups))
    ranks[order] = np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)])) + 1
    return ranks


def _extrapolated(spread: Floats) -> Floats:
    """Extrapolate the (P,) squared relative spread between people to distances with few pairs; it is never lowered."""
    anchor = _anchor(len(spread))
    grown = spread[anchor - 1] * (anchor / np.arange(1, anchor + 1)) ** TAIL_EXPONENT
    extrapolated = spread.copy()
    extrapolated[:anchor] = np.maximum(spread[:anchor], grown)
    return extrapolated


def _anchor(pairs: int) -> int:
    """Return the rank of the first distance with enough pairs to estimate the variance between people."""
    return max(1, min(MIN_EVENTS, pairs // 4))


def _student_factor(squares: Floats, fourths: Floats, people: int) -> Floats:
    """Return the (R,) squared ratios of Student's and the normal quantile, by which estimated variances are widened.

    squares, fourths: (R,) sums over people of the second and fourth powers of their parts. The degrees of freedom are
    Satterthwaite's, 2 V^2 / Var(V): few if most of the variance comes from few people.
    """
    doubt = np.maximum(fourths - squares**2 / people, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = np.clip(np.nan_to_num(2 * squares**2 / doubt, nan=people, posinf=1e9), 1, max(people, 1))
    tail = (1 + CONFIDENCE) / 2
    return np.asarray((scipy.special.stdtrit(freedom, tail) / scipy.special.ndtri(tail)) ** 2, np.float64)

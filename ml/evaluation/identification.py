"""Open-set identification error rates: FNIR at FPIR."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.errors import WrongShape
from ml.evaluation.intervals import RESAMPLES, Figures, Interval, Times, bootstrap, widen_at_bounds
from ml.evaluation.verification import Distances

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Probes:
    """Searches of one gallery with one model.

    mate: (Q,) distance of the nearest face of the probe's own person; +inf if there is none (such probes are left out)
    stranger: (S,) distance of the nearest face, for probes of people who are not enrolled; +inf if the gallery is empty
    mate_people, stranger_people: (Q,) and (S,) person of each probe
    ranks: (Q,) rank of the nearest mate; needed only if mates count within the first ranks alone
    """

    mate: Distances
    stranger: Distances
    mate_people: Numbers
    stranger_people: Numbers
    ranks: NDArray[np.int64] | None = None


def fnir(
    parts: Sequence[Probes],
    rates: Sequence[float],
    *,
    within: int | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Interval, ...]:
    """Return FNIR at each FPIR of `rates` (0..1), as defined in ISO/IEC 19795-1.

    This is the share of searches for enrolled people that miss, at the threshold at which a share FPIR of the searches
    for strangers finds somebody. Each of the `parts` has its own threshold.
    within: if given, a mate beyond this rank counts as missed at any threshold

    Intervals resample people, and each resample chooses its own thresholds, so they include the uncertainty of the
    thresholds. If nobody or everybody is missed, the interval is Clopper and Pearson's, with as many trials as people
    are enrolled. Raises WrongShape if there are no probes of either kind.
    """
    known = [np.isfinite(p.mate) for p in parts]
    if not any(k.any() for k in known) or not all(len(p.stranger) for p in parts):
        raise WrongShape("probes", "some enrolled and some strangers", "none of one kind")
    people = np.unique(
        np.concatenate([n for p, k in zip(parts, known, strict=True) for n in (p.mate_people[k], p.stranger_people)])
    )
    missed = [_missed(p, k, people, rates, within) for p, k in zip(parts, known, strict=True)]

    def figures(times: Times) -> Numbers:
        counted = np.sum([part(times) for part in missed], axis=0)
        with np.errstate(invalid="ignore"):
            return np.asarray(counted[:, 1:] / counted[:, :1], np.float64)

    intervals = bootstrap(figures, len(people), resamples=resamples, seed=seed)
    enrolled = len(np.unique(np.concatenate([p.mate_people[k] for p, k in zip(parts, known, strict=True)])))
    return tuple(widen_at_bounds(one, enrolled) for one in intervals)


def _missed(
    probes: Probes, known: NDArray[np.bool_], people: Numbers, rates: Sequence[float], within: int | None
) -> Figures:
    """Return a function from bootstrap counts to (R, 1 + rates): the number of mated searches, and of misses."""
    order = np.argsort(probes.stranger, kind="stable")
    strangers = np.searchsorted(people, probes.stranger_people[order])
    mates = np.searchsorted(people, probes.mate_people[known])
    nearer = np.searchsorted(probes.stranger[order], probes.mate[known], side="right")
    hidden = np.zeros(len(mates), bool)
    if within is not None and probes.ranks is not None:
        hidden = probes.ranks[known] > within

    def figures(times: Times) -> Numbers:
        cumulative = np.concatenate([np.zeros((len(times), 1)), np.cumsum(times[:, strangers], axis=1)], axis=1)
        weights, alarms, total = times[:, mates], cumulative[:, nearer], cumulative[:, -1:]
        counted = [(weights * (hidden | (alarms > rate * total + 1e-9))).sum(1) for rate in rates]
        return np.stack([weights.sum(1), *counted], axis=1)

    return figures

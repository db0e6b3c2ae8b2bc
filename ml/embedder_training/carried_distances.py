"""Carry distances of the fit without the held-out people over to the fit on everybody, which serves.

Each fit has a scale of its own. How the two differ is seen in people whom both have learned from.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_COMPARED = 50
"""With fewer distances under both fits, their scales cannot be compared."""


def carry_over(distances: Floats, before: Floats, after: Floats, shares: Sequence[float]) -> Floats | None:
    """Carry (S,) distances of one fit over to another, by (Q,) distances between the same faces under both.

    For each of the shares (0 to 0.5), a line maps the quantile there, and the median, of the one fit to those of the
    other. Where no distance is negative, another one maps 0 and the median: if the other fit keeps the nearest learned
    people farther apart, strangers do not move away with them. The strictest line counts, by which a stranger comes
    nearest. Infinite distances stay so.
    Returns None where too few finite distances are compared, or where they are all alike.
    """
    is_finite = np.isfinite(before) & np.isfinite(after)
    if is_finite.sum() < MIN_COMPARED:
        return None
    lows, lows_after = np.quantile(before[is_finite], shares), np.quantile(after[is_finite], shares)
    median, median_after = np.median(before[is_finite]), np.median(after[is_finite])
    if (lows >= median).any() or (lows_after >= median_after).any():
        return None
    slopes = (median_after - lows_after) / (median - lows)
    nearest: Floats = (lows_after + slopes * (distances[:, None] - lows)).min(axis=1)
    if min(before.min(), after.min()) < 0:
        return nearest
    return np.minimum(nearest, distances * (median_after / median))

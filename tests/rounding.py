"""Bounds for the difference that rounding makes between two computations of the same values."""

import numpy as np
from numpy.typing import DTypeLike

CONFIDENCE = 4
"""Standard deviations that an error may reach. A normal error exceeds four in 6 of 100,000 cases."""


def rounding(terms: int, *, steps: int = 1, dtype: DTypeLike = np.float32) -> float:
    """The largest relative difference that rounding explains between two computations of the same sums of products.

    The order of the terms, fused multiplication and the block size change how a sum is rounded. If rounding errors are
    independent with mean 0, the error of a sum of n products has a standard deviation of at most sqrt(n) eps/2 times
    the size of its terms (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, theorem 2.4). Two such sums differ by at most
    twice that. The errors of the steps of a descent add up in the same way, if the descent does not amplify them.

    terms: number of terms of each sum; steps: number of sums of which each depends on the one before
    """
    return CONFIDENCE * float((terms * steps) ** 0.5 * np.finfo(dtype).eps)

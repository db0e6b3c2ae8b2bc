"""How far two computations of one thing may lie apart."""

import numpy as np
from numpy.typing import DTypeLike

CONFIDENCE = 4
"""Errors beyond so many standard deviations do not happen (6 in 100,000 for a normal error)."""


def rounding(terms: int, *, steps: int = 1, dtype: DTypeLike = np.float32) -> float:
    """The relative difference that rounding explains between two ways to compute the same sums of products.

    Another order of the terms, a fused multiplication or another block size round differently. A sum of n products is
    off by sqrt(n) eps/2 or less, times the size of its terms, if the rounding errors are independent with mean 0
    (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, theorem 2.4); two of them differ by twice as much at most. Steps of
    a descent that does not amplify errors add theirs up in the same way.

    terms: of each sum; steps: sums that follow from one another
    """
    return CONFIDENCE * float((terms * steps) ** 0.5 * np.finfo(dtype).eps)

"""Check the scores that a fusion takes."""

import numpy as np
from numpy.typing import NDArray

from ml.errors import NotFinite, WrongShape

Scores = NDArray[np.float64]


def checked(scores: Scores, same: NDArray[np.bool_] | None = None, systems: int | None = None) -> Scores:
    """Return (P, S) scores as float64.

    Raises WrongShape if they are not (P, systems), or if `same` is not (P,); NotFinite.
    """
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or (systems is not None and scores.shape[1] != systems):
        raise WrongShape("scores", f"(P, {'S' if systems is None else systems})", scores.shape)
    if same is not None and same.shape != scores.shape[:1]:
        raise WrongShape("same", f"({len(scores)},)", same.shape)
    if not np.isfinite(scores).all():
        raise NotFinite("a score")
    return scores

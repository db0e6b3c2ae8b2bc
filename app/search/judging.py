"""What a distance says of a match: how alike, how probable, and whether it passes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.scores import Scores
from app.errors import Conflict
from app.search.schemas import Limit, Score


@dataclass(frozen=True)
class Line:
    """What matches must keep to. cut: whether those beyond are left out (it was asked for) or only told so."""

    similarity: float | None
    distance: float | None
    cut: bool
    told: Limit | None

    def passed(self, distances: NDArray[np.float32], similarities: NDArray[np.float64]) -> list[bool | None]:
        if self.similarity is not None:
            return list((similarities >= self.similarity).tolist())
        if self.distance is not None:
            return list((distances <= self.distance).tolist())
        return [None] * len(distances)


def line(scores: Scores, asked_fmr: float | None, similarity: float | None = None) -> Line:
    """Raises Conflict where a false-match rate is asked of a deployment that was not calibrated."""
    if similarity is not None:
        far = scores.distance(similarity)
        limit = Limit(distance=far, similarity=similarity, fmr=None, low=None, high=None, enough=None)
        return Line(similarity, None, True, limit)
    found = scores.threshold(asked_fmr)
    if found is None:
        if asked_fmr is not None:
            raise Conflict(
                "no false-match rate is known here yet: more faces, and subjects with two or more, are needed",
                code="NotCalibrated",
            )
        return Line(None, None, False, None)
    at = float(scores.similarity(np.array([found.distance], np.float32))[0])
    told = Limit(
        distance=found.distance, similarity=at, fmr=found.fmr, low=found.low, high=found.high, enough=found.enough
    )
    return Line(None, found.distance, asked_fmr is not None, told)


def scored(scores: Scores, drawn: Line, distances: NDArray[np.float32]) -> list[Score]:
    """What each of (n,) distances means."""
    similar, probable, false = scores.similarity(distances), scores.probability(distances), scores.fmr(distances)
    blank: list[None] = [None] * len(distances)
    columns = zip(
        distances.tolist(),
        similar.tolist(),
        blank if probable is None else probable.tolist(),
        blank if false is None else false.tolist(),
        drawn.passed(distances, similar),
        strict=True,
    )
    return [Score(distance=d, similarity=s, probability=p, fmr_estimate=f, passes=ok) for d, s, p, f, ok in columns]

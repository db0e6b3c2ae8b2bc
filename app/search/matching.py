"""From vectors to matches: searched, named, grouped, judged."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from app.engine.scores import Scores
from app.engine.served import Serving
from app.errors import Conflict
from app.search.asked import Asked
from app.search.naming import Named, allowed, names
from app.search.schemas import Limit, Match, Score, SubjectRef
from ml.indexes import choose
from ml.indexes.base import Found
from ml.types import Rows

SPARE = 8
GROUPED = 4
MOST_CANDIDATES = 65_536


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


@dataclass(frozen=True, eq=False)
class Hits:
    """matches of each query, and all whom the index gave that are still there; what the search cost."""

    matches: list[list[Match]]
    known: dict[int, Named]
    m: int
    fraction: float

    @property
    def named(self) -> dict[str, Named]:
        """By their face id."""
        return {known.face_id: known for known in self.known.values()}


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


def cells(serving: Serving, asked: Asked) -> int | None:
    """m: as named, or off the measured curve; None: the index's own."""
    if asked.target_recall is None and asked.max_latency_ms is None:
        return asked.m
    if not serving.facts.curve:
        return serving.index.cells if asked.target_recall is not None else None
    point = choose(serving.facts.curve, target_recall=asked.target_recall, max_latency_ms=asked.max_latency_ms)
    return point.m


def match(session: Session, serving: Serving, rows: Rows, asked: Asked, drawn: Line, but: int | None = None) -> Hits:
    """The nearest of each of (Q, dim) rows, nearest first; `but`: a face that is not to be found.

    Faces that were removed since the index was last changed are left out; then, and where groups are wanted, it looks
    further until there are as many as asked for.
    """
    among = allowed(session, serving.served.collection, asked.filter)
    m, total = cells(serving, asked), len(serving.index) if among is None else len(among)
    k = min(max(1, total), asked.limit * (GROUPED if asked.group_by else 1) + SPARE)
    while True:
        found = serving.search(rows, k, m, among)
        here = np.unique(found.ids)
        known = names(session, here[here >= 0].tolist())
        known.pop(but, None)  # type: ignore[arg-type]
        kept = [list(_kept(ids.tolist(), known, asked)) for ids in found.ids]
        if k >= min(total, MOST_CANDIDATES) or all(len(places) >= asked.limit for places in kept):
            break
        k = min(total, MOST_CANDIDATES, 4 * k)
    matches = [_judged(found, i, places, known, serving.facts, drawn) for i, places in enumerate(kept)]
    return Hits(matches, known, found.m, float(found.fraction.mean()) if len(rows) else 0.0)


def _kept(ids: list[int], known: dict[int, Named], asked: Asked) -> Iterator[int]:
    """Places in the list of the first `limit` that are known; with groups, of each subject the first."""
    seen: set[str] = set()
    left = asked.limit
    for place, pk in enumerate(ids):
        named = known.get(pk)
        if named is None or (asked.group_by and named.subject in seen):
            continue
        if named.subject is not None:
            seen.add(named.subject)
        yield place
        left -= 1
        if not left:
            return


def _judged(
    found: Found, query: int, places: list[int], known: dict[int, Named], scores: Scores, drawn: Line
) -> list[Match]:
    told = (known[pk] for pk in found.ids[query, places].tolist())
    return [
        Match(face_id=named.face_id, subject=_subject(named), role=named.role, **score)  # type: ignore[typeddict-item]
        for named, score in zip(told, scored(scores, drawn, found.distances[query, places]), strict=True)
        if score["passes"] or not drawn.cut
    ]


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


def _subject(named: Named) -> SubjectRef | None:
    return None if named.subject is None else SubjectRef(id=named.subject, external_id=named.external_id)

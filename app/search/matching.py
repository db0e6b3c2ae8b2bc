"""From vectors to matches: searched, named, grouped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from app.deps.shapes import SubjectRef
from app.engine.served import Serving
from app.search.asked import Asked
from app.search.criteria import Criteria, switched_on
from app.search.judging import Line, scored
from app.search.mixing import Mixed, nearest
from app.search.naming import Named, allowed, names
from app.search.schemas import Match
from ml.indexes import choose
from ml.indexes.base import Found
from ml.types import Rows

SPARE = 8
GROUPED = 4
MOST_CANDIDATES, MOST_MIXED = 65_536, 16_384  # of one task; of each task of a mix, whose embeddings are read again


@dataclass(frozen=True, eq=False)
class Hits:
    """matches of each query, and all whom the index gave that are still there; what the search cost.

    ms: cells probed for each task; settled: looking further would have changed nothing
    """

    matches: list[list[Match]]
    known: dict[int, Named]
    m: int
    fraction: float
    ms: tuple[int, ...] = ()
    settled: bool = True

    @property
    def named(self) -> dict[str, Named]:
        """By their face id."""
        return {known.face_id: known for known in self.known.values()}


def cells(serving: Serving, asked: Asked) -> int | None:
    """m: as named, or off the measured curve; None: the index's own."""
    if asked.target_recall is None and asked.max_latency_ms is None:
        return asked.m
    if not serving.facts.curve:
        return serving.index.cells if asked.target_recall is not None else None
    point = choose(serving.facts.curve, target_recall=asked.target_recall, max_latency_ms=asked.max_latency_ms)
    return point.m


def match(
    session: Session, criteria: Criteria, rows: Sequence[Rows], asked: Asked, drawn: Line, but: int | None = None
) -> Hits:
    """The nearest of each of (Q, dim) rows (of each task's), nearest first; `but`: a face that is not to be found.

    Faces that were removed since the index was last changed are left out; then, and where groups are wanted, or a mix
    is not sure of its order yet, it looks further until there are as many as asked for.
    """
    switched_on(session, [c.serving.task for c in criteria.each])
    among = allowed(session, criteria.collection, asked.filter)
    ms = [cells(c.serving, asked) for c in criteria.each]
    total = max(len(c.serving.index) for c in criteria.each) if among is None else len(among)
    most = min(total, MOST_MIXED if criteria.mixed else MOST_CANDIDATES)
    k = min(max(1, total), asked.limit * (GROUPED if asked.group_by or criteria.mixed else 1) + SPARE)
    while True:
        if criteria.mixed:
            found: Found = nearest(session, criteria, rows, k, ms, among)
        else:
            found = criteria.first.search(rows[0], k, ms[0], among)
        here = np.unique(found.ids)
        known = names(session, here[here >= 0].tolist())
        known.pop(but, None)  # type: ignore[arg-type]
        kept = [list(_kept(ids.tolist(), known, asked)) for ids in found.ids]
        settled = all(_settled(found, i, places, asked.limit) for i, places in enumerate(kept))
        if k >= most or settled:
            break
        k = min(most, 4 * k)
    matches = [_judged(found, i, places, known, criteria, drawn) for i, places in enumerate(kept)]
    fraction = float(found.fraction.mean()) if len(found.fraction) else 0.0
    return Hits(matches, known, found.m, fraction, found.ms if isinstance(found, Mixed) else (found.m,), settled)


def _settled(found: Found, query: int, places: list[int], limit: int) -> bool:
    """Whether looking further would change nothing."""
    if not isinstance(found, Mixed):
        return len(places) >= limit
    bound = found.bound[query]
    return bool(np.isinf(bound) or (len(places) >= limit and found.distances[query, places[-1]] < bound))


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
    found: Found, query: int, places: list[int], known: dict[int, Named], criteria: Criteria, drawn: Line
) -> list[Match]:
    told = (known[pk] for pk in found.ids[query, places].tolist())
    matches = [
        Match(face_id=named.face_id, subject=_subject(named), role=named.role, **score)  # type: ignore[typeddict-item]
        for named, score in zip(told, scored(criteria.facts, drawn, found.distances[query, places]), strict=True)
        if score["passes"] or not drawn.cut
    ]
    if isinstance(found, Mixed):
        tasks = [c.serving.task for c in criteria.each]
        for match, apart in zip(matches, found.by_task[query][:, places].T.tolist(), strict=True):
            match["distances"] = dict(zip(tasks, apart, strict=True))
    return matches


def _subject(named: Named) -> SubjectRef | None:
    return None if named.subject is None else SubjectRef(id=named.subject, external_id=named.external_id)

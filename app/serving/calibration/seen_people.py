"""Estimate how many people of a gallery a model has learned from elsewhere, where their photos are in other files.

A model keeps these people farther apart than strangers, most of all the very photos that it has learned, so that they
must not stand for strangers. Photos that were saved again have another hash, and other photos have another anyway: the
model itself recognises them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Face
from app.galleries.learned_collections import LearnedCollection, list_learned_collections
from app.serving.compensation.store import NO_COMPENSATION, read_compensation
from app.serving.index_builder import IndexKey, read_embeddings
from app.serving.loaded_index import LoadedIndex
from ml.calibration import sample_genuine
from ml.calibration.impostor_distances import Distances
from ml.errors import Corrupt
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.model import Model
from ml.types import Ids, Rows

MAX_SEEN_SHARE = 0.15
"""Of the people of a gallery: with more, it counts as a copy of those that the model was trained in."""
WRONG_SHARE, CAUTION = 0.005, 0.8
"""Other people elsewhere are as near as others here: at a distance at which so many of these lie, reduced by a factor,
hardly anybody is taken for somebody elsewhere, in a small gallery too."""
CAUTIOUS_FPIR = 0.05
"""Where nobody here has several photos, the limit is what so many strangers would reach."""
MAX_PEOPLE, MAX_PROBES, GENUINE_PAIRS, MIN_GENUINE_PAIRS = 500, 500, 2000, 20
PROBES_AT_A_TIME = 1000


def is_copy(seen_share: float | None) -> bool:
    """Return whether a gallery with this share of seen people counts as a copy."""
    return seen_share is not None and seen_share > MAX_SEEN_SHARE


def read_seen_share(measurement: Mapping[str, Any] | None) -> float | None:
    """Return the share that was estimated when a deployment was measured; None if it was not."""
    share = (measurement or {}).get("seen_share")
    return None if share is None else float(share)


def estimate_seen_share(session: Session, loaded: LoadedIndex, ids: Ids, people: Ids) -> float | None:
    """Estimate which share of a gallery's people a model has learned from in other collections.

    ids: (n,) pks of the faces, rising; people: (n,) the person of each, -1 if unknown
    A collection without embeddings by this model cannot be compared: a publication makes some. Returns None if there is
    nothing to compare with.
    """
    key, model, rng = loaded.key, loaded.model, np.random.default_rng(0)
    sources = [source for source in list_learned_collections(session, model) if source.name != key.collection]
    chosen = rng.permutation(np.unique(people[people >= 0]))[:MAX_PEOPLE]
    if not sources:
        return None
    pks, rows = loaded.read_rows(ids[np.isin(people, chosen)])
    probes = rng.permutation(len(rows))[:MAX_PROBES]
    seen = SeenPeople(model, key.task, rows, people[np.searchsorted(ids, pks)], probes)
    for source in sources:
        seen.compare(*_read_elsewhere(session, loaded, rows.shape[1], source))
    return seen.estimate_share()


class SeenPeople:
    """Compares faces with those that a model has learned from elsewhere: are they of the same people?

    rows: (n, dim) embeddings of faces; people: (n,) the person of each; probes: (p,) indices of those to compare
    """

    def __init__(self, model: Model, task: str, rows: Rows, people: Ids, probes: Ids) -> None:
        self._model, self._task, self._rows, self._people = model, task, rows[probes], people[probes]
        self._distances: _OwnDistances | None = None
        if model.metric.is_euclidean:
            self._distances = _measure_own_distances(model, rows, people, probes[:MAX_PROBES])
        self._nearest = np.full(len(probes), np.inf)
        self._faces, self._compared = 0, 0

    def compare(self, faces: int, batches: Iterable[Rows]) -> None:
        """Compare with another collection. faces: how many it has; batches: (m, dim) embeddings of these, or of some"""
        self._faces += faces
        for batch in batches:
            self._compared += len(batch)
            for start in range(0, len(self._rows) if len(batch) else 0, PROBES_AT_A_TIME):
                part = slice(start, start + PROBES_AT_A_TIME)
                distances = self._model.metric.distances(self._rows[part], batch).min(axis=1)
                self._nearest[part] = np.minimum(self._nearest[part], distances)

    def find(self) -> NDArray[np.bool_]:
        """Return (p,) which of the probes show people among the faces that they were compared with."""
        limit = self._find_limit()
        seen: NDArray[np.bool_] = self._nearest <= (-np.inf if limit is None else limit)
        return seen

    def estimate_share(self) -> float | None:
        """Return the share of people that would be found if all faces elsewhere were compared; None: not known."""
        if not len(self._rows) or not self._compared or self._find_limit() is None:
            return None
        share = len(np.unique(self._people[self.find()])) / len(np.unique(self._people))
        return min(1.0, share * max(1.0, self._faces / self._compared))

    def _find_limit(self) -> float | None:
        """Return up to which distance two faces count as those of one person.

        The median distance of a person's photos, or, where other people are as near, one at which WRONG_SHARE of them
        would be taken for somebody elsewhere.
        """
        calibration = self._model.calibrations.get(self._task)
        own = self._distances
        if own is not None:
            others = WRONG_SHARE * min(1.0, own.faces / max(1, self._compared))
            return min(own.genuine, CAUTION * float(np.quantile(own.nearest_others, others)))
        if calibration is None:
            return None
        cautious = OpenSetCalibration(DecisionRule(), (), optimistic=True)
        threshold = cautious.pairs_threshold(CAUTIOUS_FPIR, self._compared, (calibration.impostors,))
        return None if threshold is None else threshold.person_distance


class _OwnDistances(NamedTuple):
    """Of the gallery itself. genuine: the median of a person's photos; nearest_others: (p,) to the nearest other person
    among so many faces."""

    genuine: float
    nearest_others: Distances
    faces: int


def _measure_own_distances(model: Model, rows: Rows, people: Ids, probes: Ids) -> _OwnDistances | None:
    """Return None where too few people have several photos. rows, people, probes: see `SeenPeople`

    Only these people tell how far others are: several photos of a distractor count as several people.
    """
    genuine = sample_genuine(rows, people, GENUINE_PAIRS, 0, model.metric)
    counted, counts = np.unique(people, return_counts=True)
    probes = probes[np.isin(people[probes], counted[counts > 1])]
    if len(genuine) < MIN_GENUINE_PAIRS or not len(probes):
        return None
    distances = model.metric.distances(rows[probes], rows).astype(np.float64)
    distances[people[probes][:, None] == people] = np.inf
    return _OwnDistances(float(np.median(genuine)), distances.min(axis=1), len(rows))


def _read_elsewhere(
    session: Session, loaded: LoadedIndex, dim: int, source: LearnedCollection
) -> tuple[int, Iterator[Rows]]:
    """Return how many faces of a collection a model may have learned from, and (n, dim) embeddings of these, or of
    some, in batches."""
    created_at = session.scalar(select(Collection.created_at).where(Collection.id == source.name))
    if created_at is None:
        return 0, iter(())
    is_learned, key = source.match_faces(session, loaded.model.recipe.external), loaded.key
    faces = session.scalar(select(func.count()).select_from(Face).where(is_learned)) or 0
    there = IndexKey(source.name, key.task, key.model_id, created_at)
    compensation = NO_COMPENSATION
    with suppress(Corrupt):  # those who search there are told; here the corrections move a photo by little
        compensation = read_compensation(session, source.name, key.task, key.model_id)
    return faces, (rows for _, rows in read_embeddings(session, there, dim, compensation, is_learned))

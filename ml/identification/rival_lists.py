"""The nearest other people of searches with enrolled faces: what a gallery's growth is measured and predicted from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.identification.person_distance import DecisionRule, Shortlist, shortlist
from ml.identification.searches import GalleryPeople, SearchableIndex, TemplateCache, find_owners, split_searches
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

RIVALS_PER_SEARCH, FACES_PER_SEARCH = 64, 160
BATCH_NUMBERS, MAX_BATCH_SEARCHES = 1 << 23, 256
MIN_RELATIVE_DISTANCE = 1e-6


@dataclass(frozen=True, eq=False)
class RivalLists:
    """The nearest people of S searches, by base distance (see `DecisionRule`), without the searching person.

    owners: (S,) the searching people; is_named: (P,) which owners of the gallery are people with a name
    offsets: (S,) the distance of each face to itself. All other distances are stored without it, and are above 0.
    people: (S, K) the rivals, nearest first, -1 for empty entries; distances: (S, K) rising, +inf for empty entries
    own: (S,) base distance of the searching person without the searching face, +inf if there is no other face
    """

    owners: Ids
    is_named: Flags
    offsets: Floats
    people: Ids
    distances: Floats
    own: Floats

    @cached_property
    def first_is_named(self) -> Flags:
        """(S,) whether the nearest rival is a person with a name."""
        named: Flags = self.is_named[self.people[:, 0]] & (self.people[:, 0] >= 0)
        return named

    @cached_property
    def weights(self) -> Floats:
        """(S,) the weight of each search, so that every searching person weighs 1."""
        _, member, counts = np.unique(self.owners, return_inverse=True, return_counts=True)
        return np.asarray(1.0 / counts[member], np.float64)

    def select(self, chosen: Flags) -> Self:
        """Return the chosen (S,) searches."""
        return type(self)(
            self.owners[chosen], self.is_named, self.offsets[chosen], self.people[chosen], self.distances[chosen],
            self.own[chosen],
        )  # fmt: skip

    def first(self, count: int) -> Self:
        """Return the lists with only their first rivals."""
        return type(self)(
            self.owners, self.is_named, self.offsets, self.people[:, :count].copy(), self.distances[:, :count].copy(),
            self.own,
        )  # fmt: skip

    def keep_rivals(self, kept: Flags) -> Self:
        """Return the lists of a gallery with only the kept (P,) rivals."""
        stays = kept[self.people] & (self.people >= 0)
        order = np.argsort(~stays, axis=1, kind="stable")
        stays = np.take_along_axis(stays, order, 1)
        people = np.where(stays, np.take_along_axis(self.people, order, 1), -1)
        distances = np.where(stays, np.take_along_axis(self.distances, order, 1), np.inf)
        return type(self)(self.owners, self.is_named, self.offsets, people, distances, self.own)


def read_rival_lists(
    index: SearchableIndex,
    people: GalleryPeople,
    positions: Ids,
    rule: DecisionRule,
    check: Callable[[int], None] = lambda done: None,
) -> RivalLists:
    """Search the gallery with its own faces at (S,) `positions`, and list the nearest rivals of each.

    check: called with the number of searches done before each batch; it may raise an exception to stop
    """
    templates = TemplateCache(index, people)
    size = int(np.clip(BATCH_NUMBERS // (index.dim * RIVALS_PER_SEARCH), 1, MAX_BATCH_SEARCHES))
    batches = []
    for start in range(0, len(positions), size):
        check(start)
        batches.append(_read_batch(index, people, templates, positions[start : start + size], rule))
    if not batches:
        nobody = np.empty((0, RIVALS_PER_SEARCH))
        return RivalLists(np.empty(0, np.int64), people.is_named, np.empty(0), nobody.astype(np.int64), nobody,
                          np.empty(0))  # fmt: skip
    offsets, rivals, distances, own = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return RivalLists(people.owners[positions], people.is_named, offsets, rivals, distances, own)


def _read_batch(
    index: SearchableIndex, people: GalleryPeople, templates: TemplateCache, faces: Ids, rule: DecisionRule
) -> tuple[Floats, Ids, Floats, Floats]:
    """Return the offsets, the rivals, their distances, and the distances of the searching people."""
    rows, own = index.rows(people.ids[faces]), people.owners[faces]
    near = _find_rivals(index, people, rows, own)
    has_others = people.face_counts[own] > 1
    listed = np.concatenate([near.people, np.where(has_others, own, -1)[:, None]], axis=1)
    template = templates.distances(rows, listed, own)
    offsets = index.metric.paired_distances(rows, rows).astype(np.float64)
    base = rule.base_distances(near.nearest, template[:, :-1]) - offsets[:, None]
    base = np.where(np.isfinite(base), np.maximum(base, _min_distance(base)), np.inf)
    order = np.argsort(base, axis=1, kind="stable")
    nearest = [_find_nearest_own(index, people, int(face)) for face in faces]
    own_base = rule.base_distances(np.array(nearest), template[:, -1]) - offsets
    return offsets, np.take_along_axis(near.people, order, 1), np.take_along_axis(base, order, 1), own_base


def _find_rivals(index: SearchableIndex, people: GalleryPeople, rows: Rows, own: Ids) -> Shortlist:
    """Return the nearest people of (Q, d) rows without the searching (Q,) people."""
    shape = len(rows), RIVALS_PER_SEARCH
    near = Shortlist(np.full(shape, -1, np.int64), np.full(shape, np.inf))
    for batch, owner in split_searches(people, own):
        own_faces = int(people.face_counts[own[batch]].max(initial=0)) if owner is None else 0
        allowed = people.rival_ids if owner is None else people.list_others(owner)
        neighbours = index.search(rows[batch], min(len(people.ids), FACES_PER_SEARCH + own_faces), allowed=allowed)
        owners = find_owners(people, neighbours.ids)
        is_own = owners == own[batch, None]
        of_batch = shortlist(np.where(is_own, -1, owners), neighbours.distances, RIVALS_PER_SEARCH)
        near.people[batch], near.nearest[batch] = of_batch.people, of_batch.nearest
    return near


def _min_distance(base: Floats) -> float:
    """Return the smallest distance to count: ratios of distances are undefined at 0."""
    finite = np.abs(base[np.isfinite(base)])
    return MIN_RELATIVE_DISTANCE * float(np.median(finite)) if len(finite) else 0.0


def _find_nearest_own(index: SearchableIndex, people: GalleryPeople, position: int) -> float:
    """Return the distance of a face to the nearest other face of its owner, +inf if there is none."""
    others = people.faces_of(int(people.owners[position]))
    others = others[others != position]
    if not len(others):
        return float(np.inf)
    row = index.rows(people.ids[[position]])
    return float(index.metric.distances(row, index.rows(people.ids[others])).min())

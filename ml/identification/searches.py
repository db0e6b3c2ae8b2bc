"""Searches of a gallery for its own people, as a measurement: strangers by leaving a person out, mates by leaving a
face out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.identification.decision_rule import DecisionRule, shortlist
from ml.identification.templates import PersonTemplate, template_distances
from ml.indexes.base import Neighbours
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FACES_PER_SEARCH = 48
MAX_OWN_FACES = 200
"""People with more faces than this are not searched for: their own faces would fill the list."""
MAX_BATCH_SEARCHES, BATCH_NUMBERS = 256, 1 << 21
MAX_TEMPLATE_BYTES = 64 * 2**20


class SearchableIndex(Protocol):
    """What a measurement needs of an index."""

    @property
    def dim(self) -> int: ...

    @property
    def metric(self) -> Distance: ...

    def search(self, queries: Rows, k: int) -> Neighbours:
        """Find the k nearest of each of (Q, dim) queries. See `Index.search`."""

    def rows(self, ids: Ids) -> Rows:
        """Return the (n, dim) vectors of (n,) ids. See `Index.rows`."""


@dataclass(frozen=True, eq=False)
class GalleryPeople:
    """Whose the faces of a gallery are.

    ids: (n,) rising; owners: (n,) a number from 0 for each person, each distractor and each face without a name
    is_named: (P,) people with a name; is_distractor: (P,) faces of nobody of interest; neither: a face without a name
    """

    ids: Ids
    owners: Ids
    is_named: Flags
    is_distractor: Flags

    @classmethod
    def from_rows(cls, ids: Ids, subjects: Ids, is_distractor: Flags) -> "GalleryPeople":
        """ids: (n,) rising; subjects: (n,) a number a person, -1 for none; is_distractor: (n,)."""
        subjects = np.where(is_distractor, -1, subjects)
        named = subjects >= 0
        numbers, own = np.unique(subjects[named], return_inverse=True)
        owners = np.empty(len(ids), np.int64)
        owners[named] = own
        owners[~named] = len(numbers) + np.arange((~named).sum())
        flags = np.concatenate([np.zeros(len(numbers), np.bool_), is_distractor[~named]])
        return cls(ids, owners, np.arange(len(flags)) < len(numbers), flags)

    @cached_property
    def face_counts(self) -> Ids:
        """(P,) faces of each."""
        return np.bincount(self.owners, minlength=len(self.is_named)).astype(np.int64)

    @property
    def is_rival(self) -> Flags:
        """(P,) who counts as the next person: everybody but faces without a name."""
        return self.is_named | self.is_distractor

    def faces_of(self, owner: int) -> Ids:
        """Places of its faces."""
        start, stop = np.searchsorted(self._sorted_owners, [owner, owner + 1])
        return self._order[start:stop]

    @cached_property
    def _order(self) -> Ids:
        return np.argsort(self.owners, kind="stable")

    @cached_property
    def _sorted_owners(self) -> Ids:
        return self.owners[self._order]

    def sample(self, chosen: Flags, limit: int, rng: np.random.Generator) -> Ids:
        """Places of at most `limit` faces of the chosen (P,) owners: one of each before a second of anybody."""
        faces = rng.permutation(np.flatnonzero(chosen[self.owners] & (self.face_counts <= MAX_OWN_FACES)[self.owners]))
        order = np.argsort(self.owners[faces], kind="stable")
        owners = self.owners[faces][order]
        starts = np.searchsorted(owners, owners)
        turn = np.empty(len(faces), np.int64)
        turn[order] = np.arange(len(faces)) - starts
        return np.sort(faces[np.argsort(turn, kind="stable")[:limit]])


@dataclass(frozen=True, eq=False)
class SearchOutcomes:
    """What searches for enrolled faces came to.

    places: (S,) of the faces searched with; owners: (S,) whose they are
    stranger: (S,) person distance of the best named person with the probe's own person left out, +inf where none
    mate: (S,) that of the probe's own person with the probe's face left out, +inf where another named person is nearer
        or the person has no other face
    """

    positions: Ids
    owners: Ids
    stranger: Floats
    mate: Floats


def search_gallery(
    index: SearchableIndex,
    people: GalleryPeople,
    positions: Ids,
    rule: DecisionRule,
    check: Callable[[], None] = lambda: None,
) -> SearchOutcomes:
    """Search the gallery with its own faces at (S,) `places`.

    check: called before each batch; what it raises ends the measurement
    """
    stranger, mate = np.full(len(positions), np.inf), np.full(len(positions), np.inf)
    templates = _Templates(index, people)
    size = max(8, min(MAX_BATCH_SEARCHES, BATCH_NUMBERS // index.dim))
    for start in range(0, len(positions), size):
        check()
        batch = positions[start : start + size]
        stop = start + len(batch)
        stranger[start:stop], mate[start:stop] = _search_batch(index, people, templates, batch, rule)
    return SearchOutcomes(positions, people.owners[positions], stranger, mate)


def _search_batch(
    index: SearchableIndex, people: GalleryPeople, templates: "_Templates", faces: Ids, rule: DecisionRule
) -> tuple[Floats, Floats]:
    rows, own = index.rows(people.ids[faces]), people.owners[faces]
    k = min(len(people.ids), FACES_PER_SEARCH + int(people.face_counts[own].max()))
    neighbours = index.search(rows, k)
    at = np.minimum(np.searchsorted(people.ids, neighbours.ids), len(people.ids) - 1)
    known = (neighbours.ids >= 0) & (people.ids[at] == neighbours.ids)
    owners = np.where(known, people.owners[at], -1)
    others = np.where(owners == own[:, None], -1, owners)
    without_self = np.where(neighbours.ids == people.ids[faces][:, None], -1, owners)
    stranger = _best_named(people, templates, rows, others, neighbours, rule, None)
    mate = _best_named(people, templates, rows, without_self, neighbours, rule, own)
    return stranger, mate


def _best_named(
    people: GalleryPeople,
    templates: "_Templates",
    rows: Rows,
    owners: Ids,
    neighbours: Neighbours,
    rule: DecisionRule,
    own: Ids | None,
) -> Floats:
    """(Q,) person distance of the nearest person, +inf where that is a distractor or, with `own`, somebody else than
    the probe's own person. Faces without a name are passed over."""
    near = shortlist(owners, neighbours.distances)
    empty = near.people < 0
    template = np.where(empty, np.inf, templates.distances(rows, near.people, own))
    base = rule.base_distances(near.nearest, template)
    is_rival = people.is_rival[near.people] & ~empty
    scored = np.where(is_rival, rule.person_distances(base, is_rival), np.inf)
    query, first = np.arange(len(rows)), scored.argmin(1)
    nearest = near.people[query, first]
    counts = people.is_named[nearest] if own is None else nearest == own
    return np.where(counts, scored[query, first], np.inf)


class _Templates:
    """The templates of people, read as they are needed."""

    def __init__(self, index: SearchableIndex, people: GalleryPeople) -> None:
        self._index, self._people = index, people
        self._known: dict[int, PersonTemplate] = {}

    def distances(self, rows: Rows, shortlists: Ids, own: Ids | None) -> Floats:
        """(Q, P) from each of (Q, d) rows to the people on its shortlist; to its `own` without the row itself."""
        self._read(np.unique(shortlists[shortlists >= 0]))
        result = np.full(shortlists.shape, np.inf)
        query, rank = np.nonzero(shortlists >= 0)
        templates = []
        for q, number in zip(query.tolist(), shortlists[query, rank].tolist(), strict=True):
            template = self._known[number]
            templates.append(template.without(rows[q]) if own is not None and number == own[q] else template)
        result[query, rank] = template_distances(self._index.metric, rows[query], templates)
        return result

    def _read(self, owners: Ids) -> None:
        if len(self._known) * 8 * self._index.dim > MAX_TEMPLATE_BYTES:
            self._known = {}
        missing = [o for o in owners.tolist() if o not in self._known]
        faces = [self._people.faces_of(owner) for owner in missing]
        if not faces:
            return
        rows = self._index.rows(self._people.ids[np.concatenate(faces)])
        for owner, own in zip(missing, np.split(rows, np.cumsum([len(f) for f in faces])[:-1]), strict=True):
            self._known[owner] = PersonTemplate.from_rows(own)

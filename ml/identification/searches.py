"""Search a gallery with its own faces, to measure it.

A search without the probe's person is a stranger's search; a search without the probe's face alone is a mated one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.errors import WrongShape
from ml.identification.person_distance import (
    SHORTLIST_PEOPLE,
    DecisionRule,
    Shortlist,
    find_nearest_people,
    shortlist,
)
from ml.identification.templates import BYTES_PER_DIM, PersonTemplate, template_distances
from ml.indexes.base import Neighbours
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FACES_PER_SEARCH, MAX_FACES_PER_SEARCH = 48, 65_536
"""A search looks at so many faces first, and at four times as many again until they are of ten people."""
MAX_RIVAL_DEPTH = 768
"""A search of the service also goes on until ten of them count as people, up to so many faces: those without a name may
show one person. Beyond these nobody is the next person. A measurement looks among people and distractors alone, since
a stranger has no faces in the gallery that hide them as those of an enrolled person do."""
MAX_OWN_FACES = 200
"""Whoever has more faces is searched for by one of them, and apart from others: in a list of neighbours that holds
other people too, there would be too many of them."""
MAX_BATCH_SEARCHES, BATCH_NUMBERS, BATCH_NEIGHBOURS = 256, 1 << 21, 1 << 20
MAX_TEMPLATE_BYTES = 64 * 2**20


class SearchableIndex(Protocol):
    """The part of an index that a measurement needs."""

    @property
    def dim(self) -> int: ...

    @property
    def metric(self) -> Distance: ...

    def search(self, queries: Rows, k: int, *, allowed: Ids | None = None) -> Neighbours:
        """Find the k nearest of each of (Q, dim) queries. See `Index.search`."""

    def rows(self, ids: Ids) -> Rows:
        """Return the (n, dim) vectors of (n,) ids. See `Index.rows`."""

    def ids(self) -> Ids:
        """Return the ids in the index, rising: (N,)."""


@dataclass(frozen=True, eq=False)
class GalleryPeople:
    """The people of a gallery's faces.

    ids: (n,) face ids, rising; owners: (n,) a number from 0 for each person, each distractor and each nameless face
    is_named: (P,) whether an owner is a person with a name; is_distractor: (P,) whether it is a distractor. An owner
        that is neither is a face without a name.
    """

    ids: Ids
    owners: Ids
    is_named: Flags
    is_distractor: Flags

    @classmethod
    def from_rows(cls, ids: Ids, subjects: Ids, is_distractor: Flags) -> "GalleryPeople":
        """Number the owners. ids: (n,) rising; subjects: (n,) person of each face, -1 if none; is_distractor: (n,)."""
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
        """(P,) number of faces of each owner."""
        return np.bincount(self.owners, minlength=len(self.is_named)).astype(np.int64)

    @property
    def is_rival(self) -> Flags:
        """(P,) which owners count as the next person: all but nameless faces."""
        return self.is_named | self.is_distractor

    @cached_property
    def rival_ids(self) -> Ids | None:
        """(n,) ids of the faces that are not nameless, rising; None if these are all."""
        return None if self.is_rival.all() else self.ids[self.is_rival[self.owners]]

    def restrict_to(self, ids: Ids) -> "GalleryPeople":
        """Return these people with those of their faces alone that are among (k,) ids; they keep their numbers."""
        kept = np.isin(self.ids, ids)
        return replace(self, ids=self.ids[kept], owners=self.owners[kept])

    def list_others(self, owner: int) -> Ids:
        """Return the (n,) ids of the faces that are not nameless, rising, without those of one owner."""
        is_other = self.is_rival[self.owners] & (self.owners != owner)
        return np.asarray(self.ids[is_other], np.int64)

    def faces_of(self, owner: int) -> Ids:
        """Return the (k,) positions of an owner's faces."""
        start, stop = np.searchsorted(self._sorted_owners, [owner, owner + 1])
        return self._order[start:stop]

    @cached_property
    def _order(self) -> Ids:
        return np.argsort(self.owners, kind="stable")

    @cached_property
    def _sorted_owners(self) -> Ids:
        return self.owners[self._order]

    def sample(self, chosen: Flags, limit: int, rng: np.random.Generator, is_probe: Flags | None = None) -> Ids:
        """Draw positions of at most `limit` faces of the chosen (P,) owners, one of each before a second of anybody.

        Of owners with more than MAX_OWN_FACES, one alone is drawn.

        is_probe: (n,) which faces may be drawn, None: all
        """
        of_owners = chosen[self.owners]
        faces = rng.permutation(np.flatnonzero(of_owners if is_probe is None else of_owners & is_probe))
        order = np.argsort(self.owners[faces], kind="stable")
        owners = self.owners[faces][order]
        starts = np.searchsorted(owners, owners)
        turn = np.empty(len(faces), np.int64)
        turn[order] = np.arange(len(faces)) - starts
        is_drawn = (turn == 0) | (self.face_counts[self.owners[faces]] <= MAX_OWN_FACES)
        return np.sort(faces[is_drawn][np.argsort(turn[is_drawn], kind="stable")[:limit]])

    def sample_rivals(self, limit: int, is_probe: Flags | None = None) -> Ids:
        """Draw positions of one face of each person with a name and of each distractor, at most `limit`.

        is_probe: see `sample`
        """
        is_searched = self.is_rival[self.owners] if is_probe is None else self.is_rival[self.owners] & is_probe
        count = len(np.unique(self.owners[is_searched]))
        return self.sample(self.is_rival, min(limit, count), np.random.default_rng(0), is_probe)


@dataclass(frozen=True, eq=False)
class SearchOutcomes:
    """The results of S searches with faces of the gallery.

    positions: (S,) positions of the probes; owners: (S,) their owners
    stranger: (S,) person distance of the nearest named person without the probe's own person, +inf if there is none
    mate: (S,) person distance of the probe's own person without the probe itself, +inf if another named person is
        nearer, or if the person has no other face
    nearest: (S,) owner to whom `stranger` is the distance
    """

    positions: Ids
    owners: Ids
    stranger: Floats
    mate: Floats
    nearest: Ids

    def select(self, chosen: Flags) -> "SearchOutcomes":
        """Return the chosen (S,) searches."""
        return SearchOutcomes(
            self.positions[chosen],
            self.owners[chosen],
            self.stranger[chosen],
            self.mate[chosen],
            self.nearest[chosen],
        )

    def join(self, more: "SearchOutcomes") -> "SearchOutcomes":
        """Return these searches and others of the same gallery."""
        return SearchOutcomes(
            np.concatenate([self.positions, more.positions]),
            np.concatenate([self.owners, more.owners]),
            np.concatenate([self.stranger, more.stranger]),
            np.concatenate([self.mate, more.mate]),
            np.concatenate([self.nearest, more.nearest]),
        )


def search_gallery(
    index: SearchableIndex,
    people: GalleryPeople,
    positions: Ids,
    rule: DecisionRule,
    check: Callable[[], None] = lambda: None,
) -> SearchOutcomes:
    """Search the gallery with its own faces at (S,) `positions`. Those that are removed meanwhile are left out.

    check: called before each batch; it may raise an exception to stop the measurement
    """
    stranger, mate = np.full(len(positions), np.inf), np.full(len(positions), np.inf)
    nearest, is_searched = np.zeros(len(positions), np.int64), np.zeros(len(positions), np.bool_)
    templates = TemplateCache(index, people)
    size = max(8, min(MAX_BATCH_SEARCHES, BATCH_NUMBERS // index.dim))
    for start in range(0, len(positions), size):
        check()
        batch = np.arange(start, min(start + size, len(positions)))
        while len(batch):
            try:
                ids = people.ids[positions[batch]]
                stranger[batch], mate[batch], nearest[batch] = _search_batch(index, templates, ids, rule)
                is_searched[batch] = True
                break
            except WrongShape:
                templates = templates.without_removed()
                batch = batch[np.isin(ids, templates.people.ids)]
    return SearchOutcomes(positions, people.owners[positions], stranger, mate, nearest).select(is_searched)


def _search_batch(
    index: SearchableIndex, templates: "TemplateCache", ids: Ids, rule: DecisionRule
) -> tuple[Floats, Floats, Ids]:
    people = templates.people
    rows, own = index.rows(ids), find_owners(people, ids)
    without_person, without_probe = list_people(index, people, rows, own, ids)
    template = templates.distances(rows, np.concatenate([without_person.people, without_probe.people], axis=1), own)
    width = without_person.people.shape[1]
    stranger, nearest = find_nearest_people(without_person, template[:, :width], people.is_rival, rule)
    stranger = np.where(people.is_named[nearest], stranger, np.inf)
    mate, nearest_with_own = find_nearest_people(without_probe, template[:, width:], people.is_rival, rule)
    return stranger, np.where(nearest_with_own == own, mate, np.inf), nearest


def list_people(
    index: SearchableIndex, people: GalleryPeople, rows: Rows, own: Ids, probes: Ids
) -> tuple[Shortlist, Shortlist]:
    """Find the nearest people of (Q, d) rows, as a search of the service does: it goes on until its shortlist is full.

    Where the nearest faces are all of one person, a search that stops there knows no next person. Faces without a name
    are not searched: the own person's would hide everybody else from a stranger's search.

    own: (Q,) the person of each row, -1 if it is nobody's; probes: (Q,) the id of its face, -1 if it has none
    Returns the shortlists without the own person, and without the probe alone.
    """
    without_person, without_probe = _empty_shortlist(len(rows)), _empty_shortlist(len(rows))
    for batch, owner in split_searches(people, own):
        if owner is None:
            near = _search_people(index, people, rows[batch], own[batch], probes[batch], people.rival_ids)
        else:
            near = _search_apart(index, people, rows[batch], owner, probes[batch])
        for known, of_batch in zip((without_person, without_probe), near, strict=True):
            known.people[batch], known.nearest[batch] = of_batch.people, of_batch.nearest
    return without_person, without_probe


def split_searches(people: GalleryPeople, own: Ids) -> list[tuple[Ids, int | None]]:
    """Return the positions of the searches that can be made at once, of searches for (Q,) owners, -1 for nobody.

    With each comes the owner whom they are for if that one has more than MAX_OWN_FACES faces, or else None.
    """
    has_many = (own >= 0) & (people.face_counts[own] > MAX_OWN_FACES)
    of_owners = [(np.flatnonzero(own == owner), owner) for owner in np.unique(own[has_many]).tolist()]
    return [(np.flatnonzero(~has_many), None), *of_owners]


def _search_apart(
    index: SearchableIndex, people: GalleryPeople, rows: Rows, owner: int, probes: Ids
) -> tuple[Shortlist, Shortlist]:
    """Return what `list_people` does, for rows of one owner with many faces."""
    others, _ = _search_people(index, people, rows, np.full(len(rows), -1), probes, people.list_others(owner))
    own = index.search(rows, 2, allowed=people.ids[people.faces_of(owner)])
    return others, others.add(owner, np.where(own.ids == probes[:, None], np.inf, own.distances).min(axis=1))


def _search_people(
    index: SearchableIndex, people: GalleryPeople, rows: Rows, own: Ids, probes: Ids, allowed: Ids | None
) -> tuple[Shortlist, Shortlist]:
    """Return what `list_people` does. allowed: the ids to search among"""
    without_person, without_probe = _empty_shortlist(len(rows)), _empty_shortlist(len(rows))
    limit = min(len(people.ids), MAX_FACES_PER_SEARCH)
    own_faces = int(people.face_counts[own[own >= 0]].max(initial=0))
    k, missing = min(limit, FACES_PER_SEARCH + own_faces), np.arange(len(rows))
    while len(missing):
        size = max(1, BATCH_NEIGHBOURS // k)
        has_more = np.zeros(len(rows), np.bool_)
        for batch in (missing[start : start + size] for start in range(0, len(missing), size)):
            neighbours = index.search(rows[batch], k, allowed=allowed)
            owners = find_owners(people, neighbours.ids)
            is_own, is_probe = owners == own[batch, None], neighbours.ids == probes[batch, None]
            for known, left_out in ((without_person, is_own), (without_probe, is_probe)):
                near = shortlist(np.where(left_out, -1, owners), neighbours.distances)
                known.people[batch], known.nearest[batch] = near.people, near.nearest
            has_more[batch] = neighbours.ids[:, -1] >= 0
        if k == limit:
            break
        k, missing = min(limit, 4 * k), np.flatnonzero(has_more & (without_person.people[:, -1] < 0))
    return without_person, without_probe


def _empty_shortlist(searches: int) -> Shortlist:
    shape = (searches, SHORTLIST_PEOPLE)
    return Shortlist(np.full(shape, -1, np.int64), np.full(shape, np.inf))


def find_owners(people: GalleryPeople, ids: Ids) -> Ids:
    """Return the owners of (Q, k) faces, -1 where there is none."""
    at = np.minimum(np.searchsorted(people.ids, ids), len(people.ids) - 1)
    return np.where((ids >= 0) & (people.ids[at] == ids), people.owners[at], -1)


class TemplateCache:
    """The templates of people, loaded on demand."""

    def __init__(self, index: SearchableIndex, people: GalleryPeople) -> None:
        self._index, self.people = index, people
        self._known: dict[int, PersonTemplate] = {}

    def without_removed(self) -> "TemplateCache":
        """Return an empty cache for the faces that are still there. Raises WrongShape if all of them are."""
        people = self.people.restrict_to(self._index.ids())
        if len(people.ids) == len(self.people.ids):
            raise WrongShape("ids", "those of the index", self.people.ids.shape)
        return TemplateCache(self._index, people)

    def distances(self, rows: Rows, shortlists: Ids, own: Ids) -> Floats:
        """Return (Q, P) distances of (Q, d) rows to the people on their shortlists, +inf for empty entries.

        A person may be listed twice. own: (Q,) the person of each row, whose template is taken without the row
        """
        self._read(np.unique(shortlists[shortlists >= 0]))
        query, rank = np.nonzero(shortlists >= 0)
        listed = np.stack([query, shortlists[query, rank]], axis=1)
        cells, cell_of = np.unique(listed, axis=0, return_inverse=True)
        templates = [
            self._known[number].without(rows[q]) if number == own[q] else self._known[number]
            for q, number in cells.tolist()
        ]
        result = np.full(shortlists.shape, np.inf)
        result[query, rank] = template_distances(self._index.metric, rows[cells[:, 0]], templates)[cell_of]
        return result

    def _read(self, owners: Ids) -> None:
        if len(self._known) * BYTES_PER_DIM * self._index.dim > MAX_TEMPLATE_BYTES:
            self._known = {}
        missing = [o for o in owners.tolist() if o not in self._known]
        faces = [self.people.faces_of(owner) for owner in missing]
        if not faces:
            return
        rows = self._index.rows(self.people.ids[np.concatenate(faces)])
        for owner, own in zip(missing, np.split(rows, np.cumsum([len(f) for f in faces])[:-1]), strict=True):
            self._known[owner] = PersonTemplate.from_rows(own)

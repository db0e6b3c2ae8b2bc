"""What a change of a gallery does to the share of strangers named, without changing the index."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.errors import TooFewPairs
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople, SearchableIndex, SearchOutcomes, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from ml.types import Ids

MAX_SEARCHES = 20_000


def without_faces(people: GalleryPeople, positions: Ids) -> GalleryPeople:
    """Return the people as if the faces at (n,) positions had no name."""
    return _with_owners(people, positions, len(people.is_named) + np.arange(len(positions)), is_named=False)


def merge_people(people: GalleryPeople, first: int, second: int) -> GalleryPeople:
    """Return the people as if two owners were one."""
    faces = people.faces_of(second)
    return _with_owners(people, faces, np.full(len(faces), first), is_named=True)


def split_person(people: GalleryPeople, positions: Ids) -> GalleryPeople:
    """Return the people as if the faces at (n,) positions were those of another person with a name."""
    return _with_owners(people, positions, np.full(len(positions), len(people.is_named)), is_named=True)


def _with_owners(people: GalleryPeople, positions: Ids, owners: Ids, is_named: bool) -> GalleryPeople:
    changed = people.owners.copy()
    changed[positions] = owners
    added = max(0, int(owners.max(initial=-1)) + 1 - len(people.is_named))
    return GalleryPeople(
        people.ids,
        changed,
        np.concatenate([people.is_named, np.full(added, is_named)]),
        np.concatenate([people.is_distractor, np.zeros(added, np.bool_)]),
    )


@dataclass(frozen=True, eq=False)
class StrangerCheck:
    """Searches for enrolled people without their own faces, which no search should name.

    distance: the person distance up to which a search names somebody; possible_distance: up to which it says that
        somebody is possible
    """

    index: SearchableIndex
    people: GalleryPeople
    rule: DecisionRule
    outcomes: SearchOutcomes
    distance: float
    possible_distance: float

    @classmethod
    def run(
        cls,
        index: SearchableIndex,
        people: GalleryPeople,
        rule: DecisionRule,
        fpir: float,
        check: Callable[[], None] = lambda: None,
        seed: int = 0,
    ) -> Self:
        """Search for a sample of the people, with the threshold that names a share `fpir` of strangers.

        check: called before each batch; it may raise an exception to stop. Raises TooFewPairs where too few people are
        enrolled for such a threshold.
        """
        positions = people.sample(people.is_named, MAX_SEARCHES, np.random.default_rng(seed))
        outcomes = search_gallery(index, people, positions, rule, check)
        strangers = StrangerSearches.from_distances(
            "leave-one-out", outcomes.stranger, outcomes.owners, len(people.ids)
        )
        threshold = OpenSetCalibration(rule, (strangers,)).threshold(fpir, len(people.ids))
        if threshold is None:
            missing = strangers.missing_people(fpir)
            raise TooFewPairs("people with a name", strangers.people + missing, strangers.people)
        return cls(index, people, rule, outcomes, threshold.person_distance, threshold.possible_distance)

    @cached_property
    def is_named(self) -> NDArray[np.bool_]:
        """(S,) whether each search named somebody."""
        named: NDArray[np.bool_] = self.outcomes.stranger <= self.distance
        return named

    @property
    def share(self) -> float:
        """The share of searches that named somebody."""
        return float(self.is_named.mean())

    def measure_change(self, changed: GalleryPeople, owners: Ids) -> float:
        """Return the share of searches that name somebody in a changed gallery, at the same threshold.

        Only the searches for, or nearest to, these (n,) owners, who are affected by the change, are done again. Faces
        that lose their name are not searched for.
        """
        positions = self.outcomes.positions
        stays = changed.is_named[changed.owners[positions]]
        affected = np.isin(self.outcomes.owners, owners) | np.isin(self.outcomes.nearest, owners)
        again = search_gallery(self.index, changed, positions[affected & stays], self.rule)
        named = self.is_named[~affected & stays].sum() + (again.stranger <= self.distance).sum()
        return float(named / max(1, stays.sum()))

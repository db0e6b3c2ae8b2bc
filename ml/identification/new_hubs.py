"""Notice people for whom strangers would be taken since they were enrolled, after the thresholds were measured.

A threshold is measured in a gallery as it is. A person who is enrolled later, and is near to very many others, is named
for strangers far more often than the measured rate says: see `ml.identification.hubs`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.identification.person_distance import Shortlist
from ml.identification.searches import Flags, GalleryPeople, SearchableIndex, SearchOutcomes, list_people
from ml.types import Ids, Rows

Floats = NDArray[np.float64]

MAX_ADDED_SHARE = 0.5
"""Of the strangers that a rate allows to be named, so many may be named as people who are enrolled later."""
EXTRA_STRANGERS = 2
"""And so many more, which chance or a photo of an enrolled person under another name explains.

A face without a name may match as many strangers as the rate allows altogether, and so many more: where it is the only
one, half of them are expected.
"""
FACES_PER_BATCH = 2_048


@dataclass(frozen=True)
class Level:
    """The thresholds at one rate of strangers named, 0 to 1.

    person_distance: of people with a name; face_distance: of faces without one; margin_weight: see `DecisionRule`
    """

    fpir: float
    person_distance: float
    face_distance: float
    margin_weight: float


@dataclass(frozen=True, eq=False)
class StrangerProbes:
    """Searches for people of the gallery without their own faces, which stand for strangers.

    rows: (S, d) their faces; owners: (S,) their people; next_distances: (S,) distance of the nearest face of the next
        person or distractor, +inf if there is none
    """

    rows: Rows
    owners: Ids
    next_distances: Floats

    @classmethod
    def draw(cls, index: SearchableIndex, people: GalleryPeople, owners: Ids, limit: int) -> Self:
        """Search for one face of each person with a name and each distractor, at most `limit`.

        people: of the gallery as it was measured; owners: (n,) how each of its faces' owners is known later
        """
        probes = people.sample_rivals(limit)
        rows = index.rows(people.ids[probes])
        near, _ = list_people(index, people, rows, people.owners[probes], people.ids[probes])
        return cls(rows, owners[probes], _find_next(near, people.is_rival))


@dataclass(frozen=True, eq=False)
class NewHubs:
    """What the faces that were enrolled since a measurement do to the searches for strangers.

    is_named: fpir -> (S,) which probes are named as one of the new people
    counts: fpir -> owner, and whether it is named -> how many probes
    """

    probes: StrangerProbes
    is_named: dict[float, Flags] = field(default_factory=dict)
    counts: dict[float, Counter[tuple[int, bool]]] = field(default_factory=dict)

    def add(self, rows: Rows, owners: Ids, people: Ids, metric: Distance, levels: Sequence[Level]) -> "NewHubs":
        """Return what further faces do.

        rows: (n, d); owners: (n,); people: (n,) as whom they are named, odd ones without a name
        """
        is_named, counts = dict(self.is_named), {fpir: counter.copy() for fpir, counter in self.counts.items()}
        for start in range(0, len(rows), FACES_PER_BATCH):
            batch = slice(start, start + FACES_PER_BATCH)
            distances = metric.distances(self.probes.rows, rows[batch]).astype(np.float64)
            distances[self.probes.owners[:, None] == people[None, batch]] = np.inf
            has_name = people[batch] % 2 == 0
            for level in levels:
                passes = self._find_passing(distances, has_name, level)
                before = is_named.get(level.fpir, np.zeros(len(passes), np.bool_))
                is_named[level.fpir] = before | passes[:, has_name].any(1)
                counter = counts.setdefault(level.fpir, Counter())
                added = zip(owners[batch].tolist(), has_name.tolist(), passes.sum(0).tolist(), strict=True)
                for owner, is_person, count in added:
                    if count:
                        counter[owner, is_person] += count
        return replace(self, is_named=is_named, counts=counts)

    def find(self, *, together: bool) -> frozenset[int]:
        """Return the owners for whom too many strangers are taken.

        together: also those who are few strangers' next person each, if all of them are too many strangers'
        """
        hubs = set[int]()
        for fpir, counter in self.counts.items():
            allowed = fpir * len(self.probes.rows)
            limit, face_limit = EXTRA_STRANGERS + MAX_ADDED_SHARE * allowed, EXTRA_STRANGERS + allowed
            is_crowd = together and self.is_named[fpir].sum() > limit
            people = {owner: count for (owner, is_person), count in counter.items() if is_person}
            faces = {owner: count for (owner, is_person), count in counter.items() if not is_person}
            hubs |= {owner for owner, count in people.items() if is_crowd or count > limit}
            hubs |= {owner for owner, count in faces.items() if count > face_limit}
        return frozenset(hubs)

    def _find_passing(self, distances: Floats, has_name: Flags, level: Level) -> Flags:
        """Return (S, n) whether a probe is named as the person of a face, or matches it if that has no name."""
        following = self.probes.next_distances[:, None]
        with np.errstate(invalid="ignore"):  # inf - inf, of a probe's own faces where there is nobody else
            lead = np.where(np.isfinite(following) & np.isfinite(distances), following - distances, 0.0)
        is_named = (lead >= 0) & (distances - level.margin_weight * lead <= level.person_distance)
        return np.where(has_name, is_named, distances <= level.face_distance)


def find_named_often(outcomes: SearchOutcomes, levels: Sequence[Level]) -> set[int]:
    """Return the owners in the gallery as whom too many of the searches for strangers are named by themselves."""
    hubs = set[int]()
    for level in levels:
        limit = EXTRA_STRANGERS + (1 + MAX_ADDED_SHARE) * level.fpir * len(outcomes.positions)
        named = Counter(outcomes.nearest[outcomes.stranger <= level.person_distance].tolist())
        hubs |= {owner for owner, count in named.items() if count > limit}
    return hubs


def _find_next(near: Shortlist, is_rival: Flags) -> Floats:
    """Return the (Q,) distance of the nearest face of somebody who counts as the next person, +inf if there is none."""
    counts = (near.people >= 0) & is_rival[near.people]
    nearest: Floats = np.where(counts, near.nearest, np.inf).min(1)
    return nearest

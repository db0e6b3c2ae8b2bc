"""Find hubs: named people whom searches for many different strangers name.

In high-dimensional spaces a few points are among the nearest of very many others (Radovanović et al., "Hubs in space",
2010). A person becomes a hub by a poor photo, or by faces of other people under the same name.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from ml.identification.changed_galleries import StrangerCheck, without_faces
from ml.identification.searches import SearchOutcomes, search_gallery
from ml.types import Ids

SIGNIFICANCE = 0.05
"""How probable it may be that anybody at all is taken for a hub in a gallery that has none."""
MAX_UNNAMED_SEARCHES = 5_000
MAX_REMOVED_FACES = 5


@dataclass(frozen=True)
class Hub:
    """A person whom searches for strangers name more often than the rate of strangers named allows.

    person: the owner in the gallery; strangers: how many different strangers were named so
    p_value: how probable at least so many are if every named person is named for strangers at the same rate
    faces: positions of the faces that attract them, the worst first; the person is no hub without them, unless there
        are more than MAX_REMOVED_FACES, or no other face is left
    strangers_left: how many of the strangers are still named so without these faces; 0 if no face is left
    """

    person: int
    strangers: int
    p_value: float
    faces: tuple[int, ...]
    strangers_left: int


@dataclass(frozen=True, eq=False)
class HubSearch:
    """Searches for people who are not the one they might be named as: others by name, distractors, and nameless faces.

    outcomes: the searches; fpir: the share of strangers' searches that may name somebody, 0 to 1
    apart_distance: two faces without a name count as two people if they lie farther apart
    """

    check: StrangerCheck
    outcomes: SearchOutcomes
    fpir: float
    apart_distance: float

    @classmethod
    def run(
        cls,
        check: StrangerCheck,
        fpir: float,
        apart_distance: float,
        before_batch: Callable[[], None] = lambda: None,
        seed: int = 0,
    ) -> "HubSearch":
        """Search for faces without a name too. before_batch: may raise an exception to stop."""
        people = check.people
        unnamed = people.sample(~people.is_named, MAX_UNNAMED_SEARCHES, np.random.default_rng(seed))
        more = search_gallery(check.index, people, unnamed, check.rule, before_batch)
        return cls(check, check.outcomes.join(more), fpir, apart_distance)

    @property
    def expected(self) -> float:
        """How many searches name each person, if all are named at the same rate."""
        return self._rate * len(self.outcomes.positions)

    @property
    def _rate(self) -> float:
        return self.fpir / max(1, int(self.check.people.is_named.sum()))

    def find(self) -> list[Hub]:
        """Return the hubs, the least probable first."""
        named = self.outcomes.select(self.outcomes.stranger <= self.check.distance)
        hubs = [
            self._describe(person, named.positions[named.nearest == person])
            for person, count in Counter(named.nearest.tolist()).items()
            if self._is_hub(count)
        ]
        hubs = [hub for hub in hubs if self._is_hub(hub.strangers)]
        return sorted(hubs, key=lambda hub: (hub.p_value, hub.person))

    def _describe(self, person: int, probes: Ids) -> Hub:
        strangers = self._count_strangers(probes)
        faces, left = self._find_attracting_faces(person, probes)
        return Hub(person, strangers, self._p_value(strangers), tuple(faces), left)

    def _is_hub(self, strangers: int) -> bool:
        return self._p_value(strangers) * int(self.check.people.is_named.sum()) <= SIGNIFICANCE

    def _p_value(self, strangers: int) -> float:
        """Return how probable at least so many are, by the binomial distribution."""
        if not strangers:
            return 1.0
        return float(scipy.special.bdtrc(strangers - 1, len(self.outcomes.positions), self._rate))

    def _count_strangers(self, probes: Ids) -> int:
        """Count the different people on (S,) probes that were named as one person.

        One of those without a name may really be that person, and is not counted.
        """
        people = self.check.people
        owners = people.owners[probes]
        is_known = people.is_rival[owners]
        nameless = self._count_apart(probes[~is_known])
        return len(np.unique(owners[is_known])) + max(0, nameless - 1)

    def _count_apart(self, positions: Ids) -> int:
        """Count faces, of which each lies far from those that were counted before."""
        index = self.check.index
        rows = index.rows(self.check.people.ids[positions])
        counted: list[int] = []
        for i in range(len(rows)):
            if not counted or (index.metric.distances(rows[i : i + 1], rows[counted]) > self.apart_distance).all():
                counted.append(i)
        return len(counted)

    def _find_attracting_faces(self, person: int, probes: Ids) -> tuple[list[int], int]:
        """Take the face that is nearest to most probes away until the person is no hub; see `Hub`."""
        index, people = self.check.index, self.check.people
        faces, removed = people.faces_of(person), list[int]()
        while True:
            distances = index.metric.distances(index.rows(people.ids[probes]), index.rows(people.ids[faces]))
            worst = int(np.bincount(distances.argmin(axis=1)).argmax())
            removed.append(int(faces[worst]))
            faces = np.delete(faces, worst)
            if not len(faces):
                return removed, 0
            outcomes = search_gallery(index, without_faces(people, np.array(removed)), probes, self.check.rule)
            probes = probes[(outcomes.nearest == person) & (outcomes.stranger <= self.check.distance)]
            left = self._count_strangers(probes)
            if not self._is_hub(left) or len(removed) == MAX_REMOVED_FACES:
                return removed, left

"""Find hubs: named people whom searches for many different strangers name, or hold possible.

In high-dimensional spaces a few points are among the nearest of very many others (Radovanović et al., "Hubs in space",
2010). A person becomes a hub by a poor photo, or by faces of other people under the same name.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from ml.identification.changed_galleries import StrangerCheck, without_faces
from ml.identification.open_set import MAX_POSSIBLE_FPIR, POSSIBLE_FACTOR
from ml.identification.searches import SearchOutcomes, search_gallery
from ml.types import Ids

SIGNIFICANCE = 0.05
"""How probable it may be that anybody at all is taken for a hub in a gallery that has none."""
MAX_UNNAMED_SEARCHES = 5_000
MAX_REMOVED_FACES = 10

Decision = Literal["match", "possible"]


@dataclass(frozen=True)
class Hub:
    """A person whom searches for strangers name, or hold possible, more often than the rate allows.

    person: the owner in the gallery
    decision: the one that is more improbable; strangers: for how many different strangers it was made
    p_value: how probable at least so many are if it is made for every person at the same rate
    faces: positions of the faces that attract them, the worst first; the person is no hub without them, unless there
        are more than MAX_REMOVED_FACES, or no other face is left
    strangers_left: for how many of the strangers it is still made without these faces; 0 if no face is left
    """

    person: int
    decision: Decision
    strangers: int
    p_value: float
    faces: tuple[int, ...]
    strangers_left: int


@dataclass(frozen=True)
class HubLevel:
    """A decision up to a person distance, which is made for each person with the probability `rate` by each search."""

    decision: Decision
    distance: float
    rate: float


@dataclass(frozen=True, eq=False)
class HubSearch:
    """Searches for people who are not the one they might be named as: others by name, distractors, and nameless faces.

    outcomes: the searches; levels: the decisions, each with its threshold
    apart_distance: two faces without a name count as two people if they lie farther apart
    """

    check: StrangerCheck
    outcomes: SearchOutcomes
    levels: tuple[HubLevel, ...]
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
        """Search for faces without a name too.

        fpir: the share of strangers' searches that may name somebody, 0 to 1; before_batch: may raise to stop
        """
        people = check.people
        unnamed = people.sample(~people.is_named, MAX_UNNAMED_SEARCHES, np.random.default_rng(seed))
        more = search_gallery(check.index, people, unnamed, check.rule, before_batch)
        persons = max(1, int(people.is_named.sum()))
        levels = (
            HubLevel("match", check.distance, fpir / persons),
            HubLevel("possible", check.possible_distance, min(MAX_POSSIBLE_FPIR, POSSIBLE_FACTOR * fpir) / persons),
        )
        return cls(check, check.outcomes.join(more), levels, apart_distance)

    def find(self) -> list[Hub]:
        """Return the hubs, the least probable first, each by the decision that is least probable."""
        hubs: dict[int, Hub] = {}
        for level in self.levels:
            passed = self.outcomes.select(self.outcomes.stranger <= level.distance)
            for person, count in Counter(passed.nearest.tolist()).items():
                probes = (
                    passed.positions[passed.nearest == person] if self._is_hub(count, level) else passed.positions[:0]
                )
                strangers = self._count_strangers(probes)
                p_value = self._p_value(strangers, level)
                if self._is_hub(strangers, level) and (person not in hubs or p_value < hubs[person].p_value):
                    faces, left = self._find_attracting_faces(person, probes, level)
                    hubs[person] = Hub(person, level.decision, strangers, p_value, tuple(faces), left)
        return sorted(hubs.values(), key=lambda hub: (hub.p_value, hub.person))

    def expect(self, decision: Decision) -> float:
        """Return for how many searches a decision is made for each person, if it is made for all at the same rate."""
        [level] = [level for level in self.levels if level.decision == decision]
        return level.rate * len(self.outcomes.positions)

    def _is_hub(self, strangers: int, level: HubLevel) -> bool:
        tests = len(self.levels) * int(self.check.people.is_named.sum())
        return self._p_value(strangers, level) * tests <= SIGNIFICANCE

    def _p_value(self, strangers: int, level: HubLevel) -> float:
        """Return how probable at least so many are, by the binomial distribution."""
        if not strangers:
            return 1.0
        return float(scipy.special.bdtrc(strangers - 1, len(self.outcomes.positions), level.rate))

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

    def _find_attracting_faces(self, person: int, probes: Ids, level: HubLevel) -> tuple[list[int], int]:
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
            probes = probes[(outcomes.nearest == person) & (outcomes.stranger <= level.distance)]
            left = self._count_strangers(probes)
            if not self._is_hub(left, level) or len(removed) == MAX_REMOVED_FACES:
                return removed, left

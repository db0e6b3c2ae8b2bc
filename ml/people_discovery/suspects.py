"""Named people who may be wrong: two subjects who seem to be one, faces of somebody else, and people of two kinds."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ml.calibration import Calibration
from ml.distances import Distance
from ml.people_discovery.linkage import ClusterMeans
from ml.people_discovery.merging import MergeRule, merge_clusters
from ml.people_discovery.stranger_levels import StrangerLevels, draw_cohort
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
FACE_LOGIT, GROUP_LOGIT = 4.25, 2.5
SPLIT_LOGIT = 0.0
"""The faces of a person fall into two groups if it is more probable than not that these show two people."""
MIN_LEAD_LOGIT = 3.0
"""How much more probable, as a logit, a face must be the other person's than its own person's."""
MAX_FULLY_LINKED_FACES = 60
MIN_GROUP_FACES = 2


@dataclass(frozen=True)
class SuspectedDuplicate:
    """Two people who seem to be one. probability: that they are"""

    people: tuple[int, int]
    probability: float


@dataclass(frozen=True)
class SuspectedFace:
    """A face that seems to show another person. probability: that it shows `other`"""

    position: int
    person: int
    other: int
    probability: float


@dataclass(frozen=True)
class SuspectedMixture:
    """A person whose faces form separate groups. groups: positions of the faces, the largest group first"""

    person: int
    groups: tuple[tuple[int, ...], ...]


@dataclass(eq=False)
class NamedPeople:
    """The faces of named people, and what average linkage needs to know of them.

    rows: (N, d); people: (N,) numbers of people without a gap; links: (L, 2) positions of faces that are near
    """

    rows: Rows
    people: Ids
    links: Ids
    metric: Distance
    calibration: Calibration

    def __post_init__(self) -> None:
        cohort = draw_cohort(self.people, np.random.default_rng(0))
        self._levels = StrangerLevels.measure(self.rows, cohort, self.people, self.metric)
        self._clusters = ClusterMeans.of(self.rows, self.people, self._levels.levels, self.metric)
        self._rule = MergeRule(self.calibration, self._levels.typical, FACE_LOGIT, GROUP_LOGIT)

    def find_duplicates(self) -> list[SuspectedDuplicate]:
        """Find people who seem to be one, the most probable first."""
        pairs = self.people[self.links]
        pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
        logits = self._rule.logits(self._clusters, pairs)
        near = np.flatnonzero(logits >= self._rule.limits(self._clusters, pairs))
        order = near[np.argsort(-logits[near], kind="stable")]
        return [SuspectedDuplicate((int(pairs[i, 0]), int(pairs[i, 1])), _to_probability(logits[i])) for i in order]

    def find_wrong_faces(self) -> list[SuspectedFace]:
        """Find faces that are much more probably another person's than their own person's, the most probable first."""
        faces = np.concatenate([self.links, self.links[:, ::-1]])
        pairs = np.stack([faces[:, 0], self.people[faces[:, 1]]], axis=1)
        own_people = self.people[pairs[:, 0]]
        pairs = np.unique(pairs[(own_people != pairs[:, 1]) & (self._clusters.counts[own_people] > 1)], axis=0)
        face, other = pairs.T
        logits = self._logits(face, other, self._distances(face, other))
        own = self.people[face]
        counts = self._clusters.counts[own]
        same = self.metric.paired_distances(self.rows[face], self.rows[face]).astype(np.float64)
        own_logits = self._logits(face, own, (counts * self._distances(face, own) - same) / (counts - 1))
        single = (1 + 1 / self._clusters.counts[other]) / 2
        is_near = logits >= GROUP_LOGIT + (FACE_LOGIT - GROUP_LOGIT) * single
        suspects = np.flatnonzero(is_near & (logits - own_logits >= MIN_LEAD_LOGIT))
        suspects = suspects[np.argsort(-(logits - own_logits)[suspects], kind="stable")]
        _, first = np.unique(face[suspects], return_index=True)
        return [
            SuspectedFace(int(face[i]), int(own[i]), int(other[i]), _to_probability(logits[i]))
            for i in suspects[np.sort(first)]
        ]

    def find_mixtures(self) -> list[SuspectedMixture]:
        """Find people whose faces form two or more groups of at least MIN_GROUP_FACES faces."""
        links = self.links[self.people[self.links[:, 0]] == self.people[self.links[:, 1]]]
        alone = ClusterMeans.of(self.rows, np.arange(len(self.rows)), self._levels.levels, self.metric)
        rule = MergeRule(self.calibration, self._levels.typical, SPLIT_LOGIT, SPLIT_LOGIT)
        nobody = np.zeros(len(self.rows), np.bool_)
        no_pairs = np.empty((0, 2), np.int64)
        links = np.concatenate([links, *self._link_within_people()])
        groups = merge_clusters(alone, links, rule, cannot_link=no_pairs, is_named=nobody).owner
        mixtures = []
        for person in np.flatnonzero(self._clusters.counts >= 2 * MIN_GROUP_FACES).tolist():
            faces = self._faces_of(person)
            parts = [tuple(faces[groups[faces] == group].tolist()) for group in np.unique(groups[faces])]
            parts = sorted((part for part in parts if len(part) >= MIN_GROUP_FACES), key=len, reverse=True)
            if len(parts) > 1:
                mixtures.append(SuspectedMixture(person, tuple(parts)))
        return mixtures

    def _link_within_people(self) -> list[Ids]:
        counts = self._clusters.counts
        chosen = np.flatnonzero((counts >= 2 * MIN_GROUP_FACES) & (counts <= MAX_FULLY_LINKED_FACES))
        return [
            self._faces_of(person)[np.stack(np.triu_indices(counts[person], 1), axis=1)] for person in chosen.tolist()
        ]

    def _faces_of(self, person: int) -> Ids:
        start, stop = np.searchsorted(self._ordered_people, [person, person + 1])
        return self._order[start:stop]

    @cached_property
    def _order(self) -> Ids:
        order: Ids = np.argsort(self.people, kind="stable")
        return order

    @cached_property
    def _ordered_people(self) -> Ids:
        return self.people[self._order]

    def _distances(self, faces: Ids, people: Ids) -> Floats:
        """Return the mean distance of each of (P,) faces to the faces of (P,) people, itself included."""
        means = self._clusters.means[people]
        distances = self.metric.paired_distances(self.rows[faces], means).astype(np.float64)
        return distances + self._clusters.spreads[people] if self.metric.is_euclidean else distances

    def _logits(self, faces: Ids, people: Ids, distances: Floats) -> Floats:
        levels = (self._levels.levels[faces] + self._clusters.levels[people]) / 2
        logits: Floats = self.calibration.intercept - self.calibration.slope * (
            distances - (levels - self._levels.typical)
        )
        return logits


def _to_probability(logit: float) -> float:
    return float(1 / (1 + np.exp(-logit)))

"""Choose groups of faces to ask about at once: are these one person, and which of them do not belong?

Groups grow by average linkage (Sokal and Michener 1958) over the estimated probabilities of candidate pairs. One look
at twelve faces answers up to 66 pairs.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ml.active_learning.candidate_pairs import find_candidates
from ml.active_learning.face_groups import FaceGroups, PairAnswers
from ml.active_learning.pair_choice import estimate_probabilities
from ml.distances import Distance
from ml.types import Ids, Rows

MIN_CLUSTER_FACES = 3
MAX_CLUSTER_FACES = 12
MAX_SHOWN_FACES = 4
"""Faces that stand for a group of faces that are known to be one person."""
MIN_LINKAGE = 0.3
"""Groups are joined while the mean probability of the pairs between them is at least this."""


@dataclass(frozen=True, eq=False)
class ClusterQuestion:
    """Faces that may be one person.

    faces: (n,) row numbers; probability: mean estimated probability of the undecided pairs
    value: what the answer is expected to teach, in the unit of `PairSuggestions.values`
    """

    faces: Ids
    probability: float
    value: float


@dataclass(eq=False)
class _Links:
    """Clusters of groups. probability: cluster -> neighbour -> sum over the pairs of groups between them"""

    nodes: dict[int, list[int]] = field(default_factory=dict)
    shown: dict[int, int] = field(default_factory=dict)
    probability: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def merge(self, kept: int, other: int) -> None:
        """Join the cluster `other` to `kept`."""
        self.nodes[kept] += self.nodes.pop(other)
        self.shown[kept] += self.shown.pop(other)
        for neighbour, probability in self.probability.pop(other).items():
            del self.probability[neighbour][other]
            if neighbour != kept:
                total = self.probability[kept].get(neighbour, 0.0) + probability
                self.probability[kept][neighbour] = self.probability[neighbour][kept] = total

    def linkage(self, first: int, second: int) -> float:
        """Return the mean probability between two clusters; pairs that are no candidates count as 0."""
        total = self.probability[first].get(second, 0.0)
        return total / (len(self.nodes[first]) * len(self.nodes[second]))


def choose_clusters(
    rows: Rows, subjects: Ids, metric: Distance, answers: PairAnswers, limit: int, max_faces: int = MAX_CLUSTER_FACES
) -> list[ClusterQuestion]:
    """Choose at most `limit` groups of MIN_CLUSTER_FACES to `max_faces` faces, the most valuable first.

    rows: (N, d) embeddings; subjects: (N,) person of each face, -1 where unknown; answers: (L, 2) pairs of these rows

    No face is in two groups, and the answers leave something open in each group. A person who is known by more than
    MAX_SHOWN_FACES faces is shown by these; two people with different names are never in one group.
    """
    candidates = find_candidates(rows, metric, answers.pairs)
    if not len(candidates.pairs):
        return []
    probabilities = estimate_probabilities(candidates, subjects, answers)
    groups = FaceGroups.join(len(rows), answers, subjects)
    is_named = (subjects[candidates.pairs] >= 0).all(axis=1)
    is_open = ~groups.are_decided(candidates.pairs) & ~is_named
    ends = np.sort(groups.numbers[candidates.pairs[is_open]], axis=1)
    edges, at = np.unique(ends, axis=0, return_inverse=True)
    if not len(edges):
        return []
    counts = np.bincount(at.ravel())
    means = np.bincount(at.ravel(), probabilities[is_open]) / counts
    values = np.bincount(at.ravel(), (probabilities * candidates.excess**2)[is_open]) / counts
    names = np.full(len(rows), -1, np.int64)
    np.maximum.at(names, groups.numbers, subjects)
    clusters = _link(edges, means, groups, names, max_faces)
    questions = [_make_question(nodes, edges, means, values, groups) for nodes in clusters]
    large = [question for question in questions if len(question.faces) >= MIN_CLUSTER_FACES]
    return sorted(large, key=lambda question: -question.value)[:limit]


def _link(edges: Ids, means: NDArray[np.float64], groups: FaceGroups, names: Ids, max_faces: int) -> list[list[int]]:
    """Join groups, the most probable pair first. edges: (E, 2) groups; means: (E,); names: (N,) subject of a group"""
    links, cluster_of = _Links(), dict[int, int]()
    shown = np.minimum(np.bincount(groups.numbers), MAX_SHOWN_FACES)
    for node in np.unique(edges).tolist():
        links.nodes[node], links.shown[node], cluster_of[node] = [node], int(shown[node]), node
    for (a, b), probability in zip(edges.tolist(), means.tolist(), strict=True):
        links.probability[a][b] = links.probability[b][a] = probability
    ruled_out = set(groups.different.tolist())
    for k in np.argsort(-means, kind="stable").tolist():
        if means[k] < MIN_LINKAGE:
            break
        first, second = (cluster_of[node] for node in edges[k].tolist())
        if first == second or links.shown[first] + links.shown[second] > max_faces:
            continue
        if links.linkage(first, second) < MIN_LINKAGE:
            continue
        if _are_different(links.nodes[first], links.nodes[second], names, ruled_out):
            continue
        for node in links.nodes[second]:
            cluster_of[node] = first
        links.merge(first, second)
    return [nodes for nodes in links.nodes.values() if len(nodes) > 1]


def _are_different(first: list[int], second: list[int], names: Ids, ruled_out: set[int]) -> bool:
    """Whether two clusters hold two names, or two groups that an answer says are different people."""
    known = {int(name) for name in names[first + second] if name >= 0}
    if len(known) > 1:
        return True
    return any((min(a, b) << 32) + max(a, b) in ruled_out for a in first for b in second)


def _make_question(
    nodes: list[int], edges: Ids, means: NDArray[np.float64], values: NDArray[np.float64], groups: FaceGroups
) -> ClusterQuestion:
    inside = np.isin(edges, nodes).all(axis=1)
    faces = [np.flatnonzero(groups.numbers == node)[:MAX_SHOWN_FACES] for node in nodes]
    pair_count = len(nodes) * (len(nodes) - 1) / 2
    return ClusterQuestion(
        np.sort(np.concatenate(faces)), float(means[inside].sum() / pair_count), float(values[inside].sum())
    )

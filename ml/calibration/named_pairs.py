"""The near tails of distances between different people, and the pairs of faces that tell how strangers are named."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ml.calibration.impostor_distances import Distances, ImpostorDistances
from ml.calibration.pair_sampling import draw_impostor_pairs, draw_pairs_between
from ml.distances import Distance
from ml.types import Ids, Rows

MIN_PAIRS = 200
"""With fewer impostor pairs of faces, their tail is not extrapolated."""
MIN_PEOPLE_PAIRS = 10
"""The same for pairs of people: so many have five people."""
MAX_TAIL_RANK, MAX_TAIL_SHARE = 10, 0.04
"""The nearest pair from which a tail is extrapolated: the 10th, or a nearer one of few pairs. Its slope is taken up to
the pair of ten times this rank."""
MIN_SAMPLED_PAIRS, MAX_SAMPLED_PAIRS = 20_000, 100_000
MAX_COMPARED_NUMBERS = 200_000_000
"""Of the pairs of a sample, unless these would be fewer than MIN_SAMPLED_PAIRS."""


def extrapolate_tail(pairs: ImpostorDistances, fmr: float, design_effect: float = 1.0) -> float | None:
    """Return the distance at which this share of pairs is nearer; None if there are fewer than MIN_PAIRS.

    Below the smallest distances seen, the tail is extrapolated by the slope of its last decade. This falls faster than
    a normal tail, so the distance errs on the safe side. Of two samples that were joined, the nearest pairs may each
    count as many of the larger one, so that kept pairs are taken, not ranks.

    design_effect: how many pairs tell as much as an independent one (Kish 1965); above 1, of a sample that was not
        joined
    """
    if pairs.n < MIN_PAIRS:
        return None
    rank = float(np.clip(MAX_TAIL_SHARE * pairs.n / design_effect, 1, MAX_TAIL_RANK))
    (last, count), (before, larger_count) = (_find_pair(pairs, r, design_effect) for r in (rank, 10 * rank))
    known = count / pairs.n
    if fmr >= known:
        return pairs.threshold(min(fmr, 1.0)).distance
    slope = (before - last) / np.log10(larger_count / count) if larger_count > count else 0.0
    return float(last - slope * np.log10(known / fmr))


def _find_pair(pairs: ImpostorDistances, rank: float, design_effect: float) -> tuple[float, int]:
    """Return the distance of the independent pair of this rank, and how many pairs are as near."""
    position = int(rank) - 1 if design_effect == 1 else int(np.searchsorted(pairs.counts, rank * design_effect))
    position = min(position, len(pairs.distances) - 1)
    return pairs.distances[position], pairs.counts[position]


def find_design_effect(distances: Distances, groups: Ids) -> float:
    """Return how many of (P,) pairs tell as much as an independent one, if those of a group are alike.

    It is 1 + (size - 1) x intraclass correlation, with the size of the group of a pair (Kish 1965). groups: (P,)
    """
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    means = np.bincount(group, distances) / sizes
    freedom, total = len(distances) - len(sizes), float(distances.var())
    if not freedom or not total:
        return float(np.mean(sizes[group]))
    within = float(((distances - means[group]) ** 2).sum()) / freedom
    return 1 + (float(np.mean(sizes[group])) - 1) * float(np.clip(1 - within / total, 0, 1))


@dataclass(frozen=True)
class NamedPairs:
    """The distances of a gallery's faces with a name to faces of somebody else: what names a stranger.

    Pairs of faces without a name are left out. Distractors of a poor camera may all lie near each other, which tells
    nothing of who is named.

    faces: of faces with a name
    people_pairs: how many pairs of people these show
    design_effect: how many of the faces' pairs tell as much as an independent one: many photos of one day tell no more
        of strangers than one of them
    distractors: of faces with a name and distractors; None: there are none
    """

    faces: ImpostorDistances
    people_pairs: int
    design_effect: float
    distractors: ImpostorDistances | None = None

    @property
    def is_of_few_people(self) -> bool:
        """Whether these are pairs of fewer than five people alone, which tell nothing, however many the photos."""
        return self.people_pairs < MIN_PEOPLE_PAIRS and self.distractors is None

    @classmethod
    def measure(cls, rows: Rows, people: Ids, distractors: Rows, metric: Distance, seed: int = 0) -> Self | None:
        """Measure a sample of pairs; None if nobody has somebody else to be compared with.

        rows: (n, d) faces with a name; people: (n,) whom they show; distractors: (m, d)
        """
        count = int(np.clip(MAX_COMPARED_NUMBERS / rows.shape[1], MIN_SAMPLED_PAIRS, MAX_SAMPLED_PAIRS))
        pairs = draw_impostor_pairs(people, count, seed)
        if not len(pairs):
            return None
        distances, both = metric.pair_distances(rows, pairs), np.sort(people[pairs], axis=1)
        groups = np.unique(both, axis=0, return_inverse=True)[1].ravel()
        design_effect = find_design_effect(distances, groups)
        of_distractors = None
        if len(distractors):
            between = draw_pairs_between(len(rows), len(distractors), count, seed)
            of_distractors = ImpostorDistances.of(metric.pair_distances(np.concatenate([rows, distractors]), between))
        return cls(ImpostorDistances.of(distances), int(groups.max()) + 1, design_effect, of_distractors)

    def find_distance(self, fmr: float) -> float | None:
        """Return the distance within which this share of pairs lies, by the nearer of the two; None: too few pairs.

        Distractors alone do not decide, since the people of the gallery may be nearer.
        """
        if self.people_pairs < MIN_PEOPLE_PAIRS:
            return None
        faces = extrapolate_tail(self.faces, fmr, self.design_effect)
        distractors = extrapolate_tail(self.distractors, fmr) if self.distractors else None
        return faces if faces is None or distractors is None else min(faces, distractors)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        """Restore what `asdict` returned, through JSON or not. Raises KeyError, TypeError or ValueError."""
        distractors = stored.get("distractors")
        return cls(
            ImpostorDistances.from_dict(stored["faces"]),
            int(stored["people_pairs"]),
            float(stored["design_effect"]),
            ImpostorDistances.from_dict(distractors) if distractors else None,
        )

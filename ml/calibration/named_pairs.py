"""The near tails of distances between different people, and the pairs of faces that tell how strangers are named."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ml.calibration.impostor_distances import ImpostorDistances
from ml.calibration.pair_sampling import draw_impostor_pairs, draw_pairs_between
from ml.distances import Distance
from ml.types import Ids, Rows

MIN_PAIRS = 200
"""With fewer impostor pairs of faces, their tail is not extrapolated."""
MIN_PEOPLE_PAIRS = 10
"""The same for pairs of people, one pair of faces each: so many have five people."""
MAX_TAIL_RANK, MAX_TAIL_SHARE = 10, 0.04
"""The nearest pair from which a tail is extrapolated: the 10th, or a nearer one of few pairs. Its slope is taken up to
the pair of ten times this rank."""
MAX_SAMPLED_PAIRS = 100_000


def extrapolate_tail(pairs: ImpostorDistances, fmr: float, min_pairs: int = MIN_PAIRS) -> float | None:
    """Return the distance at which this share of pairs is nearer; None if there are fewer than `min_pairs`.

    Below the smallest distances seen, the tail is extrapolated by the slope of its last decade. This falls faster than
    a normal tail, so the distance errs on the safe side. Of two samples that were joined, the nearest pairs may each
    count as many of the larger one, so that kept pairs are taken, not ranks.
    """
    if pairs.n < min_pairs:
        return None
    kept = list(zip(pairs.distances, pairs.counts, strict=True))
    rank = max(1, min(MAX_TAIL_RANK, int(MAX_TAIL_SHARE * pairs.n)))
    (last, count), (before, larger_count) = (kept[min(index, len(kept)) - 1] for index in (rank, 10 * rank))
    known = count / pairs.n
    if fmr >= known:
        return pairs.threshold(min(fmr, 1.0)).distance
    slope = (before - last) / np.log10(larger_count / count) if larger_count > count else 0.0
    return float(last - slope * np.log10(known / fmr))


@dataclass(frozen=True)
class NamedPairs:
    """The distances of a gallery's faces with a name to faces of somebody else: what names a stranger.

    Pairs of faces without a name are left out. Distractors of a poor camera may all lie near each other, which tells
    nothing of who is named.

    faces: of faces with a name
    people: of one of these pairs of faces for each two people: many photos of one day tell no more than one of them
    distractors: of faces with a name and distractors; None: there are none
    """

    faces: ImpostorDistances
    people: ImpostorDistances
    distractors: ImpostorDistances | None = None

    @property
    def is_of_few_people(self) -> bool:
        """Whether pairs of the gallery tell nothing, however many photos there are: fewer than five people, and nobody
        else."""
        return self.people.n < MIN_PEOPLE_PAIRS and self.distractors is None

    @classmethod
    def measure(cls, rows: Rows, people: Ids, distractors: Rows, metric: Distance, seed: int = 0) -> Self | None:
        """Measure a sample of pairs; None if nobody has somebody else to be compared with.

        rows: (n, d) faces with a name; people: (n,) whom they show; distractors: (m, d)
        """
        pairs = draw_impostor_pairs(people, MAX_SAMPLED_PAIRS, seed)
        if not len(pairs):
            return None
        distances, both = metric.pair_distances(rows, pairs), np.sort(people[pairs], axis=1)
        first = np.unique(both, axis=0, return_index=True)[1]
        of_distractors = None
        if len(distractors):
            between = draw_pairs_between(len(rows), len(distractors), MAX_SAMPLED_PAIRS, seed)
            of_distractors = ImpostorDistances.of(metric.pair_distances(np.concatenate([rows, distractors]), between))
        return cls(ImpostorDistances.of(distances), ImpostorDistances.of(distances[first]), of_distractors)

    def find_distance(self, fmr: float) -> float | None:
        """Return the distance within which this share of pairs lies, by the nearest of the three; None: too few pairs.

        Distractors alone do not decide, since the people of the gallery may be nearer.
        """
        faces, people = extrapolate_tail(self.faces, fmr), extrapolate_tail(self.people, fmr, MIN_PEOPLE_PAIRS)
        if faces is None or people is None:
            return None
        distractors = extrapolate_tail(self.distractors, fmr) if self.distractors else None
        return min(faces, people, np.inf if distractors is None else distractors)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        """Restore what `asdict` returned, through JSON or not. Raises KeyError, TypeError or ValueError."""
        faces, people = (ImpostorDistances.from_dict(stored[name]) for name in ("faces", "people"))
        distractors = stored.get("distractors")
        return cls(faces, people, ImpostorDistances.from_dict(distractors) if distractors else None)

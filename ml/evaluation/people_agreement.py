"""Compare clusters of faces with the people on them: pairwise precision and recall, and clusters per person."""

from dataclasses import dataclass

import numpy as np

from ml.errors import WrongShape
from ml.types import Ids


@dataclass(frozen=True)
class PeopleAgreement:
    """How well clusters agree with people.

    precision: share of the pairs of faces in one cluster that show one person; recall: share of the pairs of faces of
        one person that lie in one cluster; f1: their harmonic mean. Pairs weigh alike, so people with many photos count
        by the square of them.
    b_cubed_precision, b_cubed_recall, b_cubed_f1: the same per face, averaged over faces (Bagga and Baldwin 1998)
    clusters_per_person: the mean number of different clusters that the faces of a person with several faces lie in;
        a face that is alone counts as a cluster
    clusters: number of clusters with two or more faces; mixed: how many of them show several people
    people: number of people with two or more faces; alone: number of faces in a cluster of their own
    """

    precision: float
    recall: float
    f1: float
    b_cubed_precision: float
    b_cubed_recall: float
    b_cubed_f1: float
    clusters_per_person: float
    clusters: int
    mixed: int
    people: int
    alone: int


def compare_with_people(people: Ids, clusters: Ids) -> PeopleAgreement:
    """Compare (N,) cluster numbers with (N,) people. A share of nothing is NaN. Raises WrongShape."""
    if people.shape != clusters.shape or people.ndim != 1 or not len(people):
        raise WrongShape("people and clusters", "of equal length, above 0", f"{people.shape} and {clusters.shape}")
    _, person, person_sizes = np.unique(people, return_inverse=True, return_counts=True)
    _, cluster, cluster_sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    cells, shared = np.unique(person * len(cluster_sizes) + cluster, return_counts=True)
    person_of, cluster_of = np.divmod(cells, len(cluster_sizes))
    both = float(_count_pairs(shared))
    with np.errstate(invalid="ignore"):
        precision = float(np.float64(both) / _count_pairs(cluster_sizes))
        recall = float(np.float64(both) / _count_pairs(person_sizes))
    per_face = shared / len(people)
    b_cubed = (
        float((per_face * shared / cluster_sizes[cluster_of]).sum()),
        float((per_face * shared / person_sizes[person_of]).sum()),
    )
    several, spread = person_sizes > 1, np.bincount(person_of)
    shown = np.bincount(cluster_of)
    return PeopleAgreement(
        precision, recall, _harmonic_mean(precision, recall), *b_cubed, _harmonic_mean(*b_cubed),
        float(spread[several].mean()) if several.any() else float("nan"),
        int((cluster_sizes > 1).sum()), int((shown > 1).sum()), int(several.sum()), int((cluster_sizes == 1).sum()),
    )  # fmt: skip


def _count_pairs(sizes: Ids) -> np.float64:
    exact = sizes.astype(np.float64)
    return np.float64((exact * (exact - 1)).sum() / 2)


def _harmonic_mean(first: float, second: float) -> float:
    return 2 * first * second / (first + second) if first + second else 0.0

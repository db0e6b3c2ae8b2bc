"""Measure how well clusters of embeddings match people: NMI of k-means, as metric-learning papers report it (001)."""

import numpy as np
from numpy.typing import NDArray

from ml.errors import WrongShape
from ml.evaluation.intervals import Interval, Times, bootstrap
from ml.types import Ids, Rows

KMEANS_STARTS = 3


def measure_cluster_nmi(rows: Rows, people: Ids, *, seed: int = 0, resamples: int = 500) -> Interval:
    """Cluster (N, d) rows by k-means with k = the number of people, and return the NMI with the (N,) people."""
    return nmi(people, cluster_faces(rows, len(np.unique(people)), seed=seed), resamples=resamples)


def cluster_faces(rows: Rows, k: int, *, seed: int = 0) -> Ids:
    """Cluster (N, d) rows by k-means (scikit-learn), the best of three starts: (N,) numbers. Raises WrongShape."""
    if not 1 <= k <= len(rows):
        raise WrongShape("k", f"1 to {len(rows)}, the number of faces", k)
    from sklearn.cluster import KMeans  # imported here, because it takes a second to load

    labels: Ids = KMeans(k, n_init=KMEANS_STARTS, random_state=seed).fit_predict(rows).astype(np.int64)
    return labels


def nmi(people: Ids, clusters: Ids, *, resamples: int = 500, seed: int = 0) -> Interval:
    """Compute the mutual information of (N,) people and clusters over the mean of their entropies, 0..1.

    The interval resamples people with all their faces and keeps the clusters. A resample contains fewer different
    people, which alone changes NMI, so the resampled values are shifted to have the measured mean.
    NaN if there is one person in one cluster. Raises WrongShape.
    """
    _, who = np.unique(people, return_inverse=True)
    _, where = np.unique(clusters, return_inverse=True)
    if len(who) != len(where) or not len(who):
        raise WrongShape("people and clusters", "of equal length, above 0", f"{len(who)} and {len(where)}")
    cells, counts = np.unique(who * (where.max() + 1) + where, return_counts=True)
    row, column = np.divmod(cells, where.max() + 1)
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    by_cluster = np.argsort(column, kind="stable")
    cluster_starts = np.flatnonzero(np.diff(column[by_cluster], prepend=-1))

    def figures(times: Times) -> NDArray[np.float64]:
        joint = times[:, row] * counts
        joint /= joint.sum(1, keepdims=True)
        h_joint, h_people, h_clusters = (
            _entropy(part)
            for part in (
                joint,
                np.add.reduceat(joint, starts, axis=1),
                np.add.reduceat(joint[:, by_cluster], cluster_starts, axis=1),
            )
        )
        with np.errstate(invalid="ignore"):
            return np.asarray(2 * (h_people + h_clusters - h_joint) / (h_people + h_clusters), np.float64)[:, None]

    return bootstrap(figures, len(starts), centred=True, resamples=resamples, seed=seed)[0]


def _entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (R,) entropies in nats of (R, n) rows that sum to 1."""
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(-(shares * logs).sum(1), np.float64)

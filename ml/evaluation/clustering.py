"""Do faces fall into heaps of one person each? NMI of k-means, as metric-learning papers report it (001)."""

import numpy as np
from numpy.typing import NDArray

from ml.errors import WrongShape
from ml.evaluation.intervals import Interval, Times, bootstrap
from ml.types import Ids, Rows

STARTS = 3


def nmi_of(rows: Rows, people: Ids, *, seed: int = 0, resamples: int = 500) -> Interval:
    """NMI of (N, d) rows, put into as many heaps by k-means as there are people among (N,) numbers."""
    return nmi(people, heaps(rows, len(np.unique(people)), seed=seed), resamples=resamples)


def heaps(rows: Rows, k: int, *, seed: int = 0) -> Ids:
    """(N,) numbers of k heaps: k-means, the best of three starts (scikit-learn's, Euclidean). Raises WrongShape."""
    if not 1 <= k <= len(rows):
        raise WrongShape("heaps", f"1 to {len(rows)}, the faces that there are", k)
    from sklearn.cluster import KMeans  # a second to load, for those who cluster

    labels: Ids = KMeans(k, n_init=STARTS, random_state=seed).fit_predict(rows).astype(np.int64)
    return labels


def nmi(people: Ids, heap: Ids, *, resamples: int = 500, seed: int = 0) -> Interval:
    """Mutual information of (N,) people and heaps over the arithmetic mean of their entropies, 0..1.

    The interval resamples people with all their faces and leaves the heaps as they are. A resample holds fewer
    different people, which alone moves NMI: its mean is set back to the figure. NaN for one person in one heap.
    """
    _, who = np.unique(people, return_inverse=True)
    _, where = np.unique(heap, return_inverse=True)
    if len(who) != len(where) or not len(who):
        raise WrongShape("people and heaps", "as many, not none", f"{len(who)} and {len(where)}")
    cells, counts = np.unique(who * (where.max() + 1) + where, return_counts=True)
    row, column = np.divmod(cells, where.max() + 1)
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    by_heap = np.argsort(column, kind="stable")
    heap_starts = np.flatnonzero(np.diff(column[by_heap], prepend=-1))

    def figures(times: Times) -> NDArray[np.float64]:
        joint = times[:, row] * counts
        joint /= joint.sum(1, keepdims=True)
        h_joint, h_people, h_heaps = (
            _entropy(part)
            for part in (
                joint,
                np.add.reduceat(joint, starts, axis=1),
                np.add.reduceat(joint[:, by_heap], heap_starts, axis=1),
            )
        )
        with np.errstate(invalid="ignore"):
            return np.asarray(2 * (h_people + h_heaps - h_joint) / (h_people + h_heaps), np.float64)[:, None]

    return bootstrap(figures, len(starts), centred=True, resamples=resamples, seed=seed)[0]


def _entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """(R,) in nats, of rows that sum to 1."""
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(-(shares * logs).sum(1), np.float64)

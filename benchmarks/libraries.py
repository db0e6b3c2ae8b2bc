"""Compare parts of `ml` with general libraries that could replace them (docs/decisions/0013).

    python -m benchmarks.libraries [--json FILE]

Both run in turn within each round, on one thread. Times are medians of CPU time over rounds, and ratios are medians of
the ratios of rounds, on which other programs have little effect. `difference` is the largest absolute difference of the
results; for k-means with a library's start, it is the loss of normalised mutual information with the true people. The
data are random.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import faiss
import geoopt
import numpy as np
import torch
from geoopt.manifolds.stiefel import EuclideanStiefel
from numpy.typing import NDArray
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.reducers import MeanReducer
from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest
from sklearn.cluster import KMeans
from sklearn.metrics import average_precision_score, normalized_mutual_info_score, roc_auc_score, roc_curve
from threadpoolctl import threadpool_limits
from torch import Tensor

from ml.calibration.rate_intervals import clopper_pearson
from ml.clustering.kmeans import k_means, nearest, seeds
from ml.distances import EUCLIDEAN
from ml.evaluation.retrieval import Faces, average_precisions, rank
from ml.evaluation.verification import det
from ml.losses.triplet import Triplet
from ml.manifolds.common.rsgdm import Rsgdm
from ml.manifolds.stiefel import StiefelManifold, orthonormal
from ml.metric_learning.held_out_score import compute_auc
from ml.metric_learning.tensors import squared_distances
from ml.mining.semihard import SemiHard

ROUNDS, SEEDS = 9, 7
Floats = NDArray[np.float64]
Run = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """CPU milliseconds of both, the ratio of the library's to ours, and the difference of their results."""

    name: str
    ours: float
    library: float
    ratio: float
    difference: float


def compare(name: str, ours: Run, library: Run, difference: float | None = None, calls: int = 1) -> Row:
    """Compare both. calls: calls per round; difference: None to compare their results"""
    if difference is None:
        difference = float(np.abs(np.asarray(ours(), np.float64) - np.asarray(library(), np.float64)).max())
    rounds = [[1000 * measure(run, calls) / calls for run in (ours, library)] for _ in range(ROUNDS)]
    times = [median(column) for column in zip(*rounds, strict=True)]
    return Row(name, times[0], times[1], median(b / a for a, b in rounds), difference)


def measure(run: Run, calls: int) -> float:
    start = process_time()
    for _ in range(calls):
        run()
    return process_time() - start


def compare_metrics(rng: np.random.Generator) -> list[Row]:
    """Compare AUC, the DET curve, and the exact interval of a rate."""
    rows = []
    for count in (200, 4000, 100_000):
        scores, same = rng.normal(size=count).astype(np.float32), np.arange(count) % 2 == 0
        tensors = torch.from_numpy(scores), torch.from_numpy(np.where(same, 1.0, -1.0))
        library = partial(roc_auc_score, same, scores)
        rows.append(compare(f"AUC of {count:,} pairs: roc_auc_score", partial(compute_auc, *tensors), library, calls=5))
    genuine, impostor = (rng.normal(mean, 0.5, size).astype(np.float32) for mean, size in ((1, 20_000), (2, 1_000_000)))
    both, same = -np.concatenate([genuine, impostor]), np.arange(1_020_000) < 20_000

    def run_det() -> Floats:
        curve = det(genuine, impostor)
        return np.stack([curve.fmr, 1 - curve.fnmr])

    def run_roc_curve() -> Floats:
        return np.stack(roc_curve(same, both, drop_intermediate=False)[:2])

    def run_binomtest() -> tuple[float, float]:
        return tuple(binomtest(3, 150).proportion_ci(0.95, "exact"))

    rows.append(compare("DET of 1,020,000 pairs: roc_curve", run_det, run_roc_curve))
    rows.append(
        compare("exact interval of 3 in 150: binomtest", partial(clopper_pearson, 3, 150), run_binomtest, calls=20)
    )
    return rows


def compare_precision(rng: np.random.Generator) -> Row:
    """Compare average precision of 100 queries, ranking included."""
    people, ids = np.repeat(np.arange(2000), 5), np.arange(10_000)
    embeddings = (rng.normal(size=(2000, 64))[people] + rng.normal(size=(10_000, 64))).astype(np.float32)
    gallery = Faces(embeddings, people.astype(np.float64), ids)
    queries = Faces(embeddings[:100], gallery.values[:100], ids[:100])

    def run_ours() -> Floats:
        return average_precisions(rank(queries, gallery))

    def run_library() -> list[float]:
        scores = -EUCLIDEAN.distances(queries.rows, embeddings)
        return [average_precision_score(people[ids != q] == people[q], scores[q, ids != q]) for q in range(100)]

    return compare("rank 10,000 for 100 queries: average_precision_score", run_ours, run_library)


def compare_starts(rng: np.random.Generator) -> list[Row]:
    """Compare k-means with each library's start, with as many clusters as people, as for NMI."""
    people, k = np.repeat(np.arange(1000), 5), 1000
    rows = (rng.normal(size=(k, 64))[people] + 0.8 * rng.normal(size=(len(people), 64))).astype(np.float32)
    z = torch.from_numpy(rows)

    def run_scikit_learn() -> Tensor:
        return torch.from_numpy(KMeans(k, n_init=1, random_state=0).fit(rows).cluster_centers_)

    def information(means: Tensor) -> float:
        return float(normalized_mutual_info_score(people, nearest(z, means).numpy()))

    ours = partial(k_means, z, k, rounds=25)
    libraries = {"faiss": partial(run_faiss, rows, k, None, 25), "scikit-learn": run_scikit_learn}
    return [
        compare(f"k-means, 5,000 x 64, k = {k}: {name}'s", ours, run, information(ours()) - information(run()))
        for name, run in libraries.items()
    ]


def compare_rounds(rng: np.random.Generator) -> list[Row]:
    """Compare rounds of k-means from our start with FAISS. The difference is the largest over SEEDS seeds."""
    rows = []
    for n, d, k in ((10_000, 32, 8), (9000, 128, 16), (60_000, 66, 128)):
        mixed = (rng.normal(size=(200, d))[rng.integers(0, 200, n)] + 0.8 * rng.normal(size=(n, d))).astype(np.float32)
        z = torch.from_numpy(mixed)

        def run_library(seed: int = 0, z: Tensor = z, k: int = k) -> Tensor:
            return run_faiss(z.numpy(), k, seeds(z, k, torch.Generator().manual_seed(seed)).numpy(), 10)

        differences = [float((k_means(z, k, seed, 10) - run_library(seed)).abs().max()) for seed in range(SEEDS)]
        ours = partial(k_means, z, k, rounds=10)
        rows.append(compare(f"k-means, {n:,} x {d}, k = {k}: faiss, our start", ours, run_library, max(differences)))
    return rows


def run_faiss(rows: NDArray[np.float32], k: int, start: NDArray[np.float32] | None, rounds: int) -> Tensor:
    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": 2**31 - 1}
    lloyd = faiss.Kmeans(rows.shape[1], k, niter=rounds, seed=1, **limits)
    lloyd.train(rows, init_centroids=start)
    return torch.from_numpy(np.array(lloyd.centroids))


def compare_manifolds() -> list[Row]:
    """Compare projection, retraction and descent on the Stiefel manifold."""
    chance, manifold, library = torch.Generator().manual_seed(0), StiefelManifold(), EuclideanStiefel()
    at = orthonormal(torch.randn(1000, 64, generator=chance))
    vector = torch.randn(1000, 64, generator=chance) / 32
    tangent = manifold.project(at, vector)
    ours, theirs = at.clone().requires_grad_(True), geoopt.ManifoldParameter(at.clone(), manifold=library)
    ours.grad, theirs.grad = vector.clone(), vector.clone()
    descent = Rsgdm([{"params": [ours], "manifold": manifold}], lr=0.01)
    library_descent = geoopt.optim.RiemannianSGD([theirs], lr=0.01, momentum=0.9)
    project = partial(manifold.project, at, vector), partial(library.egrad2rgrad, at, vector)
    retract = partial(manifold.retract, at, tangent), partial(library.retr, at, tangent)
    return [
        compare("Stiefel 1,000 x 64, projection: geoopt", *project, calls=20),
        compare("the same, retraction: geoopt", *retract, calls=20),
        compare("the same, a step: RiemannianSGD", descent.step, library_descent.step, float("nan"), calls=20),
    ]


def compare_loss() -> Row:
    """Compare the triplet loss and its gradient, for the triplets of our miner."""
    chance, labels = torch.Generator().manual_seed(0), torch.arange(640) // 4
    z = (torch.randn(160, 128, generator=chance)[labels] + torch.randn(640, 128, generator=chance)) / 128**0.5
    alike = labels[:, None] == labels
    triplets = SemiHard(5)(squared_distances(z), alike & ~torch.eye(640, dtype=torch.bool), ~alike, chance)
    distance = LpDistance(normalize_embeddings=False, p=2, power=2)
    library_loss = TripletMarginLoss(margin=0.5, distance=distance, reducer=MeanReducer())

    def gradient(loss: Callable[[Tensor], Tensor]) -> NDArray[np.float32]:
        point = z.clone().requires_grad_(True)
        [slope] = torch.autograd.grad(loss(point), point)
        return np.asarray(slope)

    ours = partial(gradient, lambda point: Triplet(0.5)(squared_distances(point), triplets))
    library = partial(gradient, lambda point: library_loss(point, labels, tuple(triplets.T)))
    return compare(f"gradient of {len(triplets):,} triplets of 640 x 128: TripletMarginLoss", ours, library)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(0)
    with threadpool_limits(1):
        rows = [*compare_metrics(rng), compare_precision(rng), *compare_starts(rng), *compare_rounds(rng)]
        rows += [*compare_manifolds(), compare_loss()]
    table = Table("", "ours, ms", "library, ms", "ratio", "difference", title="CPU time, one thread")
    for row in rows:
        table.add_row(row.name, f"{row.ours:.3g}", f"{row.library:.3g}", f"{row.ratio:.2f}", f"{row.difference:.2g}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()

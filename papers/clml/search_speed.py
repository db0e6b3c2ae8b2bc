"""003, Figure 5, speed: a million random vectors with the distribution of a fitted embedding."""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from ml.embedders.base import Progress
from ml.evaluation.intervals import Interval, bootstrap_mean
from ml.indexes.common.cells import KMEANS_STAGES
from ml.indexes.flat import FlatIndex
from ml.indexes.ivf import IvfIndex
from ml.types import Rows
from papers.clml.fits import DESCRIPTOR_NAMES, ClmlFits, K
from papers.clml.table_rows import TableComputations
from papers.harness.results import percent
from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, ComputationOutput, Figure, Row, Table

PAPER_FACES, QUERIES, TIMED_QUERIES = 1_000_000, 5000, 200
MIXTURE_COMPONENTS = 256
"""Gaussians of the mixture that models the distribution of the embedding."""
PAPER_SPEEDUPS = {64: 14.0, 8: 100.0}
"""Times fewer distances; at m = 64 without loss, at m = 8 for less than five points of mAP."""
SYNTHETIC_VECTORS_NOTE = "drawn vectors, not a million faces"
COLUMNS = ("times fewer distances", "recall@10", "ms per query", "ms exhaustive", "times faster")


def make_speed_table(fits: ClmlFits) -> TableComputations:
    features = fits.best
    of = fits.clml(features, K)[0]
    many, p = fits.many, fits.sizes.cells_of_many
    computation = make_drawn_vectors_computation(fits.context, of, many, p)

    def table() -> Table:
        result = fits.context.result(computation)
        rows = [_row(point, computation, many) for point in result.record["points"]]
        header = (
            f"{many:,} vectors *drawn* from a mixture of {MIXTURE_COMPONENTS} Gaussians fitted to the embedding "
            "(CLML, d = 32, k = "
            f"{K}, {DESCRIPTOR_NAMES[features]}) of LFW and all distractors, for speed alone; {QUERIES:,} queries "
            "drawn likewise; "
            f"p = {p:,} cells by k-means; one thread, one query at a time, the median of {TIMED_QUERIES}; recall in "
            "percent, "
            f"[ ] over queries."
        )
        return Table("figure-5-speed", f"Figure 5: speed at {many:,}", header, COLUMNS, rows)

    return TableComputations([of, computation], table)


def make_drawn_vectors_computation(context: RunContext, of: Computation, many: int, p: int) -> Computation:
    """Measure searches. Record: `points`, for each m `fraction`, `recall` (of the ten nearest), `ms` and `flat_ms`."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        fitted = context.result(of)
        whole = np.concatenate([fitted.arrays[n] for n in ("lfw", "distractors") if n in fitted.arrays])
        rows, queries = vectors(whole, many, 0), vectors(whole, QUERIES, 1)
        index, flat = IvfIndex(rows.shape[1], p=p, device="cpu").train(rows), FlatIndex(rows.shape[1])
        for one in (index, flat):
            one.add(np.arange(many), rows)
        return {"points": measure_searches(index, flat, queries, [m for m in PAPER_SPEEDUPS if m < p])}, {}

    key = {
        "what": "drawn vectors",
        "many": many,
        "p": p,
        "queries": QUERIES,
        "k-means": KMEANS_STAGES,
        "of": of.key,
    }
    return Computation(f"{many:,} drawn vectors", key, 120.0 * many / PAPER_FACES + 10, run)


def vectors(rows: Rows, many: int, seed: int) -> Rows:
    """Draw (many, d) vectors from a mixture fitted to (N, d) rows; of unit length if the rows are."""
    import torch

    from ml.clustering.gaussian_mixture import fit_mixture

    mixture = fit_mixture(torch.from_numpy(rows), min(MIXTURE_COMPONENTS, len(rows) // 10), 0)
    draw = np.random.default_rng(seed)
    weights = mixture.log_weights.double().exp().numpy()
    part = draw.choice(len(weights), many, p=weights / weights.sum())
    made: Rows = draw.standard_normal((many, rows.shape[1]), dtype=np.float32)
    made = made * mixture.variances.sqrt().numpy()[part] + mixture.means.numpy()[part]
    norms = np.linalg.norm(rows, axis=1)
    if np.ptp(norms) < 1e-3 * norms.mean():
        made *= norms.mean() / np.linalg.norm(made, axis=1, keepdims=True)
    return made


def measure_searches(index: IvfIndex, flat: FlatIndex, queries: Rows, ms: list[int]) -> list[dict[str, Any]]:
    """Time searches in one thread. A neighbour counts as found if it is as near as the true tenth."""
    truth = flat.search(queries, 10).distances[:, -1:]
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        whole = _median_ms(partial(flat.search, k=10), queries[: TIMED_QUERIES // 8])
        points = []
        for m in ms:
            matches = index.search(queries, 10, m=m)
            took = _median_ms(partial(index.search, k=10, m=m), queries[:TIMED_QUERIES])
            recall = asdict(bootstrap_mean((matches.distances <= truth).mean(axis=1)))
            fraction = float(matches.fraction.mean())
            points.append({"m": m, "fraction": fraction, "recall": recall, "ms": took, "flat_ms": whole})
    finally:
        faiss.omp_set_num_threads(threads)
    return points


def _median_ms(search: Callable[[Rows], object], queries: Rows) -> float:
    took = []
    for query in queries:
        started = time.perf_counter()
        search(query[None])
        took.append(1000 * (time.perf_counter() - started))
    return float(np.median(took))


def recall(point: dict[str, Any]) -> Figure:
    return percent(Interval(**point["recall"]))


def _row(point: dict[str, Any], computation: Computation, many: int) -> Row:
    """Make a row. The paper only counts distances, so the verdict is about those."""
    fewer, faster = 1 / point["fraction"], point["flat_ms"] / point["ms"]
    values = (Figure(fewer), recall(point), Figure(point["ms"]), Figure(point["flat_ms"]), Figure(faster))
    figures = dict(zip(COLUMNS, values, strict=True))
    paper = {COLUMNS[0]: PAPER_SPEEDUPS[point["m"]]} if many == PAPER_FACES else {}
    cause = f"wall clock gains {faster * point['fraction']:.2f} of what distances do"
    changed = SYNTHETIC_VECTORS_NOTE if paper else ""
    return Row(f"m = {point['m']}", figures, paper, cause=cause, computations=[computation], altered=changed)

"""003, Figure 5: how many distances multiple assignment saves, and the loss of mAP."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.distances import EUCLIDEAN
from ml.embedders.base import Progress
from ml.evaluation.intervals import bootstrap_mean
from ml.evaluation.protocols import Protocol
from ml.indexes.common.cells import fit_centroids
from ml.types import Ids, Rows
from papers.clml.fits import DESCRIPTOR_NAMES, ClmlFits, K
from papers.clml.table_rows import TableComputations
from papers.harness.results import percent
from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, ComputationOutput, Figure, Plot, Result, Row, Table

SAMPLES_PER_CELL, KMEANS_ROUNDS = 512, 25
"""Of k-means: rows for each cell, and iterations."""
MAX_MAP_LOSS = 0.5
"""Points of mAP that a faster search may lose."""
COLUMNS = (
    "exhaustive mAP",
    "m = 1: mAP",
    "m = 1: times fewer",
    f"within {MAX_MAP_LOSS}: m",
    f"within {MAX_MAP_LOSS}: times fewer",
)


def make_assignment_table(fits: ClmlFits) -> TableComputations:
    features = fits.best
    of = fits.clml(features, K)
    computations = [make_assignment_computation(fits.context, computation, fits.sizes.cells) for computation in of]

    def table() -> Table:
        results = fits.context.results(computations)
        rows = [_row(results, name, computations) for name in results[0].record["curves"]]
        faces = results[0].record["faces"]
        header = (
            f"LFW with all UTKFace distractors ({faces:,} faces; for the paper's million see the next table), "
            f"{DESCRIPTOR_NAMES[features]}, CLML, d = 32, k = {K}, {fits.name_protocols(features)}; mAP in percent; "
            "times "
            f"fewer: distances "
            "of an exhaustive search over those computed, centroids counted."
        )
        notes = [
            "a face that lies in no cell searched is not found and adds nothing to its query's AP",
            f"the smallest m that is within {MAX_MAP_LOSS} points of the exhaustive mAP, in the mean of the draws",
        ]
        plot = Plot(
            "clml-figure-5",
            "mAP against the fraction of distances computed, one curve per number of cells",
            partial(_draw, results),
        )
        return Table("figure-5", "Figure 5: multiple assignment", header, COLUMNS, rows, [plot], notes)

    return TableComputations([*of, *computations], table)


def make_assignment_computation(context: RunContext, of: Computation, ps: Sequence[int]) -> Computation:
    """Measure multiple assignment.

    Record: `curves`, [[m, fraction of distances], ...] by name. Arrays: `<name>` (M, Q), AP of each query.
    """

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        fitted, split = context.result(of), context.protocol(str(of.key["protocol"]))
        parts = [part for part in ("lfw", "distractors") if part in fitted.arrays]
        rows = np.concatenate([fitted.arrays[part] for part in parts])
        shares = np.concatenate([fitted.arrays[f"{part}_shares"] for part in parts])
        search = SortedGallery.of(rows, split)
        curves, arrays = dict[str, Any](), dict[str, NDArray[Any]]()
        for p in (p for p in ps if p < len(search.gallery)):
            near, member = search.means(rows, p)
            curves[f"k-means, p = {p}"], arrays[f"k-means, p = {p}"] = search.curve(near, member)
        near, member = np.argsort(-shares[split.queries], axis=1, kind="stable"), shares[search.gallery].argmax(1)
        name = f"GMM, p = {shares.shape[1]}"
        curves[name], arrays[name] = search.curve(near, member)
        return {"curves": curves, "faces": len(rows)}, arrays | {"people": split.people[split.queries].astype(float)}

    key = {
        "what": "multiple assignment",
        "ps": list(ps),
        "k-means": [SAMPLES_PER_CELL, KMEANS_ROUNDS],
        "of": of.key,
    }
    return Computation(f"{of.name}, multiple assignment", key, 40.0, run)


class SortedGallery:
    """The rankings of a protocol's gallery and all distractors, sorted once for each query."""

    def __init__(self, queries: Ids, gallery: Ids, order: Ids, relevant: NDArray[np.bool_]) -> None:
        self.queries, self.gallery, self.order, self.relevant = queries, gallery, order, relevant

    @classmethod
    def of(cls, rows: Rows, split: Protocol) -> "SortedGallery":
        gallery = np.concatenate([split.gallery, np.arange(len(split.people), len(rows))])
        order = np.argsort(EUCLIDEAN.distances(rows[split.queries], rows[gallery]), axis=1, kind="stable")
        people = np.concatenate([split.people, np.full(len(rows) - len(split.people), -2)])
        relevant = people[gallery[order]] == people[split.queries][:, None]
        return cls(split.queries, gallery, order.astype(np.int32), relevant)

    def means(self, rows: Rows, p: int) -> tuple[Ids, Ids]:
        """Fit cells by k-means: (Q, p) cells of each query, nearest first, and (N,) of each face."""
        means = fit_centroids(rows[self.gallery], p, EUCLIDEAN, 0, [(SAMPLES_PER_CELL, KMEANS_ROUNDS)])
        member = EUCLIDEAN.distances(rows[self.gallery], means).argmin(1)
        return np.argsort(EUCLIDEAN.distances(rows[self.queries], means), axis=1, kind="stable"), member

    def curve(self, near: Ids, member: Ids) -> tuple[list[list[float]], NDArray[np.float64]]:
        """Return [[m, fraction], ...] and (M, Q) AP.

        near: (Q, p) cells of each query, nearest first; member: (N,) cell of each face
        """
        p = near.shape[1]
        rank_of_cell = np.empty_like(near)
        np.put_along_axis(rank_of_cell, near, np.arange(p)[None], axis=1)
        reached = np.take_along_axis(rank_of_cell, member[self.order], axis=1)
        ms = [*(1 << power for power in range(p.bit_length()) if 1 << power < p), p]
        points, precisions = [], []
        for m in ms:
            inside = reached < m
            points.append([float(m), float((p + inside.sum(1)).mean() / len(self.gallery))])
            precisions.append(self._precision(inside))
        return points, np.array(precisions)

    def _precision(self, inside: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return (Q,) AP of rankings of only the faces inside the probed cells."""
        hit = inside & self.relevant
        rank = np.cumsum(inside, axis=1, dtype=np.int32)
        precision = np.where(hit, np.cumsum(hit, axis=1, dtype=np.int32) / np.maximum(rank, 1), 0.0).sum(1)
        return np.asarray(precision / np.maximum(self.relevant.sum(1), 1), np.float64)


def _row(results: Sequence[Result], name: str, computations: Sequence[Computation]) -> Row:
    """Make a row with the smallest m within MAX_MAP_LOSS points; test whether k-means cells are better."""
    times, precision = _mean_curve(results, name)
    at_m = find_first_within_loss(precision.mean(1))
    m = results[0].record["curves"][name][at_m][0]
    people = np.concatenate([r.arrays["people"] for r in results])
    whole, first = (percent(bootstrap_mean(precision[at], people), draws=len(results)) for at in (-1, 0))
    values = (whole, first, Figure(times[0]), Figure(m), Figure(times[at_m]))
    row = Row(
        name,
        dict(zip(COLUMNS, values, strict=True)),
        computations=computations,
        about={"curves": [r.record["curves"][name] for r in results]},
    )
    rival = next((n for n in results[0].record["curves"] if n == f"k-means, p = {K}"), None)
    if not name.startswith("GMM") or rival is None:
        return row
    other_times, other = _mean_curve(results, rival)
    sign = int(other.mean(1)[0] >= precision.mean(1)[0]) + int(other_times[0] >= times[0])
    better = ("in neither", "in one", "in both")[sign]
    cause = f"k-means cells are better {better} of mAP and speed at m = 1 (paper: in both)"
    return replace(row, cause=cause)


def find_first_within_loss(means: NDArray[np.float64]) -> int:
    """Return the first index from which mAP is within MAX_MAP_LOSS points of the last one. means: (M,) 0..1"""
    good = means >= means[-1] - MAX_MAP_LOSS / 100
    return int(len(good) - np.argmin(good[::-1])) if not good.all() else 0


def _mean_curve(results: Sequence[Result], name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (M,) the factors by which distances are reduced, and (M, all queries) AP."""
    fractions = np.mean([[f for _, f in r.record["curves"][name]] for r in results], axis=0)
    return 1 / fractions, np.concatenate([r.arrays[name] for r in results], axis=1)


def choose_cells(results: Sequence[Result]) -> tuple[str, float]:
    """Return the cells that save most within MAX_MAP_LOSS points, and the factor by which they reduce distances."""
    saved = {}
    for name in results[0].record["curves"]:
        times, precision = _mean_curve(results, name)
        saved[name] = float(times[find_first_within_loss(precision.mean(1))])
    return max(saved.items(), key=lambda one: one[1])


def _draw(results: Sequence[Result], axes: Any) -> None:
    for name in results[0].record["curves"]:
        times, precision = _mean_curve(results, name)
        axes.plot(1 / times, 100 * precision.mean(1), "--" if "GMM" in name else "-", marker=".", label=name)
    axes.set(xlabel="distances computed, share of all", ylabel="mAP, percent", xscale="log")
    axes.legend()

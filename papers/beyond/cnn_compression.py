"""Compress the 128 numbers of a modern CNN to a quarter: what is lost, with and without learning."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ml.embedders.base import Progress
from ml.evaluation.report import rank_protocol
from ml.types import Ids, Rows
from papers.beyond.cnn_choice import DIMS, FIT_SECONDS, KINDS, chosen, describe_choices, sizes
from papers.clml.fits import ClmlFits
from papers.clml.goals import describe_goal_outcome
from papers.clml.table_rows import TableComputations
from papers.harness.photos import MODEL
from papers.harness.results import describe_difference, difference, figure
from papers.harness.run_context import Method, RunContext, ranked_arrays
from papers.harness.table_types import Computation, ComputationOutput, Figure, Plot, Row, Table

WIDTH, BYTES = 128, "bytes per face"
FIGURE_NAMES = ("mAP", "1@10")
COLUMNS = (BYTES, *(f"{where}: {what}" for where in KINDS for what in FIGURE_NAMES))
CURVE_DIMS = (16, 24, 32, 48, 64, 96)
MAP_COLUMN = "closed set: mAP"
MIN_MAP: Mapping[int, float] = {64: 94.5, 32: 91.0}
STRETCH_MAP: Mapping[int, float] = {64: 96.0, 32: 94.0}
COSINE = Method("cosine")


@dataclass(frozen=True, eq=False)
class CompressionEntry:
    """A row of the table.

    bytes: stored per face; computations: by kind of protocol, one per draw; goal_dim: d of a row with a goal, else 0
    """

    name: str
    bytes: int
    computations: Mapping[str, Sequence[Computation]]
    goal_dim: int = 0

    @property
    def all(self) -> list[Computation]:
        return [computation for computations in self.computations.values() for computation in computations]


def make_compression_table(fits: ClmlFits) -> TableComputations | None:
    """Make the table; None if the network is not available."""
    context = fits.context
    if not context.photos.has_model:
        return None
    curves = (
        []
        if context.scope.quick
        else [w for where in KINDS for computations in _curves(context, where).values() for w in computations]
    )
    return TableComputations(
        [*(computation for entry in _lines(context) for computation in entry.all), *curves], lambda: _table(context)
    )


def pca(dim: int) -> Method:
    return Method("wpca", dim, {"whiten": False, "unit": True})


def _lines(context: RunContext) -> Iterator[CompressionEntry]:
    yield _line(context, "cosine, 128 numbers", [COSINE, COSINE])
    for bits in (8, 4):
        computations = {
            w: [_rounded(context, bits, f"{kind}-{i}") for i in context.scope.seeds] for w, kind in KINDS.items()
        }
        yield CompressionEntry(f"cosine, 128 numbers of {bits} bits", WIDTH * bits // 8, computations)
    for dim in sizes(context):
        yield _line(context, f"PCA, {dim}", [pca(dim)] * 2)
        for name in ("ldml", "clml") if context.scope.quick else ("ldml", "clml", "qconv", "stiefel"):
            yield _line(context, f"{name}, {dim}, as it comes", [Method(name, dim)] * 2, on_few_draws=True)
        best = [chosen(context, dim, kind) for kind in KINDS.values()]
        how = "the first candidate" if context.scope.quick else "as chosen"
        yield _line(context, f"learned, {dim}, {how}", best, goal_dim=dim)


def _line(
    context: RunContext, name: str, methods: Sequence[Method], on_few_draws: bool = False, goal_dim: int = 0
) -> CompressionEntry:
    """Make an entry. methods: for the closed set, and for people never seen"""
    draws = context.scope.few_seeds if on_few_draws else context.scope.seeds
    computations = {
        where: [context.retrieval(method, MODEL, f"{kind}-{i}", seconds=FIT_SECONDS) for i in draws]
        for (where, kind), method in zip(KINDS.items(), methods, strict=True)
    }
    return CompressionEntry(name, 4 * (methods[0].dim or WIDTH), computations, goal_dim)


def _rounded(context: RunContext, bits: int, protocol: str) -> Computation:
    """Evaluate the cosine of numbers with few bits."""
    key = {"method": "cosine", "bits": bits, "features": MODEL, "protocol": protocol}

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        split = context.protocol(protocol)
        kept = COSINE.build().embed(rounded(context.photos.rows("lfw", MODEL), split.training, bits))
        return {}, ranked_arrays(rank_protocol(kept, split), "alone")

    return Computation(f"cosine, {bits} bits {protocol}", key, 3.0, run)


def rounded(rows: Rows, known: Ids, bits: int) -> Rows:
    """Round the numbers of (N, d) rows to the nearest of 2^bits levels between their 0.1 % and 99.9 % quantiles.

    known: rows from which the quantiles are computed
    """
    low, high = np.quantile(rows[known], [0.001, 0.999], axis=0).astype(np.float32)
    step = np.maximum(high - low, np.finfo(np.float32).tiny) / (2**bits - 1)
    levels = np.clip(np.rint((rows - low) / step), 0, 2**bits - 1)
    quantised: Rows = (low + step * levels).astype(np.float32)
    return quantised


def _table(context: RunContext) -> Table:
    entries = list(_lines(context))
    with_goal = [entry for entry in entries if entry.goal_dim]
    notes = [
        _describe_difference(context, entry, entries[0], "cosine at 128", where)
        for entry in with_goal
        for where in KINDS
    ]
    for entry in with_goal:
        [same_size] = [other for other in entries if other.name == f"PCA, {entry.goal_dim}"]
        notes += [_describe_difference(context, entry, same_size, f"PCA-{entry.goal_dim}", where) for where in KINDS]
    how = "What is learned is the first candidate: in a quick look none is chosen."
    if not context.scope.quick:
        notes += describe_choices(context)
        how = (
            "What is learned, and its options, are chosen by mAP on a split of draw 0's training side; the candidates "
            "were picked in sight of draw 0."
        )
    header = (
        f"LFW, MobileFaceNet (128 numbers, of unit length), `queries-*` (closed set) and `disjoint-*` (people never "
        f"seen), {context.scope.draws} draws, {len(context.scope.few_seeds)} of what is learned as it comes; mAP and "
        f"1-call@10 in percent. {how} A number is 4 bytes unless said otherwise."
    )
    plots = [] if context.scope.quick else [_plot(context)]
    rows = [_row(context, entry) for entry in entries]
    return Table("cnn", "A modern CNN, compressed to a quarter", header, COLUMNS, rows, plots, notes)


def _row(context: RunContext, entry: CompressionEntry) -> Row:
    shown = {BYTES: Figure(float(entry.bytes))}
    for where, computations in entry.computations.items():
        shown |= {f"{where}: {what}": figure(context.results(computations), what) for what in FIGURE_NAMES}
    goals = {"at least": MIN_MAP, "stretch": STRETCH_MAP}
    statements = [
        describe_goal_outcome(shown, {MAP_COLUMN: goal[entry.goal_dim]}, name)
        for name, goal in goals.items()
        if entry.goal_dim in goal
    ]
    return Row(entry.name, shown, cause="; ".join(statements), computations=entry.all)


def _describe_difference(
    context: RunContext, entry: CompressionEntry, other: CompressionEntry, called: str, where: str
) -> str:
    gap = difference(context.results(entry.computations[where]), context.results(other.computations[where]), "mAP")
    return f"{entry.name}, less {called}: {where}, mAP {describe_difference(gap)}"


def _curves(context: RunContext, where: str) -> dict[str, list[Computation]]:
    """Return the computations of the plot, for draw 0 only."""
    best = chosen(context, DIMS[-1], KINDS[where])
    shown = {
        "PCA": [pca(dim) for dim in CURVE_DIMS],
        "learned": [Method(best.name, dim, best.options) for dim in CURVE_DIMS],
    }
    return {
        name: [context.retrieval(method, MODEL, f"{KINDS[where]}-0", seconds=FIT_SECONDS) for method in methods]
        for name, methods in shown.items()
    }


def _plot(context: RunContext) -> Plot:
    alt = f"mAP against the numbers kept of MobileFaceNet's 128: PCA, and what was chosen for {DIMS[-1]}"
    return Plot("beyond-cnn", alt, partial(_draw, context), columns=2)


def _draw(context: RunContext, axes: Any) -> None:
    for axis, (where, kind) in zip(axes, KINDS.items(), strict=True):
        for name, computations in _curves(context, where).items():
            axis.plot(
                CURVE_DIMS, [figure([r], "mAP").value for r in context.results(computations)], marker="o", label=name
            )
        whole = context.result(context.retrieval(COSINE, MODEL, f"{kind}-0", seconds=FIT_SECONDS))
        axis.axhline(figure([whole], "mAP").value, color="grey", linestyle="--", label="cosine, 128")
        axis.set(title=where, xlabel="numbers per face", ylabel="mAP")
    axes[0].legend()

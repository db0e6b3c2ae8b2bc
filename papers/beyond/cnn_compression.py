"""A modern CNN's 128 numbers at a quarter of their size: what can be kept, learned or not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ml.embedders.base import Progress
from ml.evaluation.report import rank_protocol
from ml.types import Ids, Rows
from papers.beyond.cnn_choice import KINDS, SECONDS, SIZES, chosen, describe_choices, sizes
from papers.clml.fits import ClmlFits
from papers.clml.goals import describe_goal
from papers.clml.table_rows import TableWorks
from papers.harness.lab_fits import Lab, Method, ranked_arrays
from papers.harness.photos import MODEL
from papers.harness.results import describe_difference, difference, figure
from papers.harness.table_types import Figure, Plot, Row, Table, Work, WorkOutput

WIDTH, BYTES = 128, "bytes a face"
WHAT = ("mAP", "1@10")
COLUMNS = (BYTES, *(f"{where}: {what}" for where in KINDS for what in WHAT))
CURVE = (16, 24, 32, 48, 64, 96)
MAP = "closed set: mAP"
LEAST: Mapping[int, float] = {64: 94.5, 32: 91.0}
STRETCH: Mapping[int, float] = {64: 96.0, 32: 94.0}
COSINE = Method("cosine")


@dataclass(frozen=True, eq=False)
class CompressionEntry:
    """bytes: stored for a face; works: by protocol and draw; goal_dim: numbers of an entry that has a goal, else 0."""

    name: str
    bytes: int
    works: Mapping[str, Sequence[Work]]
    goal_dim: int = 0

    @property
    def all(self) -> list[Work]:
        return [work for works in self.works.values() for work in works]


def smaller(fits: ClmlFits) -> TableWorks | None:
    """None where the network is not there."""
    lab = fits.lab
    if not lab.photos.has_model:
        return None
    curves = [] if lab.scope.quick else [w for where in KINDS for works in _curves(lab, where).values() for w in works]
    return TableWorks([*(work for entry in _lines(lab) for work in entry.all), *curves], lambda: _table(lab))


def pca(dim: int) -> Method:
    return Method("wpca", dim, {"whiten": False, "unit": True})


def _lines(lab: Lab) -> Iterator[CompressionEntry]:
    yield _line(lab, "cosine, 128 numbers", [COSINE, COSINE])
    for bits in (8, 4):
        works = {w: [_rounded(lab, bits, f"{kind}-{i}") for i in lab.scope.seeds] for w, kind in KINDS.items()}
        yield CompressionEntry(f"cosine, 128 numbers of {bits} bits", WIDTH * bits // 8, works)
    for dim in sizes(lab):
        yield _line(lab, f"PCA, {dim}", [pca(dim)] * 2)
        for name in ("ldml", "clml") if lab.scope.quick else ("ldml", "clml", "qconv", "stiefel"):
            yield _line(lab, f"{name}, {dim}, as it comes", [Method(name, dim)] * 2, on_few_draws=True)
        best = [chosen(lab, dim, kind) for kind in KINDS.values()]
        how = "the first candidate" if lab.scope.quick else "as chosen"
        yield _line(lab, f"learned, {dim}, {how}", best, goal_dim=dim)


def _line(
    lab: Lab, name: str, methods: Sequence[Method], on_few_draws: bool = False, goal_dim: int = 0
) -> CompressionEntry:
    """methods: for the closed set, and for people never seen."""
    draws = lab.scope.few_seeds if on_few_draws else lab.scope.seeds
    works = {
        where: [lab.retrieval(method, MODEL, f"{kind}-{i}", seconds=SECONDS) for i in draws]
        for (where, kind), method in zip(KINDS.items(), methods, strict=True)
    }
    return CompressionEntry(name, 4 * (methods[0].dim or WIDTH), works, goal_dim)


def _rounded(lab: Lab, bits: int, protocol: str) -> Work:
    """Cosine of numbers of so few bits."""
    key = {"method": "cosine", "bits": bits, "features": MODEL, "protocol": protocol}

    def run(folder: Path, progress: Progress) -> WorkOutput:
        split = lab.protocol(protocol)
        kept = COSINE.build().embed(rounded(lab.photos.rows("lfw", MODEL), split.training, bits))
        return {}, ranked_arrays(rank_protocol(kept, split), "alone")

    return Work(f"cosine, {bits} bits {protocol}", key, 3.0, run)


def rounded(rows: Rows, known: Ids, bits: int) -> Rows:
    """rows (N, d), each number at the nearest of 2^bits levels that reach from its 0.1 % to its 99.9 % quantile among
    the known."""
    low, high = np.quantile(rows[known], [0.001, 0.999], axis=0).astype(np.float32)
    step = np.maximum(high - low, np.finfo(np.float32).tiny) / (2**bits - 1)
    levels = np.clip(np.rint((rows - low) / step), 0, 2**bits - 1)
    quantised: Rows = (low + step * levels).astype(np.float32)
    return quantised


def _table(lab: Lab) -> Table:
    entries = list(_lines(lab))
    with_goal = [entry for entry in entries if entry.goal_dim]
    notes = [_less(lab, entry, entries[0], "cosine at 128", where) for entry in with_goal for where in KINDS]
    for entry in with_goal:
        [same_size] = [other for other in entries if other.name == f"PCA, {entry.goal_dim}"]
        notes += [_less(lab, entry, same_size, f"PCA-{entry.goal_dim}", where) for where in KINDS]
    how = "What is learned is the first candidate: in a quick look none is chosen."
    if not lab.scope.quick:
        notes += describe_choices(lab)
        how = (
            "What is learned, and its options, are chosen by mAP on a split of draw 0's training side; the candidates "
            "were picked in sight of draw 0."
        )
    header = (
        f"LFW, MobileFaceNet (128 numbers, of unit length), `queries-*` (closed set) and `disjoint-*` (people never "
        f"seen), {lab.scope.draws} draws, {len(lab.scope.few_seeds)} of what is learned as it comes; mAP and 1-call@10 "
        f"in percent. {how} A number is 4 bytes unless said otherwise."
    )
    plots = [] if lab.scope.quick else [_plot(lab)]
    rows = [_row(lab, entry) for entry in entries]
    return Table("cnn", "A modern CNN at a quarter of its size", header, COLUMNS, rows, plots, notes)


def _row(lab: Lab, entry: CompressionEntry) -> Row:
    shown = {BYTES: Figure(float(entry.bytes))}
    for where, works in entry.works.items():
        shown |= {f"{where}: {what}": figure(lab.results(works), what) for what in WHAT}
    goals = {"at least": LEAST, "stretch": STRETCH}
    statements = [
        describe_goal(shown, {MAP: goal[entry.goal_dim]}, name)
        for name, goal in goals.items()
        if entry.goal_dim in goal
    ]
    return Row(entry.name, shown, cause="; ".join(statements), works=entry.all)


def _less(lab: Lab, entry: CompressionEntry, other: CompressionEntry, called: str, where: str) -> str:
    gap = difference(lab.results(entry.works[where]), lab.results(other.works[where]), "mAP")
    return f"{entry.name}, less {called}: {where}, mAP {describe_difference(gap)}"


def _curves(lab: Lab, where: str) -> dict[str, list[Work]]:
    """Of draw 0 alone, for the picture."""
    best = chosen(lab, SIZES[-1], KINDS[where])
    shown = {"PCA": [pca(dim) for dim in CURVE], "learned": [Method(best.name, dim, best.options) for dim in CURVE]}
    return {
        name: [lab.retrieval(method, MODEL, f"{KINDS[where]}-0", seconds=SECONDS) for method in methods]
        for name, methods in shown.items()
    }


def _plot(lab: Lab) -> Plot:
    alt = f"mAP against the numbers kept of MobileFaceNet's 128: PCA, and what was chosen for {SIZES[-1]}"
    return Plot("beyond-cnn", alt, partial(_draw, lab), columns=2)


def _draw(lab: Lab, axes: Any) -> None:
    for axis, (where, kind) in zip(axes, KINDS.items(), strict=True):
        for name, works in _curves(lab, where).items():
            axis.plot(CURVE, [figure([r], "mAP").value for r in lab.results(works)], marker="o", label=name)
        whole = lab.result(lab.retrieval(COSINE, MODEL, f"{kind}-0", seconds=SECONDS))
        axis.axhline(figure([whole], "mAP").value, color="grey", linestyle="--", label="cosine, 128")
        axis.set(title=where, xlabel="numbers a face", ylabel="mAP")
    axes[0].legend()

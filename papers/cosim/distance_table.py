"""000, Table 6, Figures 8 and 9: the distances of genuine and impostor pairs ("friends" and "foes")."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ml.evaluation.intervals import Interval
from ml.evaluation.restricted import Scores
from ml.evaluation.separation import Scored, Separation, separation
from papers.cosim.pair_scores import PairScoreReader, SystemScores
from papers.cosim.system_catalogue import OUR_CHANGES
from papers.harness.table_types import Figure, Plot, Row, Table

PAPER_DISTANCES = {
    "SIFT, Euclidean": (21.757, 23.691), "LBP, Euclidean": (19.180, 21.163), "SIFT, cosine": (85.9, 99.9),
    "LBP, cosine": (83.7, 101.0), "SIFT, sigma": (37.6, 60.0), "LBP, sigma": (38.9, 61.2), "CoSiM-m": (30.9, 68.3),
    "CoSiM-a": (29.9, 69.0),
}  # fmt: skip
GAP_COLUMN = "foes less friends"
COLUMNS = ("friends", "foes", GAP_COLUMN, "AUC", "d'")
GAP_TOLERANCE = 0.1
"""A gap within this share of the paper's reproduces it."""
NOTES = (
    "Distances but the Euclidean ones in hundredths. The paper's 0.101 for LBP, cosine, foes must be about 1.01, and is"
    " read so: foes lie further apart than friends.",
    "AUC (percent) and d' (the gap in pooled standard deviations) are ours: a gap grows with the scale of the logits,"
    " which says nothing of who is told apart.",
)


@dataclass(frozen=True, eq=False)
class DistanceSpread:
    """One of the distances. folds: the distances of each fold's pairs, as the table shows them"""

    name: str
    scores: SystemScores
    folds: tuple[Scores, ...]

    def sides(self, reader: PairScoreReader) -> list[list[Scored]]:
        """Return the genuine and the impostor pairs of each fold."""
        every = list(zip(self.folds, reader.tests, strict=True))
        people = reader.view.people
        return [
            [Scored(d[t.same == same], people[t.index[t.same == same]]) for d, t in every] for same in (True, False)
        ]


def spreads(reader: PairScoreReader, system_scores: dict[str, SystemScores]) -> list[DistanceSpread]:
    """Return the distances of the table. system_scores: systems by the names of PAPER_DISTANCES, and the fusions

    For the cosine, 1 - cos is half the squared distance of unit vectors.
    """
    distances = []
    for name, one in system_scores.items():
        if "Euclidean" in name:
            folds = [np.sqrt(-scores.test) for scores in one.folds]
        elif "cosine" in name:
            folds = [100 * -scores.test / 2 for scores in one.folds]
        else:
            folds = [100 * d for d in (reader.calibrated(one) if "⊕" in name else reader.strange(one))]
        distances.append(DistanceSpread(name, one, tuple(folds)))
    return distances


def table_6(reader: PairScoreReader, header: str, distances: Sequence[DistanceSpread]) -> Table:
    rows = [_row(reader, one) for one in distances]
    plots = [
        Plot(
            "cosim-figure-8",
            "How far friends and foes lie apart by single features",
            _make_draw(reader, distances[:6]),
            2,
            3,
        ),
        Plot(
            "cosim-figure-9",
            "The same, fused late and learned jointly",
            _make_draw(reader, distances[6:]),
            1,
            len(distances[6:]),
        ),
    ]
    title = "Table 6, Figures 8 and 9: how far friends and foes lie apart"
    return Table("table-6", title, header, COLUMNS, rows, plots, NOTES)


def _row(reader: PairScoreReader, one: DistanceSpread) -> Row:
    measured = separation(*one.sides(reader))
    far = measured.dispersion
    gap = far.foes.value - far.friends.value
    parts = {"friends": far.friends, "foes": far.foes, "AUC": _to_percent(measured.auc), "d'": far.d_prime}
    figures = {name: Figure(i.value, i.low, i.high) for name, i in parts.items()}
    figures[GAP_COLUMN] = Figure(gap)
    paper = dict(zip(COLUMNS, PAPER_DISTANCES[one.name], strict=False)) if one.name in PAPER_DISTANCES else {}
    if not paper:
        return Row(one.name, figures, computations=one.scores.computations)
    paper[GAP_COLUMN] = round(paper["foes"] - paper["friends"], 3)
    plain = "Euclidean" in one.name or "cosine" in one.name
    return Row(
        one.name, figures, paper, cause=_explain_gap(gap, paper[GAP_COLUMN], measured),
        computations=one.scores.computations, compared=(GAP_COLUMN,),
        tolerance=GAP_TOLERANCE * paper[GAP_COLUMN], altered="" if plain else OUR_CHANGES,
    )  # fmt: skip


def _explain_gap(gap: float, paper: float, measured: Separation) -> str:
    """Explain a gap that is smaller than the paper's."""
    if gap >= (1 - GAP_TOLERANCE) * paper:
        return ""
    return f"the gap is {gap / paper:.0%} of the paper's; {measured.auc.value:.1%} of friends lie nearer than foes"


def _to_percent(one: Interval) -> Interval:
    return Interval(100 * one.value, 100 * one.low, 100 * one.high)


def _make_draw(reader: PairScoreReader, distances: Sequence[DistanceSpread]) -> Any:
    def draw(axes: Any) -> None:
        for one, ax in zip(distances, np.atleast_1d(axes).ravel(), strict=True):
            sides = [np.concatenate([s.distances for s in side]) for side in one.sides(reader)]
            bins = np.linspace(min(s.min() for s in sides), max(s.max() for s in sides), 41)
            for side, name in zip(sides, ("friends", "foes"), strict=True):
                ax.hist(side, bins, alpha=0.55, label=name, weights=np.full(len(side), 1 / len(side)))
            ax.set_title(one.name)
            ax.legend(fontsize=7, loc="upper left")

    return draw

"""000, Figure 10: accuracy by the number of parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

from papers.cosim.pair_scores import ACCURACY, PairScoreReader, SystemScores
from papers.harness.table_types import Computation, Figure, Plot, Row, Table

PARAMETERS = "thousand parameters"
NOTES = (
    "Parameters are what is learned from pairs: W and b, or the two matrices of Sub-SML, or a weight each."
    " The whitening before them needs no label and is not counted, nor is it in the paper's Tables 1 and 2 (180,001 and"
    " 180,002).",
    "The figure's other points are printed nowhere as numbers.",
)
Sweep = Sequence[tuple[int, SystemScores]]
Beside = tuple[float, Figure, Sequence[Computation]]
"""Parameters, accuracy, computations."""


def figure_10(
    reader: PairScoreReader, sweep_reader: PairScoreReader, header: str,
    system_scores: Mapping[str, SystemScores], figures: Mapping[str, Figure], sweeps: Mapping[str, Sweep],
    beside: Mapping[str, Beside],
) -> Table:  # fmt: skip
    """Make the table and its plot.

    system_scores, figures: systems over all folds, and their accuracies
    sweeps: by system, its scores with r components, over the folds of `sweep_reader`
    beside: networks that were not learned here: parameters, accuracy, computations
    """
    rows = [
        Row(n, {PARAMETERS: _count_thousands(h), ACCURACY: figures[n]}, computations=h.computations)
        for n, h in system_scores.items()
    ]
    lines = {
        name: [(_count_thousands(h).value, sweep_reader.accuracy(h)) for _, h in sweep]
        for name, sweep in sweeps.items()
    }
    for name, sweep in sweeps.items():
        for (r, one), (thousand, accuracy) in zip(sweep, lines[name], strict=True):
            figures_of_sweep = {PARAMETERS: Figure(thousand), ACCURACY: accuracy}
            rows.append(
                Row(
                    f"{name}, r = {r}",
                    figures_of_sweep,
                    about={"folds": list(sweep_reader.numbers)},
                    computations=one.computations,
                )
            )
    rows += [Row(n, {PARAMETERS: Figure(k / 1000), ACCURACY: f}, computations=w) for n, (k, f, w) in beside.items()]
    points = {n: (_count_thousands(h).value, figures[n].value) for n, h in system_scores.items()}
    points |= {n: (k / 1000, f.value) for n, (k, f, _) in beside.items()}
    plot = Plot("cosim-figure-10", "Accuracy against parameters, logarithmic", _make_draw(points, lines))
    full_header = f"{header} Rows with r are over folds {list(sweep_reader.numbers)} alone." if sweeps else header
    title = "Figure 10: accuracy against parameters"
    return Table("figure-10", title, full_header, [PARAMETERS, ACCURACY], rows, [plot], NOTES)


def _count_thousands(system_scores: SystemScores) -> Figure:
    return Figure(system_scores.parameters / 1000)


def _make_draw(points: Mapping[str, tuple[float, float]], lines: Mapping[str, Sequence[tuple[float, Figure]]]) -> Any:
    def draw(axes: Any) -> None:
        for name, (thousand, accuracy) in points.items():
            axes.scatter(thousand, accuracy, s=18, color="black")
            axes.annotate(name, (thousand, accuracy), xytext=(3, 3), textcoords="offset points", fontsize=6)
        for name, curve in lines.items():
            axes.plot([t for t, _ in curve], [f.value for _, f in curve], marker=".", label=f"{name}, by r")
        axes.set_xscale("log")
        axes.set_xlabel(PARAMETERS)
        axes.set_ylabel("accuracy, percent")
        if lines:
            axes.legend(fontsize=7, loc="lower right")

    return draw

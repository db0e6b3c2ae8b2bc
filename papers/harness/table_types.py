"""The types of a table: computations, whose results are stored, and rows that are made from results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from ml.embedders.base import Progress

Declared = Literal["not possible here", "ours"]
"""Verdicts that a table may set itself; all others are computed (`verdicts.judge`)."""
Sign = Literal["", "above", "below"]
"""The sign of a difference."""
TOLERANCE_POINTS = 1.0
"""A figure within this many points reproduces the paper's, even if its interval does not contain it."""


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a computation.

    record: values for JSON, to which the store adds `seconds`, `cpu_seconds`, `date`, `commit` and `machine`
    arrays: by name; folder: where both are stored, with other files that the computation wrote
    """

    record: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    folder: Path


ComputationOutput = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""The record and the arrays that a computation returns."""


@dataclass(frozen=True, eq=False)
class Computation:
    """Something to compute, in a few minutes if possible, because an interrupted computation starts anew.

    name: shown in the progress bar
    key: values for JSON that determine the result; computations with equal keys are the same
    seconds: estimate for the machine of docs/research/measurements.md; a measured time replaces it
    run: run(folder, progress) returns the record and the arrays; it may write files to the folder
    """

    name: str
    key: Mapping[str, Any]
    seconds: float
    run: Callable[[Path, Progress], ComputationOutput]

    @property
    def kind(self) -> str:
        """The key without protocol, seed and fold: computations of one kind take about the same time."""
        return repr(sorted((k, str(v)) for k, v in self.key.items() if k not in ("protocol", "seed", "fold")))

    @property
    def group(self) -> str:
        """Computations of one group share most of their input, so one process runs them in sequence."""
        shared = [k for k in ("features", "protocol", "fold") if k in self.key]
        return repr([(k, str(self.key[k])) for k in shared]) if "features" in shared else repr(self.key)


@dataclass(frozen=True)
class Figure:
    """A mean and its spread, in the unit that the table's header states.

    low, high: 95 % interval, by bootstrap over the people of the queries unless the table says otherwise
    sd: standard deviation over draws; low, high and sd are NaN if unknown
    """

    value: float
    low: float = float("nan")
    high: float = float("nan")
    sd: float = float("nan")
    draws: int = 1


@dataclass(frozen=True)
class Row:
    """A row of a table. figures, paper: values by column; `paper` lacks what the paper does not print.

    verdict: "not possible here" if the paper's data or network is not available; None if the rule decides
        (`verdicts.judge`)
    cause: why the row is worse or not possible, or other remarks
    about: data, protocol files and options, for the JSON
    altered: how the method differs from the paper's; empty if it does not
    differences: the columns that are paired differences, by which the row is judged
    claim: the sign of these differences that the paper states in words, if it prints no figure
    compared: the columns that are compared with the paper's; empty: all that the paper prints
    lower_is_better: the columns in which a smaller figure is better
    tolerance: distance, in the unit of the column, within which a figure counts as the paper's
    fit_steps: steps of the iterative fits behind the row; None: read from the options of its computations
    """

    name: str
    figures: Mapping[str, Figure]
    paper: Mapping[str, float] = field(default_factory=dict)
    verdict: Declared | None = None
    cause: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    computations: Sequence[Computation] = ()
    altered: str = ""
    differences: Sequence[str] = ()
    claim: Sign = ""
    compared: Sequence[str] = ()
    lower_is_better: Sequence[str] = ()
    tolerance: float = TOLERANCE_POINTS
    fit_steps: Sequence[int] | None = None


@dataclass(frozen=True)
class Curves:
    """The curves of a plot: y values by panel and name; x is 1, 2, 3, ..."""

    panels: Mapping[str, Mapping[str, Sequence[float]]]
    xlabel: str
    ylabel: str


@dataclass(frozen=True)
class Plot:
    """A plot, stored as `<name>.svg`.

    alt: alternative text; draw: draws on an array of matplotlib axes, (rows x columns)
    lines: the curves, if the JSON keeps them so that the plot can be redrawn
    """

    name: str
    alt: str
    draw: Callable[[Any], None]
    rows: int = 1
    columns: int = 1
    lines: Curves | None = None


@dataclass(frozen=True)
class Table:
    """A table. header: data, protocol, draws, unit, and what replaces the paper's data"""

    name: str
    title: str
    header: str
    columns: Sequence[str]
    rows: Sequence[Row]
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Chapter:
    """The tables of a paper.

    computations: returns all that are known to be needed; called again after each one, because a result can determine
        further computations
    tables: makes the tables once nothing is missing
    guessed: returns computations that will be needed later, with guessed options; they only count in the estimate
    """

    name: str
    title: str
    computations: Callable[[], Sequence[Computation]]
    tables: Callable[[], Sequence[Table]]
    guessed: Callable[[], Sequence[Computation]] = tuple


@dataclass(frozen=True)
class Scope:
    """The scope of a run.

    draws: draws of the queries for LBP at d = 32; few_draws: for slower fits; quick: whether to run for minutes only
    """

    draws: int = 10
    few_draws: int = 3
    quick: bool = False

    @property
    def seeds(self) -> range:
        return range(self.draws)

    @property
    def few_seeds(self) -> range:
        return range(min(self.few_draws, self.draws))

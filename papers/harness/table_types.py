"""What a table is made of: works, whose results are kept, and rows that are read off them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from ml.embedders.base import Progress

Declared = Literal["not possible here", "ours"]
"""What a table may say of a row by itself; every other verdict is computed (`verdicts.judge`)."""
Sign = Literal["", "above", "below"]
"""On which side of 0 a difference lies."""
TOLERANCE = 1.0
"""Points within which a figure reproduces the paper's though its interval does not hold it."""


@dataclass(frozen=True, eq=False)
class Result:
    """What a work found. record: plain JSON; arrays: by name; folder: where both lie, with what else it wrote there.

    facts also hold `seconds`, `cpu_seconds`, `date`, `commit` and `machine`, told by the store.
    """

    record: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    folder: Path


WorkOutput = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""Facts and arrays, as a work returns them."""


@dataclass(frozen=True, eq=False)
class Work:
    """One thing to compute, a few minutes long at most where that can be: what is interrupted starts again with it.

    name: as the bar shows it
    key: plain JSON that names everything the result follows from; two works of one key are the same work
    seconds: guessed on the machine of docs/research/measurements.md; once it was done here, its own time counts
    kind: works that cost alike, by which the guess is corrected
    run: run(folder, progress) -> facts and arrays; it may keep files in the folder. Called once, then never again
    """

    name: str
    key: Mapping[str, Any]
    seconds: float
    run: Callable[[Path, Progress], WorkOutput]

    @property
    def kind(self) -> str:
        """Its key without what is drawn by chance: works that differ by the draw alone take as long."""
        return repr(sorted((k, str(v)) for k, v in self.key.items() if k not in ("protocol", "seed", "fold")))

    @property
    def group(self) -> str:
        """Works that share most of what they need: one process does them, one after the other."""
        shared = [k for k in ("features", "protocol", "fold") if k in self.key]
        return repr([(k, str(self.key[k])) for k in shared]) if "features" in shared else repr(self.key)


@dataclass(frozen=True)
class Figure:
    """A mean with what is known of its spread; in the unit that the table's header names.

    low, high: 95 %, by bootstrap over the people of the queries unless the table says otherwise; sd: over draws
    """

    value: float
    low: float = float("nan")
    high: float = float("nan")
    sd: float = float("nan")
    draws: int = 1


@dataclass(frozen=True)
class Row:
    """figures, paper: by column; what the paper does not print is left out.

    verdict: "not possible here" where the paper's data or network is not to be had; None where the rule decides
    (`verdicts.judge`)
    cause: why it is worse, or not possible, or what else is to be known
    about: data, protocol files, options: what the JSON says besides
    altered: how the method differs from what the paper prints; empty where it does not
    differences: the columns that are paired differences and by which the row is judged
    claim: the sign of these differences that the paper states in words, where it prints no figure
    compared: the columns that are compared with the paper's; without any, all that the paper prints
    lower_is_better: the columns in which a smaller figure is a better one
    tolerance: distance in the unit of the column within which a figure counts as the paper's
    fit_steps: steps taken by the iterative fits behind the row; None: read from the options of its works
    """

    name: str
    figures: Mapping[str, Figure]
    paper: Mapping[str, float] = field(default_factory=dict)
    verdict: Declared | None = None
    cause: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    works: Sequence[Work] = ()
    altered: str = ""
    differences: Sequence[str] = ()
    claim: Sign = ""
    compared: Sequence[str] = ()
    lower_is_better: Sequence[str] = ()
    tolerance: float = TOLERANCE
    fit_steps: Sequence[int] | None = None


@dataclass(frozen=True)
class Curves:
    """Curves of a picture: y by panel and name, x being 1, 2, 3, ..."""

    panels: Mapping[str, Mapping[str, Sequence[float]]]
    xlabel: str
    ylabel: str


@dataclass(frozen=True)
class Plot:
    """A picture `<name>.svg`. draw(axes) draws on matplotlib axes, (rows x columns) of them; alt: what it shows.

    lines: the curves, where the JSON keeps them so that the picture can be drawn from it again
    """

    name: str
    alt: str
    draw: Callable[[Any], None]
    rows: int = 1
    columns: int = 1
    lines: Curves | None = None


@dataclass(frozen=True)
class Table:
    """header: data, protocol, draws, unit, and what stands in for what the paper used."""

    name: str
    title: str
    header: str
    columns: Sequence[str]
    rows: Sequence[Row]
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Chapter:
    """A paper's tables.

    works: all that is known to be needed; asked again after each is done, so that what one found may bring others
    tables: called once none is missing
    guessed: works that others will bring, with what they wait for guessed: they count in the cost and are never done
    """

    name: str
    title: str
    works: Callable[[], Sequence[Work]]
    tables: Callable[[], Sequence[Table]]
    guessed: Callable[[], Sequence[Work]] = tuple


@dataclass(frozen=True)
class Scope:
    """How much is asked for.

    draws: of the queries, with LBP at d = 32; few_draws: for what is dearer; quick: a look in minutes, not the paper
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

"""003, CLML: the tables and figures of "Coordinated Local Metric Learning"."""

from collections.abc import Mapping, Sequence

from app.cli.reproduce import writing
from app.cli.reproduce.clml.baselines import baselines
from app.cli.reproduce.clml.cells import cells
from app.cli.reproduce.clml.choice import Case, Choices, possible
from app.cli.reproduce.clml.crowd import crowds
from app.cli.reproduce.clml.fits import Fits, Options, Sizes
from app.cli.reproduce.clml.goals import goals
from app.cli.reproduce.clml.grids import GRIDS, START
from app.cli.reproduce.clml.local import numbers, spaces
from app.cli.reproduce.clml.map import plane
from app.cli.reproduce.clml.million import million
from app.cli.reproduce.clml.rows import Part, side_by_side
from app.cli.reproduce.clml.strangers import strangers
from app.cli.reproduce.clml.verification import verification
from app.cli.reproduce.clml.widths import widths
from app.cli.reproduce.lab import Lab
from app.cli.reproduce.plan import Chapter, Table, Work

PARTS = (goals, spaces, numbers, widths, crowds, baselines, cells, million, verification, plane, strangers)


def chapter(lab: Lab, start: Mapping[Case, Options] = START, sizes: Sizes = Sizes()) -> Chapter:
    """start: the options before anything was chosen, and all there is in a quick look."""
    choices = Choices(lab, possible(lab, GRIDS), start)

    def parts() -> list[Part]:
        fits = Fits(lab, {case: choices.of(case).options for case in start}, sizes)
        return [part(fits) for part in PARTS]

    def rest() -> list[Work]:
        return side_by_side([work for part in parts() for work in part.works])

    def works() -> list[Work]:
        """Those by which options are chosen come first; with what they choose, the others can be named."""
        return choices.works() + (rest() if choices.done else [])

    def guessed() -> list[Work]:
        """By the options so far."""
        return [] if choices.done else [work for work in rest() if not lab.store.has(work)]

    def tables() -> Sequence[Table]:
        goal, *others = (part.table for part in parts())
        return writing.those_there(goal, *([] if lab.scope.quick else [choices.table]), *others)

    return Chapter("clml", "CLML (003)", works, tables, guessed)

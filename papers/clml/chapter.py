"""003, CLML: the tables and figures of "Coordinated Local Metric Learning"."""

from collections.abc import Mapping, Sequence

from papers.clml.baselines import baselines
from papers.clml.cells import cells
from papers.clml.choice import Case, Choices, possible
from papers.clml.crowd import crowds
from papers.clml.fits import Fits, Options, Sizes
from papers.clml.goals import goals
from papers.clml.grids import GRIDS, START
from papers.clml.local import numbers, spaces
from papers.clml.map import plane
from papers.clml.million import million
from papers.clml.rows import Part, side_by_side
from papers.clml.strangers import strangers
from papers.clml.verification import verification
from papers.clml.widths import widths
from papers.harness import writing
from papers.harness.lab import Lab
from papers.harness.plan import Chapter, Table, Work

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

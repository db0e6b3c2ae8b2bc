"""003, CLML: the tables and figures of "Coordinated Local Metric Learning"."""

from collections.abc import Mapping, Sequence

from papers.clml.baselines import baselines
from papers.clml.cells import cells
from papers.clml.dimensions import widths
from papers.clml.distractors import crowds
from papers.clml.fits import ClmlFits, Options, Sizes
from papers.clml.goals import goals
from papers.clml.grids import GRIDS, START
from papers.clml.local_maps import numbers, spaces
from papers.clml.option_choice import Case, Choices, possible
from papers.clml.person_map import plane
from papers.clml.search_speed import million
from papers.clml.table_rows import TableWorks, order_works
from papers.clml.unseen_people import strangers
from papers.clml.verification import verification
from papers.harness import page_writer
from papers.harness.lab_fits import Lab
from papers.harness.table_types import Chapter, Table, Work

PARTS = (goals, spaces, numbers, widths, crowds, baselines, cells, million, verification, plane, strangers)


def chapter(lab: Lab, start: Mapping[Case, Options] = START, sizes: Sizes = Sizes()) -> Chapter:
    """start: the options before anything was chosen, and all there is in a quick look."""
    choices = Choices(lab, possible(lab, GRIDS), start)

    def parts() -> list[TableWorks]:
        fits = ClmlFits(lab, {case: choices.of(case).options for case in start}, sizes)
        return [part(fits) for part in PARTS]

    def rest() -> list[Work]:
        return order_works([work for part in parts() for work in part.works])

    def works() -> list[Work]:
        """Those by which options are chosen come first; with what they choose, the others can be named."""
        return choices.works() + (rest() if choices.done else [])

    def guessed() -> list[Work]:
        """By the options so far."""
        return [] if choices.done else [work for work in rest() if not lab.store.has(work)]

    def tables() -> Sequence[Table]:
        goal, *others = (part.table for part in parts())
        return page_writer.make_available_tables(goal, *([] if lab.scope.quick else [choices.table]), *others)

    return Chapter("clml", "CLML (003)", works, tables, guessed)

"""003, CLML: the tables and figures of "Coordinated Local Metric Learning"."""

from collections.abc import Mapping, Sequence

from papers.clml.baselines import make_baseline_table
from papers.clml.cells import make_assignment_table
from papers.clml.dimensions import make_dimension_table
from papers.clml.distractors import make_distractor_table
from papers.clml.fits import ClmlFits, Options, Sizes
from papers.clml.goals import make_goal_table
from papers.clml.grids import GRIDS, START_OPTIONS
from papers.clml.local_maps import make_local_map_table, make_size_table
from papers.clml.option_choice import Case, Choices, possible
from papers.clml.person_map import make_person_map
from papers.clml.search_speed import make_speed_table
from papers.clml.table_rows import TableComputations, order_computations
from papers.clml.unseen_people import make_unseen_table
from papers.clml.verification import make_verification_table
from papers.harness import page_writer
from papers.harness.run_context import RunContext
from papers.harness.table_types import Chapter, Computation, Table

TABLE_GROUPS = (
    make_goal_table,
    make_local_map_table,
    make_size_table,
    make_dimension_table,
    make_distractor_table,
    make_baseline_table,
    make_assignment_table,
    make_speed_table,
    make_verification_table,
    make_person_map,
    make_unseen_table,
)


def chapter(context: RunContext, start: Mapping[Case, Options] = START_OPTIONS, sizes: Sizes = Sizes()) -> Chapter:
    """Make the chapter. start: initial options, which a quick run keeps"""
    choices = Choices(context, possible(context, GRIDS), start)

    def parts() -> list[TableComputations]:
        fits = ClmlFits(context, {case: choices.of(case).options for case in start}, sizes)
        return [part(fits) for part in TABLE_GROUPS]

    def rest() -> list[Computation]:
        return order_computations([computation for part in parts() for computation in part.computations])

    def computations() -> list[Computation]:
        """Return the computations: first those that choose options, then those that use the chosen options."""
        return choices.computations() + (rest() if choices.done else [])

    def guessed() -> list[Computation]:
        """Return the computations with the options chosen so far."""
        return [] if choices.done else [computation for computation in rest() if not context.store.has(computation)]

    def tables() -> Sequence[Table]:
        goal, *others = (part.table for part in parts())
        return page_writer.make_available_tables(goal, *([] if context.scope.quick else [choices.table]), *others)

    return Chapter("clml", "CLML (003)", computations, tables, guessed)

"""Beyond the papers: experiments that none of the four made."""

from collections.abc import Mapping, Sequence

from papers.beyond.cnn_choice import choices as choices_of_cnn
from papers.beyond.cnn_compression import make_compression_table
from papers.beyond.fused_descriptors import make_fusion_table
from papers.beyond.label_counts import make_label_count_table
from papers.beyond.transfer import make_transfer_table
from papers.beyond.unseen_people import make_unseen_table
from papers.clml.fits import ClmlFits, Options
from papers.clml.grids import GRIDS, START_OPTIONS
from papers.clml.option_choice import Case, Choices, possible
from papers.clml.table_rows import TableComputations, order_computations
from papers.harness import page_writer
from papers.harness.run_context import RunContext
from papers.harness.table_types import Chapter, Computation, Table

TABLE_GROUPS = (
    make_compression_table,
    make_unseen_table,
    make_transfer_table,
    make_label_count_table,
    make_fusion_table,
)


def chapter(context: RunContext, start: Mapping[Case, Options] = START_OPTIONS) -> Chapter:
    """Make the chapter. LDML and CLML use the options that the tables of 003 choose. start: initial options"""
    choices = Choices(context, possible(context, GRIDS), start)

    def parts() -> list[TableComputations]:
        fits = ClmlFits(context, {case: choices.of(case).options for case in start})
        return [part for make in TABLE_GROUPS if (part := make(fits))]

    def rest() -> list[Computation]:
        return order_computations([computation for part in parts() for computation in part.computations])

    def done() -> bool:
        return choices.done and all(context.store.has(computation) for computation in choices_of_cnn(context))

    def computations() -> list[Computation]:
        """Return the computations: first those that choose options, then those that use the chosen options."""
        return [*choices.computations(), *choices_of_cnn(context), *(rest() if done() else [])]

    def guessed() -> list[Computation]:
        """Return the computations with the options chosen so far."""
        return [] if done() else [computation for computation in rest() if not context.store.has(computation)]

    def tables() -> Sequence[Table]:
        return page_writer.make_available_tables(*(part.table for part in parts()))

    return Chapter("beyond", "Beyond the papers", computations, tables, guessed)

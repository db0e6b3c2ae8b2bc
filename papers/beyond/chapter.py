"""Past the papers: what none of the four tested."""

from collections.abc import Mapping, Sequence

from papers.beyond.cnn_choice import choices as choices_of_cnn
from papers.beyond.cnn_compression import smaller
from papers.beyond.fused_descriptors import fused
from papers.beyond.label_counts import labelled
from papers.beyond.transfer import across
from papers.beyond.unseen_people import strangers
from papers.clml.fits import ClmlFits, Options
from papers.clml.grids import GRIDS, START
from papers.clml.option_choice import Case, Choices, possible
from papers.clml.table_rows import TableWorks, order_works
from papers.harness import page_writer
from papers.harness.lab_fits import Lab
from papers.harness.table_types import Chapter, Table, Work

PARTS = (smaller, strangers, across, labelled, fused)


def chapter(lab: Lab, start: Mapping[Case, Options] = START) -> Chapter:
    """The options of LDML and CLML are those that 003's tables choose; start: before that, and in a quick look."""
    choices = Choices(lab, possible(lab, GRIDS), start)

    def parts() -> list[TableWorks]:
        fits = ClmlFits(lab, {case: choices.of(case).options for case in start})
        return [part for make in PARTS if (part := make(fits))]

    def rest() -> list[Work]:
        return order_works([work for part in parts() for work in part.works])

    def done() -> bool:
        return choices.done and all(lab.store.has(work) for work in choices_of_cnn(lab))

    def works() -> list[Work]:
        """Those by which options are chosen come first; with what they choose, the others can be named."""
        return [*choices.works(), *choices_of_cnn(lab), *(rest() if done() else [])]

    def guessed() -> list[Work]:
        """By the options so far."""
        return [] if done() else [work for work in rest() if not lab.store.has(work)]

    def tables() -> Sequence[Table]:
        return page_writer.make_available_tables(*(part.table for part in parts()))

    return Chapter("beyond", "Past the papers", works, tables, guessed)

"""Past the papers: what none of the four tested."""

from collections.abc import Mapping, Sequence

from app.cli.reproduce import writing
from app.cli.reproduce.beyond.across import across
from app.cli.reproduce.beyond.choice import choices as choices_of_cnn
from app.cli.reproduce.beyond.cnn import smaller
from app.cli.reproduce.beyond.fused import fused
from app.cli.reproduce.beyond.labels import labelled
from app.cli.reproduce.beyond.strangers import strangers
from app.cli.reproduce.clml.choice import Case, Choices, possible
from app.cli.reproduce.clml.fits import Fits, Options
from app.cli.reproduce.clml.grids import GRIDS, START
from app.cli.reproduce.clml.rows import Part, side_by_side
from app.cli.reproduce.lab import Lab
from app.cli.reproduce.plan import Chapter, Table, Work

PARTS = (smaller, strangers, across, labelled, fused)


def chapter(lab: Lab, start: Mapping[Case, Options] = START) -> Chapter:
    """The options of LDML and CLML are those that 003's tables choose; start: before that, and in a quick look."""
    choices = Choices(lab, possible(lab, GRIDS), start)

    def parts() -> list[Part]:
        fits = Fits(lab, {case: choices.of(case).options for case in start})
        return [part for make in PARTS if (part := make(fits))]

    def rest() -> list[Work]:
        return side_by_side([work for part in parts() for work in part.works])

    def done() -> bool:
        return choices.done and all(lab.store.has(work) for work in choices_of_cnn(lab))

    def works() -> list[Work]:
        """Those by which options are chosen come first; with what they choose, the others can be named."""
        return [*choices.works(), *choices_of_cnn(lab), *(rest() if done() else [])]

    def guessed() -> list[Work]:
        """By the options so far."""
        return [] if done() else [work for work in rest() if not lab.store.has(work)]

    def tables() -> Sequence[Table]:
        return writing.those_there(*(part.table for part in parts()))

    return Chapter("beyond", "Past the papers", works, tables, guessed)

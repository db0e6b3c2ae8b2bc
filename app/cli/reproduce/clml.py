"""003, CLML: the tables and figures of "Coordinated Local Metric Learning"."""

from collections import Counter
from collections.abc import Mapping, Sequence

from app.cli.reproduce import writing
from app.cli.reproduce._clml_baselines import baselines
from app.cli.reproduce._clml_cells import cells
from app.cli.reproduce._clml_choice import Case, Choices
from app.cli.reproduce._clml_crowd import crowds
from app.cli.reproduce._clml_fits import Fits, Options, Sizes
from app.cli.reproduce._clml_goals import goals
from app.cli.reproduce._clml_grids import GRIDS, START
from app.cli.reproduce._clml_local import numbers, spaces
from app.cli.reproduce._clml_map import plane
from app.cli.reproduce._clml_million import million
from app.cli.reproduce._clml_rows import Part
from app.cli.reproduce._clml_strangers import strangers
from app.cli.reproduce._clml_verification import verification
from app.cli.reproduce._clml_widths import widths
from app.cli.reproduce.lab import Lab
from app.cli.reproduce.plan import Chapter, Table, Work

PARTS = (goals, spaces, numbers, widths, crowds, baselines, cells, million, verification, plane, strangers)


def chapter(lab: Lab, start: Mapping[Case, Options] = START, sizes: Sizes = Sizes()) -> Chapter:
    """start: the options before anything was chosen, and all there is in a quick look."""
    choices = Choices(lab, {} if lab.scope.quick else GRIDS, start)

    def parts() -> list[Part]:
        fits = Fits(lab, {case: choices.of(case).options for case in start}, sizes)
        return [part(fits) for part in PARTS]

    def rest() -> list[Work]:
        return _side_by_side([work for part in parts() for work in part.works])

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


def _side_by_side(works: Sequence[Work]) -> list[Work]:
    """Fits on the same descriptors and people one after the other, for they share their principal axes: first those of
    which there are few, which is what most tables have in common, sweeps last. Then what is made of fits."""
    fits = [w for w in works if "features" in w.key]
    many = Counter(w.group for w in fits)
    fits.sort(key=lambda w: (many[w.group], w.group))
    return [*fits, *(w for w in works if "features" not in w.key)]

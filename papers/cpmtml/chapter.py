"""002, CP-mtML: the tables and figures of "CP-mtML: Coupled Projection multi-task Metric Learning"."""

from collections.abc import Sequence

from papers.cpmtml.age import DIM, AgeFits
from papers.cpmtml.age_table import AgeTable
from papers.cpmtml.convergence import ConvergenceTable
from papers.cpmtml.fits import TUNING_DIM, CpmtmlFits
from papers.cpmtml.identity import IdentityTables
from papers.cpmtml.projections import ProjectionTable
from papers.cpmtml.speed import SpeedTable
from papers.cpmtml.tasks import PAIRS
from papers.harness.run_context import RunContext
from papers.harness.table_types import Chapter, Computation, Table


def chapter(context: RunContext) -> Chapter:
    fits = CpmtmlFits(context)
    identity, parts, ages, course, speed = (
        IdentityTables(fits),
        ProjectionTable(fits),
        AgeFits(fits),
        ConvergenceTable(fits),
        SpeedTable(fits),
    )
    aged = [s for f in identity.features for s in ages.settings(f)] if context.photos.has("age") else []

    def computations() -> list[Computation]:
        chosen = [w for s in identity.settings() if s.dim == TUNING_DIM and s.pairs == PAIRS for w in fits.choices(s)]
        fitted = [w for s in identity.settings() for w in fits.computations(s)]
        chosen += [w for s in aged if s.dim == DIM for w in ages.choices(s)]
        fitted += [w for s in aged for w in ages.computations(s)]
        return [*chosen, *fitted, *parts.computations(), *course.computations(), *speed.computations()]

    def tables() -> Sequence[Table]:
        made = [parts.table(identity.header(["lbp"], few_draws_only=True)), *identity.tables()]
        made += [AgeTable(ages, identity.features).table()] if aged else []
        return [*made, course.table(), speed.table()]

    def guessed() -> Sequence[Computation]:
        waiting = [w for s in identity.settings() if fits.method(s) is None for w in fits.guessed(s)]
        return [*waiting, *(w for s in aged if not ages.computations(s) for w in ages.guessed(s))]

    return Chapter("cp-mtml", "CP-mtML (002)", computations, tables, guessed)

"""Make rows from the fits of 002: figures, the paper's, and why a row is worse, as far as the figures show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ml.evaluation.comparisons.paired_tests import Comparison
from papers.cpmtml.fits import CpmtmlFits
from papers.cpmtml.learners import (
    CPMTML_FROM_NEXT,
    CPMTML_LEARNERS,
    MTLMCA_FROM_EYE,
    MTLMCA_LEARNERS,
    STML_LEARNER,
    UTML_LEARNERS,
    WPCA_LEARNER,
    Setting,
)
from papers.cpmtml.printed_figures import WPCA, printed
from papers.harness.results import ALONE, CROWD, describe_difference, difference, figure, figures
from papers.harness.table_types import Computation, Figure, Row
from papers.harness.verdicts import get_verdict

NO_NETWORK_NOTE = "the paper's network (AlexNet, 4,096 numbers) is not available; MobileFaceNet's figures are its own"
FEWER_DISTRACTORS_NOTE = "{n:,} distractors here, a million in the paper"


@dataclass(frozen=True, eq=False)
class RowBuilder:
    """Makes rows from finished fits."""

    fits: CpmtmlFits

    def row(self, setting: Setting, columns: Sequence[str], paper: Mapping[str, float], where: str = ALONE) -> Row:
        """Make the row of one setting."""
        computations = self.fits.computations(setting)
        row = Row(
            setting.title,
            figures(self.fits.context.results(computations), columns, where),
            paper,
            computations=computations,
        )
        return self.add_verdict(row, [setting], where)

    def by_dim(self, name: str, settings: Mapping[int, Setting], where: str = ALONE) -> Row:
        """Make a row of 1-call@10 by the d of the table, which is half of its own for stML of 2d."""
        shown: dict[str, Figure] = {}
        paper: dict[str, float] = {}
        computations: list[Computation] = []
        for dim, s in settings.items():
            here = self.fits.computations(s)
            shown[f"d={dim}"] = figure(self.fits.context.results(here), "1@10", where)
            known = printed(s.features, s.learner.printed, s.dim, where == CROWD)
            paper |= {f"d={dim}": known["1@10"]} if known else {}
            computations += here
        return self.add_verdict(Row(name, shown, paper, computations=computations), list(settings.values()), where)

    def add_verdict(self, row: Row, settings: Sequence[Setting], where: str) -> Row:
        """Return the row with its verdict. settings: one or several d of one learner"""
        row = replace(row, altered=settings[0].learner.altered)
        if where == CROWD:
            return self._apart(row)
        if settings[0].features != "lbp" and row.paper:
            return replace(row, verdict="not possible here", cause=NO_NETWORK_NOTE)
        return replace(row, cause=self._cause(row, settings)) if get_verdict(row) == "worse" else row

    def _apart(self, row: Row) -> Row:
        """Mark a row whose figures cannot be compared with the paper's."""
        if not row.paper:
            return row
        n = len(self.fits.context.photos.names("distractors"))
        return replace(row, verdict="not possible here", cause=FEWER_DISTRACTORS_NOTE.format(n=n))

    def _cause(self, row: Row, settings: Sequence[Setting]) -> str:
        short = _gap(row.figures, row.paper)
        starts = [self.start(s) for s in settings]
        start = float(np.mean([s for s in starts if s is not None] or [0.0]))
        if not settings[0].learner.learns:
            return f"{short:+.1f} before anything is learned: other alignment, other faces as queries"
        whole = f"{short:+.1f}: {start:+.1f} where it starts (WPCA), {short - start:+.1f} in what is learned"
        return "; ".join([whole, *self._reason(settings[0])])

    def start(self, setting: Setting) -> float | None:
        """Return the difference of WPCA at the same d to the paper's."""
        paper = printed(setting.features, WPCA, setting.dim)
        own = replace(setting, learner=WPCA_LEARNER)
        if not paper or not self.fits.done(own):
            return None
        return _gap(figures(self.fits.results(own), list(paper)), paper)

    def _reason(self, setting: Setting) -> list[str]:
        """Name an alternative that was tried and is better."""
        one = setting.learner
        if one in CPMTML_LEARNERS:
            better, why = (
                CPMTML_FROM_NEXT[CPMTML_LEARNERS.index(one)],
                "L0 begins as a copy of L1: begun at the next components it has",
            )
        elif one is MTLMCA_FROM_EYE:
            better, why = (
                MTLMCA_LEARNERS[0],
                "L0 begins with the first d numbers of the descriptor: begun at WPCA it has",
            )
        elif one in UTML_LEARNERS or one in MTLMCA_LEARNERS:
            better, why = STML_LEARNER, "the other task's pairs move the one projection: without them stML has"
        else:
            return []
        other = replace(setting, learner=better)
        if not other.possible or not self.fits.done(other):
            return []
        gain = self.compare_settings(other, setting)
        return [f"{why} {describe_difference(gain)} at 10"] if gain.difference.low > 0 else []

    def compare_settings(self, a: Setting, b: Setting, column: str = "1@10", where: str = ALONE) -> Comparison:
        """Compare a with b on their common draws: a - b."""
        first, second = self.fits.computations(a), self.fits.computations(b)
        n = min(len(first), len(second))
        one, other = (self.fits.context.results(side[:n]) for side in (first, second))
        return difference(one, other, column, where)


def _gap(shown: Mapping[str, Figure], paper: Mapping[str, float]) -> float:
    """Return our figures minus the paper's, averaged over common columns; 0 if there are none."""
    both = [shown[c].value - value for c, value in paper.items() if c in shown]
    return float(np.mean(both)) if both else 0.0

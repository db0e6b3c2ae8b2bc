"""Figure 3 of 002 as a table and a plot, with tests of the paper's statements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from papers.cpmtml.age import DIM, IDENTITIES, PRINTED, AgeFits
from papers.cpmtml.learners import STML_LEARNER, Setting
from papers.cpmtml.tasks import AGE_TOLERANCE_YEARS, PAIRS
from papers.harness.results import Queries, difference, figures, percent
from papers.harness.table_types import Computation, Plot, Result, Row, Sign, Table

CALL_RANKS = (1, 2, 5, 10, 20)
COLUMNS = (*(f"1@{k}" for k in CALL_RANKS), "mAP")
DESCRIPTOR_NAMES = {"lbp": "LBP", "mobilefacenet": "CNN"}


@dataclass(frozen=True, eq=False)
class AgeTable:
    """The table of Figure 3 for some descriptors."""

    ages: AgeFits
    features: Sequence[str]

    def table(self) -> Table:
        """Return the results by learner, and the paper's three statements."""
        rows = [self._row(s) for features in self.features for s in self.ages.settings(features)]
        names = " and ".join(DESCRIPTOR_NAMES[f] for f in self.features)
        splits = len(self.ages.splits)
        header = (
            f"UTKFace (for MORPH), faces of 18 to 80 years, {names}; {splits} splits in halves, one to learn from; of "
            f"the other one face of each age is searched for among the rest, and a face of the same year is right. "
            f"n-call@K and mAP in percent, intervals by bootstrap over ages. {PAIRS:,} pairs of ages (alike within "
            f"{AGE_TOLERANCE_YEARS:g} years), {IDENTITIES:,} pairs of identities of LFW; the paper prints curves and "
            "no figures."
        )
        title = f"Figure 3: age retrieval, d = {DIM}"
        return Table("figure-3", title, header, COLUMNS, [*rows, *self._statements()], [self._plot()])

    def _row(self, setting: Setting) -> Row:
        computations = self.ages.computations(setting)
        name = f"{DESCRIPTOR_NAMES[setting.features]}, {setting.title}"
        return Row(name, figures(self.ages.fits.context.results(computations), COLUMNS), computations=computations)

    def _setting(self, learner: Any, features: str) -> Setting:
        return next(s for s in self.ages.settings(features) if s.learner == learner)

    def _results(self, learner: Any, features: str) -> list[Result]:
        return self.ages.results(self._setting(learner, features))

    def _computations(self, learner: Any, features: str) -> list[Computation]:
        return list(self.ages.computations(self._setting(learner, features)))

    def _statements(self) -> list[Row]:
        claims = {
            f"{DESCRIPTOR_NAMES[f]}: CP-mtML less stML": ((PRINTED, f), (STML_LEARNER, f), f == "lbp")
            for f in self.features
        }
        if len(self.features) > 1:
            claims["stML: LBP less CNN"] = ((STML_LEARNER, "lbp"), (STML_LEARNER, "mobilefacenet"), True)
        made = []
        for name, (a, b, above) in claims.items():
            comparisons = {c: difference(self._results(*a), self._results(*b), c) for c in COLUMNS}
            shown = {c: percent(one.difference, draws=len(self.ages.splits)) for c, one in comparisons.items()}
            computations = [w for one in (a, b) for w in self._computations(*one)]
            says = f"the paper: {'above' if above else 'below'} 0; 1-call@10: p {comparisons['1@10'].p:.2g}"
            sign: Sign = "above" if above else "below"
            made.append(Row(name, shown, cause=says, differences=("1@10",), claim=sign, computations=computations))
        return made

    def _plot(self) -> Plot:
        curves = {
            features: {s.title: _curve(self.ages.results(s)) for s in self.ages.settings(features)}
            for features in self.features
        }

        def draw(axes: Any) -> None:
            for panel, (features, lines) in zip(np.atleast_1d(axes), curves.items(), strict=True):
                for name, curve in lines.items():
                    panel.plot(range(1, len(curve) + 1), curve, label=name)
                panel.set(title=DESCRIPTOR_NAMES[features], xlabel="K", ylabel="1-call@K, percent")
                panel.legend(fontsize=7, loc="lower right")

        alt = f"1-call@K of the same age by K, {' and '.join(DESCRIPTOR_NAMES[f] for f in self.features)}"
        return Plot("cpmtml-age", alt, draw, columns=len(self.features))


def _curve(results: Sequence[Result]) -> list[float]:
    """Return 1-call@1 to @20 in percent."""
    queries = [Queries.of(r) for r in results]
    return [100 * float(np.nanmean(np.concatenate([q.values(f"1@{k}") for q in queries]))) for k in range(1, 21)]

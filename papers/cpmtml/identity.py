"""002, Tables 2 to 6: identity retrieval by learner and d, without and with distractors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from papers.cpmtml.fits import HELD_OUT, TUNING_DIM, CpmtmlFits
from papers.cpmtml.learners import (
    CPMTML_FROM_NEXT,
    CPMTML_LEARNERS,
    QUICK_STEPS,
    STML_LEARNER,
    WPCA_LEARNER,
    Setting,
    lines,
    rivals,
)
from papers.cpmtml.printed_figures import BOOSTED, CALL_RANKS, DIMS, calls, gap, printed
from papers.cpmtml.row_builder import NO_NETWORK_NOTE, RowBuilder
from papers.cpmtml.tasks import AGE, AUXILIARY_PAIRS, MOOD, PAIRS, STAND_INS, TABLE_5_PAIRS
from papers.harness.results import ALONE, CROWD, percent
from papers.harness.table_types import Row, Table

COLUMNS = (*(f"1@{k}" for k in CALL_RANKS), "mAP")
DISTRACTORS_COLUMN = "1@10 among distractors"
DESCRIPTORS = {"lbp": "LBP (9,860 numbers)", "mobilefacenet": "MobileFaceNet (128 numbers) for AlexNet's fc7 (4,096)"}
DESCRIPTOR_NAMES = {"lbp": "LBP", "mobilefacenet": "CNN"}
TABLE_NUMBERS = {"lbp": ("tables-2-6", "Tables 2 and 6"), "mobilefacenet": ("table-3", "Table 3")}
LMNN = (
    "002 prints no figure, only that it was slightly better than WPCA; it learns D x D matrices, 97 million numbers "
    "for each task, by its authors' own code, which is not Python"
)
BOOST_NOTE = "another group's boosted system, from 32,000 pairs: quoted"


@dataclass(frozen=True, eq=False)
class IdentityTables:
    """The tables of a run, and the settings that they need."""

    fits: CpmtmlFits

    @property
    def features(self) -> tuple[str, ...]:
        return ("lbp",) if self.fits.context.scope.quick else tuple(DESCRIPTORS)

    @property
    def dims(self) -> tuple[int, ...]:
        return (64,) if self.fits.context.scope.quick else DIMS

    @property
    def crowded(self) -> bool:
        return self.fits.context.photos.has("distractors")

    @property
    def _wheres(self) -> tuple[str, ...]:
        return (ALONE, CROWD) if self.crowded else (ALONE,)

    def settings(self) -> list[Setting]:
        """Return all settings once, grouped by descriptor."""
        shown = [s for f in self.features for d in self.dims for s in self._lines(f, d)]
        return list(dict.fromkeys([*shown, *self._boosted()]))

    def tables(self) -> list[Table]:
        galleries = [(f, where) for f in self.features for where in self._wheres]
        made = [self._make_rank_table(*gallery) for gallery in galleries]
        if not self.fits.context.scope.quick:
            made += [
                *(self._make_dimension_table(*gallery) for gallery in galleries),
                *(self._table_5(w) for w in self._wheres),
            ]
        return [*made, self._make_difference_table()]

    def _lines(self, features: str, dim: int) -> list[Setting]:
        quick = self.fits.context.scope.quick
        every = features == "lbp" and dim == 64 and not quick
        return self.fits.possible(lines(features, dim, every=every))

    def _boosted(self) -> list[Setting]:
        if self.fits.context.scope.quick:
            return []
        learners = [one for one in (*CPMTML_LEARNERS, *CPMTML_FROM_NEXT) if one.aux in (MOOD, AGE)]
        both = [Setting(STML_LEARNER, "lbp", d, TABLE_5_PAIRS) for d in (32, 64)]
        return self.fits.possible([*both, *(Setting(one, "lbp", 32, TABLE_5_PAIRS) for one in learners)])

    def _make_rank_table(self, features: str, where: str) -> Table:
        name, title = TABLE_NUMBERS[features]
        crowd, reader = where == CROWD, RowBuilder(self.fits)
        made = [
            reader.row(s, COLUMNS, printed(features, s.learner.printed, s.dim, crowd), where)
            for s in self._lines(features, 64)
        ]
        if features == "lbp" and not crowd:
            made.append(Row("mtLMNN", {}, verdict="not possible here", cause=LMNN))
        title = f"{title}: d = 64{_among(crowd)}"
        return Table(name + _tail(crowd), title, self.header([features]), COLUMNS, made, notes=self._notes(features))

    def _make_dimension_table(self, features: str, where: str) -> Table:
        """Table 4."""
        by_row: dict[str, dict[int, Setting]] = {}
        for dim in self.dims:
            for s in self._lines(features, dim):
                name = s.learner.title if s.dim == dim else f"{s.learner.title} of 2d"
                by_row.setdefault(name, {})[dim] = s
        rows = [RowBuilder(self.fits).by_dim(name, s, where) for name, s in by_row.items() if len(s) > 1]
        kind, crowd = DESCRIPTOR_NAMES[features], where == CROWD
        title = f"Table 4, {kind}: 1-call@10 by d{_among(crowd)}"
        columns = [f"d={d}" for d in self.dims]
        name, notes = f"table-4-{kind.lower()}{_tail(crowd)}", self._notes(features)
        return Table(name, title, self.header([features]), columns, rows, notes=notes)

    def _notes(self, features: str) -> list[str]:
        """Return notes on descriptors that differ from the paper's."""
        start = RowBuilder(self.fits).start(Setting(WPCA_LEARNER, features, 64))
        if start is None or features == "lbp":
            return []
        return [
            f"WPCA, which learns from no pair, stands {start:+.1f} from the paper's: that much is the descriptor's."
        ]

    def _table_5(self, where: str) -> Table:
        columns, reader, crowd = ("1@10", "1@20", "mAP"), RowBuilder(self.fits), where == CROWD
        made = [Row("MLBoost", {}, calls(BOOSTED["MLBoost", ""][crowd]), "not possible here", BOOST_NOTE)]
        for s in self._boosted():
            paper = BOOSTED.get(s.learner.printed)
            made.append(reader.row(s, columns, calls(paper[crowd]) if paper else {}, where))
        title = f"Table 5: d = 32, {TABLE_5_PAIRS:,} identity pairs{_among(crowd)}"
        return Table(
            f"table-5{_tail(crowd)}", title, self.header(["lbp"], TABLE_5_PAIRS, few_draws_only=True), columns, made
        )

    def _make_difference_table(self) -> Table:
        """Compare CP-mtML with stML of the same d, and of the same stored size."""
        made = []
        for features in self.features:
            for dim in self.dims:
                at = self._lines(features, dim)
                made += [self._make_difference_row(s, t) for s in at if s.learner.coupled for t in rivals(s, at)]
        notes = [
            "In points. Intervals by bootstrap over people; p by permutation of people, not corrected for many rows."
        ]
        title = "CP-mtML minus stML of the same d, and of the same stored size, on the same queries"
        return Table(
            "differences", title, self.header(self.features), ("1@10", "mAP", DISTRACTORS_COLUMN), made, notes=notes
        )

    def _make_difference_row(self, a: Setting, b: Setting) -> Row:
        reader = RowBuilder(self.fits)
        columns = {"1@10": ("1@10", ALONE), "mAP": ("mAP", ALONE)} | (
            {DISTRACTORS_COLUMN: ("1@10", CROWD)} if self.crowded else {}
        )
        comparisons = {name: reader.compare_settings(a, b, *what) for name, what in columns.items()}
        computations = [*self.fits.computations(a), *self.fits.computations(b)]
        draws = min(len(self.fits.computations(s)) for s in (a, b))
        size = f"the same d ({b.dim})" if a.dim == b.dim else f"the same stored size (d = {b.dim})"
        name = f"{DESCRIPTOR_NAMES[a.features]}, d = {a.dim}: {a.learner.title} less stML of {size}"
        shown = {column: percent(c.difference, draws=draws) for column, c in comparisons.items()}
        paper = gap(a.features, a.learner.printed, a.dim, b.dim)
        cause = f"p {comparisons['1@10'].p:.2g}"
        row = Row(
            name, shown, paper, cause=cause, computations=computations, differences=("1@10",), altered=a.learner.altered
        )
        return (
            row
            if a.features == "lbp"
            else replace(row, verdict="not possible here", cause=f"{cause}; {NO_NETWORK_NOTE}")
        )

    def header(self, features: Sequence[str], pairs: int = PAIRS, *, few_draws_only: bool = False) -> str:
        """Return the header of an identity table. few_draws_only: whether it has only the few draws"""
        scope, context = self.fits.context.scope, self.fits.context
        fewest_draws = len(scope.few_seeds)
        many = fewest_draws if few_draws_only else scope.draws
        draws = f"{many} draws of the queries (queries-0..{many - 1}.txt)"
        if fewest_draws < many:
            draws += f" for LBP at d = 32 and for WPCA, stML and CP-mtML at d = 64, {fewest_draws} for the rest"
        chosen = f"untuned, {QUICK_STEPS} batches of 256 pairs for each task"
        if not scope.quick:
            share = f"{HELD_OUT:.0%} of the people of draw 0's training side"
            chosen = f"rate and number of steps chosen once at d = {TUNING_DIM}, on {share} held out, then frozen"
        crowd = len(context.photos.names("distractors")) if self.crowded else 0
        others = f", {crowd:,} UTKFace faces as distractors (for a million)" if crowd else ""
        described = " and ".join(DESCRIPTORS[f] for f in features)
        return (
            f"LFW, closed set (the gallery is what is learned from), {described}, {draws}{others}. n-call@K and mAP in "
            f"percent. {pairs:,} identity pairs of each draw's training side, {AUXILIARY_PAIRS:,} pairs of the other "
            "task "
            f"({STAND_INS}); {chosen}."
        )


def _tail(crowd: bool) -> str:
    return "-distractors" if crowd else ""


def _among(crowd: bool) -> str:
    return ", among distractors" if crowd else ""

"""003, Table 3: verification on LFW's view 2."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.evaluation.comparisons.paired_tests import compare_folds
from papers.clml.fits import BOTH_SIDES, ClmlFits, is_available, name_features
from papers.clml.table_rows import OTHER_NETWORK, TableComputations, describe_alterations
from papers.harness.results import accuracy, verified
from papers.harness.run_context import FOLDS, Method, RunContext
from papers.harness.table_types import Computation, Figure, Row, Table
from papers.harness.verdicts import NO_DIFFERENCE, compare_with_paper

LEARNED_PAIRS_COLUMN = "threshold of pairs learned from"
COLUMNS = ("accuracy", LEARNED_PAIRS_COLUMN)
PRINTED = {
    ("fisher", "L2"): 78.9,
    ("fisher", "LDML, d = 768"): 92.3,
    ("fisher", "LDML, d = 128"): 92.1,
    ("fisher", "LDML, d = 32"): 91.6,
    ("fisher", "CLML, d = 128 (k = 6)"): 92.8,
    ("fisher", "CLML, d = 32 (k = 4)"): 92.4,
    ("mobilefacenet", "L2"): 96.2,
    ("mobilefacenet", "LDML, d = 128"): 96.5,
    ("mobilefacenet", "CLML, d = 128 (k = 2)"): 96.4,
}
COMPARED_ROWS = (
    ("CLML, d = 32 (k = 4)", "LDML, d = 32"),
    ("CLML, d = 128 (k = 6)", "LDML, d = 128"),
    ("CLML, d = 32 (k = 4)", "LDML, d = 128"),
    ("CLML, d = 128 (k = 6)", "LDML, d = 768"),
    ("CLML, d = 128 (k = 2)", "LDML, d = 128"),
)
"""Pairs for CLML minus LDML, first at equal d, then with equally many parameters."""


@dataclass(frozen=True, eq=False)
class VerificationFits:
    """The fits of a method.

    folds: one fit per fold; judges: see `RunContext.judges`, none where nothing is learned
    """

    context: RunContext
    folds: Sequence[Computation]
    judges: Sequence[Computation]

    @property
    def computations(self) -> list[Computation]:
        return [*self.folds, *self.judges]

    def accuracy(self) -> Figure:
        return accuracy(self.context.results(self.folds), *_sides(self.context), self.context.results(self.judges))

    def tight(self) -> Figure:
        """Return the accuracy with a threshold from pairs that the fit learned from."""
        return accuracy(self.context.results(self.folds), *_sides(self.context))

    def by_fold(self) -> NDArray[np.float64]:
        make_verification_table = verified(
            self.context.results(self.folds), *_sides(self.context), self.context.results(self.judges)
        )
        return np.array(make_verification_table.accuracies)


def make_verification_table(fits: ClmlFits) -> TableComputations:
    """Table 3, with the options chosen for people never seen, and the paper's k so that the sizes are equal."""
    sides = {(f, name): _side(fits, f, method) for f, name, method in _methods(fits)}

    def table() -> Table:
        rows = [_row(fits, f, name, side) for (f, name), side in sides.items()]
        shown = dict.fromkeys(f for f, _ in sides)
        notes = [_paired(f, a, b, sides) for f in shown for a, b in COMPARED_ROWS if {(f, a), (f, b)} <= sides.keys()]
        header = (
            f"LFW view 2 (`pairs.txt`, {len(FOLDS)} folds, each judged by a fit on the others' people, unrestricted), "
            "accuracy in percent, ± over folds. Options as chosen on the inner split of `disjoint-0`, k as in the "
            "paper. accuracy: the threshold is that of one other fold's pairs under a fit that saw neither of the two "
            "(of L2, which learns nothing, that of all other folds); this rule was found in sight of these pairs. "
            f"{LEARNED_PAIRS_COLUMN}: under the same fit, of the pairs of all other folds, which it learned from."
        )
        notes.append("equal numbers of parameters: k = 4 at d = 32 with d = 128, k = 6 at d = 128 with d = 768")
        notes.append("quoted by the paper for others, 12,000 photos of LFW: Guillaumin 87.5, Chen 93.2, Simonyan 93.0")
        return Table("table-3", "Table 3: verification", header, COLUMNS, rows, notes=notes)

    return TableComputations([w for side in sides.values() for w in side.computations], table)


def _side(fits: ClmlFits, features: str, method: Method) -> VerificationFits:
    judges = fits.context.judges(method, features) if method.dim else []
    return VerificationFits(fits.context, fits.context.verification(method, features), judges)


def _methods(fits: ClmlFits) -> list[tuple[str, str, Method]]:
    if fits.context.scope.quick:
        return [("lbp", "L2", Method("l2"))]
    fv, cnn = (fits.options(f, "disjoint") for f in ("fisher", "mobilefacenet"))
    both = BOTH_SIDES["fisher"]
    methods = [
        ("fisher", "L2", Method("l2")),
        *(("fisher", f"LDML, d = {d}", fv.of_ldml(d)) for d in (32, 128, 768)),
        *(("fisher", f"CLML, d = {d} (k = {k})", fv.of_clml(k, d)) for d, k in ((32, 4), (128, 6))),
        (both, "L2", Method("l2")),
        (both, "LDML, d = 128", fv.of_ldml(128)),
        (both, "CLML, d = 128 (k = 6)", fv.of_clml(6, 128)),
        ("mobilefacenet", "L2", Method("l2")),
        ("mobilefacenet", "LDML, d = 128", cnn.of_ldml(128)),
        ("mobilefacenet", "CLML, d = 128 (k = 2)", cnn.of_clml(2, 128)),
    ]
    return [one for one in methods if is_available(fits.context, one[0])]


def verification_of(
    fits: ClmlFits, features: str, name: str
) -> tuple[list[Computation], Callable[[], dict[str, Figure]]]:
    """Return the computations of a row of Table 3, and a function that reads its figure."""
    [side] = [_side(fits, f, m) for f, n, m in _methods(fits) if (f, n) == (features, name)]
    return side.computations, lambda: {"accuracy": side.accuracy()}


def _sides(context: RunContext) -> tuple[list[Any], Any]:
    sides = [context.protocol(f"view2:{fold}") for fold in FOLDS]
    return [s.pairs for s in sides], sides[0].people


def _row(fits: ClmlFits, features: str, name: str, side: VerificationFits) -> Row:
    figures = {"accuracy": side.accuracy()} | ({LEARNED_PAIRS_COLUMN: side.tight()} if side.judges else {})
    paper = {"accuracy": PRINTED[features, name]} if (features, name) in PRINTED else {}
    parameters = fits.context.results(side.folds)[0].record["parameters"]
    key = side.folds[0].key
    about = {"parameters": parameters, "options": key["options"]}
    changed = describe_alterations(str(key["method"]), key["options"]) if paper else ""
    row = Row(
        f"{name_features(features)}, {name}",
        figures,
        paper,
        about=about,
        computations=side.computations,
        altered=changed,
    )
    if features == "mobilefacenet":
        return replace(row, verdict="not possible here", cause=OTHER_NETWORK)
    if set(compare_with_paper(row).values()) != {-1}:
        return row
    plain = _side(fits, features, Method("l2")).accuracy().value
    printed = PRINTED[features, "L2"]
    weaker, l2_text = plain < printed - 1, f"(L2 {plain:.1f} for {printed})"
    learning = f"the descriptor itself is as good {l2_text}, so it is the learning: no option was tuned on these pairs"
    return replace(row, cause=f"the descriptor itself is weaker here {l2_text}" if weaker else learning)


def _paired(features: str, a: str, b: str, sides: Mapping[tuple[str, str], VerificationFits]) -> str:
    """Describe a difference over folds, with an interval corrected for overlapping training sets."""
    comparison = compare_folds(sides[features, a].by_fold(), sides[features, b].by_fold())
    d = comparison.difference
    text = f"{100 * d.value:+.2f} [{100 * d.low:+.2f}, {100 * d.high:+.2f}], p {comparison.corrected:.2g} (corrected t)"
    text += "" if d.low > 0 or d.high < 0 else f", {NO_DIFFERENCE}"
    return f"{name_features(features)}, {a} less {b}: {text}"

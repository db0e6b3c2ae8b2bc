"""Three hand-made descriptors side by side: LBP, Fisher vectors and SIFT at landmarks, in one row of 30,212 numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from papers.beyond.unseen_people import DIMS, FIGURE_NAMES, VOCABULARY_NOTE, methods, name_method
from papers.clml.fits import DESCRIPTOR_NAMES, ClmlFits
from papers.clml.table_rows import TableComputations
from papers.harness.results import describe_difference, difference, figure
from papers.harness.run_context import Method, RunContext
from papers.harness.table_types import Computation, Row, Table

FUSED, SINGLES = "lbp+fisher+sift", ("lbp", "fisher", "sift")
TITLES = DESCRIPTOR_NAMES | {FUSED: "fused", "sift": "SIFT"}
KINDS = {"closed set": "queries", "never seen": "disjoint"}
COLUMNS = tuple(f"{where}: {what}" for where in KINDS for what in FIGURE_NAMES)
BEST = "fisher"
"""The best of the three; its options are used where none were chosen."""


@dataclass(frozen=True, eq=False)
class FusionEntry:
    """A row. method: for the name; k and other options may differ between the two kinds of protocol"""

    features: str
    method: Method
    computations: Mapping[str, Sequence[Computation]]

    @property
    def name(self) -> str:
        return f"{TITLES[self.features]}, {name_method(self.method, with_k=False)}"

    @property
    def all(self) -> list[Computation]:
        return [computation for computations in self.computations.values() for computation in computations]


def make_fusion_table(fits: ClmlFits) -> TableComputations | None:
    """Make the table; None in a quick run."""
    if fits.context.scope.quick:
        return None
    entries = list(_lines(fits))
    return TableComputations(
        [computation for entry in entries for computation in entry.all], lambda: _table(fits, entries)
    )


def _lines(fits: ClmlFits) -> Iterator[FusionEntry]:
    for features in (*SINGLES, FUSED):
        chosen = features if features in fits.features else BEST
        both = (methods(fits, chosen, kind, DIMS) for kind in KINDS.values())
        for closed, seen in zip(*both, strict=True):
            if closed.name == "ldml" or (closed.name == "clml" and features != "sift"):
                computations = [
                    _computations(fits, m, features, kind)
                    for m, kind in zip((closed, seen), KINDS.values(), strict=True)
                ]
                yield FusionEntry(features, closed, dict(zip(KINDS, computations, strict=True)))


def _computations(fits: ClmlFits, method: Method, features: str, kind: str) -> list[Computation]:
    return [fits.context.retrieval(method, features, f"{kind}-{i}") for i in fits.context.scope.few_seeds]


def _table(fits: ClmlFits, entries: list[FusionEntry]) -> Table:
    context = fits.context
    rows, notes = [], []
    for entry in entries:
        results = {where: context.results(computations) for where, computations in entry.computations.items()}
        shown = {f"{where}: {what}": figure(results[where], what) for where in results for what in FIGURE_NAMES}
        options = {where: computations[0].key["options"] for where, computations in entry.computations.items()}
        rows.append(Row(entry.name, shown, about={"options": options}, computations=entry.all))
        if entry.features == FUSED:
            wanted = (BEST, entry.method.name, entry.method.dim)
            [best] = [n for n in entries if (n.features, n.method.name, n.method.dim) == wanted]
            notes.append(f"{entry.name}, less {TITLES[BEST]} alone: {_gain(context, entry, best)}")
    draws = len(context.scope.few_seeds)
    header = (
        f"LFW, {draws} draws of `queries-*` (closed set, 423 queries, gallery 12,810) and of `disjoint-*` (people "
        f"never seen; {VOCABULARY_NOTE}), in percent. LBP (9,860 numbers), Fisher vectors (FV, 16,896) and SIFT at "
        "nine "
        f"landmarks (3,456), and all three in one row, weighted so that they vary alike. Options, k among them, are "
        f"those chosen for the closed set and for people never seen; of SIFT and of all three those of FV."
    )
    return Table("fused", "Fused descriptors", header, COLUMNS, rows, notes=notes)


def _gain(context: RunContext, entry: FusionEntry, single: FusionEntry) -> str:
    parts = []
    for where in KINDS:
        fused_results = context.results(entry.computations[where])
        single_results = context.results(single.computations[where])
        for what in FIGURE_NAMES:
            gain = difference(fused_results, single_results, what)
            parts.append(f"{where} {what} {describe_difference(gain)}")
    return "; ".join(parts)

"""Three hand-made descriptors side by side: LBP, Fisher vectors and SIFT at landmarks, in one row of 30,212 numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from papers.beyond.unseen_people import DIMS, VOCABULARY, WHAT, methods, name_method
from papers.clml.fits import NAMES, ClmlFits
from papers.clml.table_rows import TableWorks
from papers.harness.lab_fits import Lab, Method
from papers.harness.results import describe_difference, difference, figure
from papers.harness.table_types import Row, Table, Work

FUSED, SINGLES = "lbp+fisher+sift", ("lbp", "fisher", "sift")
TITLES = NAMES | {FUSED: "fused", "sift": "SIFT"}
KINDS = {"closed set": "queries", "never seen": "disjoint"}
COLUMNS = tuple(f"{where}: {what}" for where in KINDS for what in WHAT)
BEST = "fisher"
"""The best of the three, whose options serve where none were chosen."""


@dataclass(frozen=True, eq=False)
class FusionEntry:
    """method: as it is called; k and other options are each side's own."""

    features: str
    method: Method
    works: Mapping[str, Sequence[Work]]

    @property
    def name(self) -> str:
        return f"{TITLES[self.features]}, {name_method(self.method, with_k=False)}"

    @property
    def all(self) -> list[Work]:
        return [work for works in self.works.values() for work in works]


def fused(fits: ClmlFits) -> TableWorks | None:
    """None where time is short."""
    if fits.lab.scope.quick:
        return None
    entries = list(_lines(fits))
    return TableWorks([work for entry in entries for work in entry.all], lambda: _table(fits, entries))


def _lines(fits: ClmlFits) -> Iterator[FusionEntry]:
    for features in (*SINGLES, FUSED):
        chosen = features if features in fits.features else BEST
        both = (methods(fits, chosen, kind, DIMS) for kind in KINDS.values())
        for closed, seen in zip(*both, strict=True):
            if closed.name == "ldml" or (closed.name == "clml" and features != "sift"):
                works = [
                    _works(fits, m, features, kind) for m, kind in zip((closed, seen), KINDS.values(), strict=True)
                ]
                yield FusionEntry(features, closed, dict(zip(KINDS, works, strict=True)))


def _works(fits: ClmlFits, method: Method, features: str, kind: str) -> list[Work]:
    return [fits.lab.retrieval(method, features, f"{kind}-{i}") for i in fits.lab.scope.few_seeds]


def _table(fits: ClmlFits, entries: list[FusionEntry]) -> Table:
    lab = fits.lab
    rows, notes = [], []
    for entry in entries:
        results = {where: lab.results(works) for where, works in entry.works.items()}
        shown = {f"{where}: {what}": figure(results[where], what) for where in results for what in WHAT}
        options = {where: works[0].key["options"] for where, works in entry.works.items()}
        rows.append(Row(entry.name, shown, about={"options": options}, works=entry.all))
        if entry.features == FUSED:
            wanted = (BEST, entry.method.name, entry.method.dim)
            [best] = [n for n in entries if (n.features, n.method.name, n.method.dim) == wanted]
            notes.append(f"{entry.name}, less {TITLES[BEST]} alone: {_gain(lab, entry, best)}")
    draws = len(lab.scope.few_seeds)
    header = (
        f"LFW, {draws} draws of `queries-*` (closed set, 423 queries, gallery 12,810) and of `disjoint-*` (people "
        f"never seen; {VOCABULARY}), in percent. LBP (9,860 numbers), Fisher vectors (FV, 16,896) and SIFT at nine "
        f"landmarks (3,456), and all three in one row, weighted so that they vary alike. Options, k among them, are "
        f"those chosen for the closed set and for people never seen; of SIFT and of all three those of FV."
    )
    return Table("fused", "Fused descriptors", header, COLUMNS, rows, notes=notes)


def _gain(lab: Lab, entry: FusionEntry, single: FusionEntry) -> str:
    parts = [
        f"{where} {what} "
        f"{describe_difference(difference(lab.results(entry.works[where]), lab.results(single.works[where]), what))}"
        for where in KINDS
        for what in WHAT
    ]
    return "; ".join(parts)

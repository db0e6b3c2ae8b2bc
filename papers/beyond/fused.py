"""Three hand-made descriptors side by side: LBP, Fisher vectors and SIFT at landmarks, in one row of 30,212 numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from papers.beyond.strangers import DIMS, VOCABULARY, WHAT, called, methods
from papers.clml.fits import NAMES, Fits
from papers.clml.rows import Part
from papers.harness.lab import Lab, Method
from papers.harness.plan import Row, Table, Work
from papers.harness.results import difference, figure, told

FUSED, SINGLES = "lbp+fisher+sift", ("lbp", "fisher", "sift")
TITLES = NAMES | {FUSED: "fused", "sift": "SIFT"}
KINDS = {"closed set": "queries", "never seen": "disjoint"}
COLUMNS = tuple(f"{where}: {what}" for where in KINDS for what in WHAT)
BEST = "fisher"
"""The best of the three, whose options serve where none were chosen."""


@dataclass(frozen=True, eq=False)
class Line:
    """method: as it is called; k and other options are each side's own."""

    features: str
    method: Method
    works: Mapping[str, Sequence[Work]]

    @property
    def name(self) -> str:
        return f"{TITLES[self.features]}, {called(self.method, with_k=False)}"

    @property
    def all(self) -> list[Work]:
        return [work for works in self.works.values() for work in works]


def fused(fits: Fits) -> Part | None:
    """None where time is short."""
    if fits.lab.scope.quick:
        return None
    lines = list(_lines(fits))
    return Part([work for line in lines for work in line.all], lambda: _table(fits, lines))


def _lines(fits: Fits) -> Iterator[Line]:
    for features in (*SINGLES, FUSED):
        chosen = features if features in fits.features else BEST
        both = (methods(fits, chosen, kind, DIMS) for kind in KINDS.values())
        for closed, seen in zip(*both, strict=True):
            if closed.name == "ldml" or (closed.name == "clml" and features != "sift"):
                works = [
                    _works(fits, m, features, kind) for m, kind in zip((closed, seen), KINDS.values(), strict=True)
                ]
                yield Line(features, closed, dict(zip(KINDS, works, strict=True)))


def _works(fits: Fits, method: Method, features: str, kind: str) -> list[Work]:
    return [fits.lab.retrieval(method, features, f"{kind}-{i}") for i in fits.lab.scope.few_seeds]


def _table(fits: Fits, lines: list[Line]) -> Table:
    lab = fits.lab
    rows, notes = [], []
    for line in lines:
        found = {where: lab.results(works) for where, works in line.works.items()}
        shown = {f"{where}: {what}": figure(found[where], what) for where in found for what in WHAT}
        options = {where: works[0].key["options"] for where, works in line.works.items()}
        rows.append(Row(line.name, shown, about={"options": options}, works=line.all))
        if line.features == FUSED:
            wanted = (BEST, line.method.name, line.method.dim)
            [best] = [n for n in lines if (n.features, n.method.name, n.method.dim) == wanted]
            notes.append(f"{line.name}, less {TITLES[BEST]} alone: {_gain(lab, line, best)}")
    draws = len(lab.scope.few_seeds)
    header = (
        f"LFW, {draws} draws of `queries-*` (closed set, 423 queries, gallery 12,810) and of `disjoint-*` (people "
        f"never seen; {VOCABULARY}), in percent. LBP (9,860 numbers), Fisher vectors (FV, 16,896) and SIFT at nine "
        f"landmarks (3,456), and all three in one row, weighted so that they vary alike. Options, k among them, are "
        f"those chosen for the closed set and for people never seen; of SIFT and of all three those of FV."
    )
    return Table("fused", "Fused descriptors", header, COLUMNS, rows, notes=notes)


def _gain(lab: Lab, line: Line, single: Line) -> str:
    parts = [
        f"{where} {what} {told(difference(lab.results(line.works[where]), lab.results(single.works[where]), what))}"
        for where in KINDS
        for what in WHAT
    ]
    return "; ".join(parts)

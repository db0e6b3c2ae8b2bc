"""Beyond 003: people from whom nothing was learned (`disjoint-*`), which the paper did not test."""

from collections.abc import Sequence
from dataclasses import replace

from papers.clml.fits import BOTH_SIDES, DIM, ClmlFits, name_features
from papers.clml.table_rows import COLUMNS, TableComputations, describe_gain
from papers.harness.results import difference, figures, percent
from papers.harness.run_context import Method
from papers.harness.table_types import Computation, Row, Table

GAIN = "mAP minus LDML's"
WPCA = Method("wpca", DIM, {"unit": True})


def make_unseen_table(fits: ClmlFits) -> TableComputations:
    shown = [*fits.features, *([] if fits.context.scope.quick else BOTH_SIDES.values())]
    sides = {(f, name): computations for f in shown for name, computations in _methods(fits, f).items()}

    def table() -> Table:
        rows = [_row(fits, f, name, sides) for f, name in sides]
        notes = [
            describe_gain(fits, f"{name_features(f)}, {name} less LDML, {c}", sides[f, name], sides[f, "LDML"], c)
            for f, name in sides
            if name.startswith("CLML")
            for c in COLUMNS
        ]
        draws = " ".join(f"{name_features(f)}: {fits.name_protocols(f, kind='disjoint')}." for f in shown)
        header = (
            f"LFW, d = {DIM}, percent. Half of the people are learned from; one photo of each other person with five "
            f"or more is searched for among all photos of the people not learned from. {draws}"
        )
        notes.append("compare within this table alone: mAP depends on the size of the gallery")
        return Table("never-seen", "People never seen", header, (*COLUMNS, GAIN), rows, notes=notes)

    return TableComputations([w for computations in sides.values() for w in computations], table)


def _methods(fits: ClmlFits, features: str) -> dict[str, Sequence[Computation]]:
    k = fits.options(features, "disjoint").k
    plain = Method("cosine") if features == "mobilefacenet" else WPCA
    return {
        "cosine of 128" if features == "mobilefacenet" else "WPCA-cosine": fits.computations(
            plain, features, "disjoint"
        ),
        "LDML": fits.ldml(features, kind="disjoint"),
        f"CLML, k chosen ({k})": fits.clml(features, kind="disjoint"),
    }


def _row(fits: ClmlFits, features: str, name: str, sides: dict[tuple[str, str], Sequence[Computation]]) -> Row:
    computations = sides[features, name]
    results = fits.context.results(computations)
    row = Row(f"{name_features(features)}, {name}", figures(results, COLUMNS), computations=computations)
    if not name.startswith("CLML"):
        return row
    base = fits.context.results(sides[features, "LDML"])
    gain = difference(results, base, "mAP")
    shown = {**row.figures, GAIN: percent(gain.difference, draws=len(results))}
    return replace(row, figures=shown, differences=(GAIN,), cause=f"p {gain.p:.2g}")

"""003, Figure 2: how many numbers a face is stored in; and LDML with as many parameters as CLML."""

from typing import Any

from papers.clml.fits import DIMS, NAMES, WIDTH, ClmlFits
from papers.clml.table_rows import COLUMNS, TableWorks, describe_gain, make_retrieval_row
from papers.harness.results import figure
from papers.harness.table_types import Plot, Table, Work

PRINTED = {
    ("lbp", "CLML", 128): 61.6, ("fisher", "CLML", 128): 82.2, ("fisher", "CLML", 256): 81.9,
    ("fisher", "LDML", 256): 80.8, ("mobilefacenet", "CLML", 128): 76.95,
}  # fmt: skip
SAME_SIZE = {"lbp": 53.0, "fisher": 80.9}
"""LDML at d = 128 x 16."""
WIDE = 2000


def widths(fits: ClmlFits) -> TableWorks:
    curves = {(f, m): _curve(fits, f, m) for f in fits.features for m in ("LDML", "CLML")}
    wide = {} if fits.lab.scope.quick else {f: _wide(fits, f) for f in SAME_SIZE}

    def table() -> Table:
        rows = [
            make_retrieval_row(fits, f, f"{NAMES[f]}, {m}, d = {d}", works, _printed(f, m, d))
            for (f, m), curve in curves.items()
            for d, works in curve.items()
        ]
        rows += [
            make_retrieval_row(fits, f, f"{NAMES[f]}, LDML, d = {WIDE} (paper: 2048)", works, {"mAP": SAME_SIZE[f]})
            for f, works in wide.items()
        ]
        notes = [
            describe_gain(fits, f"{NAMES[f]}, d = {d}: CLML less LDML, mAP", curves[f, "CLML"][d], works)
            for f in fits.features
            for d, works in curves[f, "LDML"].items()
        ]
        notes.append(
            f"L is sought in {WIDE:,} principal axes, in which d = {WIDE:,} is a full matrix: no wider one says more"
        )
        header = (
            "LFW; percent. d = 32: as in Table 2; the others: "
            + fits.name_protocols("lbp", dim=128)
            + ". k as chosen at d = 32."
        )
        plot = Plot("clml-figure-2", "mAP of LDML and CLML against d, a curve a descriptor", draw)
        return Table("figure-2", "Figure 2: d = 16 to 256", header, COLUMNS, rows, [plot], notes)

    def draw(axes: Any) -> None:
        for (f, m), curve in curves.items():
            values = [figure(fits.lab.results(works), "mAP").value for works in curve.values()]
            style = {"LDML": "--", "CLML": "-"}[m]
            axes.plot(
                list(curve), values, style, marker="o", color=f"C{fits.features.index(f)}", label=f"{NAMES[f]}, {m}"
            )
        axes.set(xlabel="d", ylabel="mAP, percent", xscale="log", xticks=DIMS, xticklabels=DIMS)
        axes.minorticks_off()
        axes.legend()

    works = [w for curve in curves.values() for one in curve.values() for w in one]
    return TableWorks([*works, *(w for one in wide.values() for w in one)], table)


def _curve(fits: ClmlFits, features: str, method: str) -> dict[int, list[Work]]:
    dims = [d for d in ((16, 32) if fits.lab.scope.quick else DIMS) if d <= WIDTH[features]]
    make = fits.ldml if method == "LDML" else fits.clml
    return {d: make(features, dim=d) for d in dims}


def _wide(fits: ClmlFits, features: str) -> list[Work]:
    """Of draw 0 alone: a fit takes minutes."""
    return [fits.lab.retrieval(fits.options(features).of_ldml(WIDE), features, "queries-0")]


def _printed(features: str, method: str, dim: int) -> dict[str, float]:
    value = PRINTED.get((features, method, dim))
    return {} if value is None else {"mAP": value}

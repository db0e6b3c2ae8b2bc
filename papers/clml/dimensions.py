"""003, Figure 2: the number of dimensions, and LDML with as many parameters as CLML."""

from typing import Any

from papers.clml.fits import DESCRIPTOR_NAMES, DESCRIPTOR_WIDTH, DIMS, ClmlFits
from papers.clml.table_rows import COLUMNS, TableComputations, describe_gain, make_retrieval_row
from papers.harness.results import figure
from papers.harness.table_types import Computation, Plot, Table

PAPER_MAP = {
    ("lbp", "CLML", 128): 61.6, ("fisher", "CLML", 128): 82.2, ("fisher", "CLML", 256): 81.9,
    ("fisher", "LDML", 256): 80.8, ("mobilefacenet", "CLML", 128): 76.95,
}  # fmt: skip
PAPER_LARGE_LDML = {"lbp": 53.0, "fisher": 80.9}
"""LDML at d = 128 x 16."""
FULL_MATRIX_DIM = 2000


def make_dimension_table(fits: ClmlFits) -> TableComputations:
    curves = {(f, m): _curve(fits, f, m) for f in fits.features for m in ("LDML", "CLML")}
    wide = {} if fits.context.scope.quick else {f: _wide(fits, f) for f in PAPER_LARGE_LDML}

    def table() -> Table:
        rows = [
            make_retrieval_row(fits, f, f"{DESCRIPTOR_NAMES[f]}, {m}, d = {d}", computations, _printed(f, m, d))
            for (f, m), curve in curves.items()
            for d, computations in curve.items()
        ]
        rows += [
            make_retrieval_row(
                fits,
                f,
                f"{DESCRIPTOR_NAMES[f]}, LDML, d = {FULL_MATRIX_DIM} (paper: 2048)",
                computations,
                {"mAP": PAPER_LARGE_LDML[f]},
            )
            for f, computations in wide.items()
        ]
        notes = [
            describe_gain(
                fits, f"{DESCRIPTOR_NAMES[f]}, d = {d}: CLML less LDML, mAP", curves[f, "CLML"][d], computations
            )
            for f in fits.features
            for d, computations in curves[f, "LDML"].items()
        ]
        notes.append(
            f"L is sought in {FULL_MATRIX_DIM:,} principal axes, in which d = {FULL_MATRIX_DIM:,} is a full matrix: "
            "no wider one says more"
        )
        header = (
            "LFW; percent. d = 32: as in Table 2; the others: "
            + fits.name_protocols("lbp", dim=128)
            + ". k as chosen at d = 32."
        )
        plot = Plot("clml-figure-2", "mAP of LDML and CLML against d, one curve per descriptor", draw)
        return Table("figure-2", "Figure 2: d = 16 to 256", header, COLUMNS, rows, [plot], notes)

    def draw(axes: Any) -> None:
        for (f, m), curve in curves.items():
            values = [figure(fits.context.results(computations), "mAP").value for computations in curve.values()]
            style = {"LDML": "--", "CLML": "-"}[m]
            axes.plot(
                list(curve),
                values,
                style,
                marker="o",
                color=f"C{fits.features.index(f)}",
                label=f"{DESCRIPTOR_NAMES[f]}, {m}",
            )
        axes.set(xlabel="d", ylabel="mAP, percent", xscale="log", xticks=DIMS, xticklabels=DIMS)
        axes.minorticks_off()
        axes.legend()

    computations = [w for curve in curves.values() for one in curve.values() for w in one]
    return TableComputations([*computations, *(w for one in wide.values() for w in one)], table)


def _curve(fits: ClmlFits, features: str, method: str) -> dict[int, list[Computation]]:
    dims = [d for d in ((16, 32) if fits.context.scope.quick else DIMS) if d <= DESCRIPTOR_WIDTH[features]]
    make = fits.ldml if method == "LDML" else fits.clml
    return {d: make(features, dim=d) for d in dims}


def _wide(fits: ClmlFits, features: str) -> list[Computation]:
    """Return the wide fits, for draw 0 only, because a fit takes minutes."""
    return [fits.context.retrieval(fits.options(features).of_ldml(FULL_MATRIX_DIM), features, "queries-0")]


def _printed(features: str, method: str, dim: int) -> dict[str, float]:
    value = PAPER_MAP.get((features, method, dim))
    return {} if value is None else {"mAP": value}

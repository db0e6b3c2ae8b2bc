"""003, Tables 1 and 2: the space of the mixture, and the number of local maps."""

from typing import Any

from papers.clml.fits import DESCRIPTOR_NAMES, LOCAL_MAP_COUNTS, ClmlFits, K
from papers.clml.table_rows import COLUMNS, L2, TableComputations, describe_gain, make_retrieval_row
from papers.harness.table_types import Computation, Table

TABLE_1 = {2: (73.04, 73.09), 4: (74.04, 75.18), 6: (73.58, 75.24), 8: (73.92, 75.59)}
TABLE_2 = {
    "lbp": dict(zip(LOCAL_MAP_COUNTS, (41.51, 44.02, 47.94, 49.00, 49.98, 49.70), strict=True)),
    "fisher": dict(zip(LOCAL_MAP_COUNTS, (73.09, 75.18, 75.59, 76.20, 75.61, 75.58), strict=True)),
    "mobilefacenet": dict(zip(LOCAL_MAP_COUNTS, (59.78, 61.43, 64.64, 66.07, 70.98, 73.83), strict=True)),
}
PAPER_CLML_MAP = {"lbp": 49.89, "fisher": 74.99, "mobilefacenet": 73.83}
LDML = {"lbp": 36.95, "fisher": 68.12, "mobilefacenet": 58.46}


def make_local_map_table(fits: ClmlFits) -> TableComputations:
    """Table 1."""
    features = fits.best
    ks = [2, 8] if fits.context.scope.quick else list(TABLE_1)
    options = fits.options(features)
    gates: list[dict[str, Any]] = [{"gate": "descriptor"}, {}]
    sides = {k: [fits.computations(options.of_clml(k, **gate), features, sweep=True) for gate in gates] for k in ks}

    def table() -> Table:
        rows = []
        for k, computations in sides.items():
            for gate, paper, side in zip(("descriptor", "LDML"), TABLE_1[k], computations, strict=True):
                rows.append(
                    make_retrieval_row(fits, features, f"k = {k}, {gate} space", side, _of(features, "fisher", paper))
                )
        notes = [
            describe_gain(fits, f"k = {k}, LDML space less the descriptor's (mAP)", b, a) for k, (a, b) in sides.items()
        ]
        header = (
            f"LFW, {DESCRIPTOR_NAMES[features]}, {fits.name_protocols(features, sweep=True)}; d = 32; percent. The "
            f"descriptor's space is "
            "that of its 64 leading principal axes."
        )
        return Table("table-1", "Table 1: the space of the mixture", header, COLUMNS, rows, notes=notes)

    return TableComputations([w for computations in sides.values() for side in computations for w in side], table)


def make_size_table(fits: ClmlFits) -> TableComputations:
    """Table 2."""
    named = {f: _named(fits, f) for f in fits.features}

    def table() -> Table:
        rows, notes = [], []
        for features, sides in named.items():
            rows += [
                make_retrieval_row(fits, features, f"{DESCRIPTOR_NAMES[features]}, {n}", w, {"mAP": p})
                for n, (w, p) in sides.items()
            ]
            ldml = sides["LDML"][0]
            for name, computations in (("k = 16", fits.clml(features, K)), ("k chosen", fits.clml(features))):
                notes += [
                    describe_gain(
                        fits, f"{DESCRIPTOR_NAMES[features]}, CLML, {name}, less LDML, {c}", computations, ldml, c
                    )
                    for c in COLUMNS
                ]
        header = "LFW, d = 32; percent. " + " ".join(f"{DESCRIPTOR_NAMES[f]}: {fits.name_protocols(f)}." for f in named)
        return Table("table-2", "Table 2: number of local maps", header, COLUMNS, rows, notes=notes)

    return TableComputations(
        [w for sides in named.values() for computations, _ in sides.values() for w in computations], table
    )


def _named(fits: ClmlFits, features: str) -> dict[str, tuple[list[Computation], float]]:
    """Return the computations of each row, and the paper's mAP."""
    ks = (K,) if fits.context.scope.quick else LOCAL_MAP_COUNTS
    sides = {"L2": (fits.l2(features), L2[features]), "LDML": (fits.ldml(features), LDML[features])}
    sides |= {f"CLML, k = {k}": (fits.clml(features, k), TABLE_2[features][k]) for k in ks}
    k = fits.options(features).k
    return sides | {f"CLML, k chosen ({k})": (fits.clml(features), PAPER_CLML_MAP[features])}


def _of(features: str, papers: str, value: float) -> dict[str, float]:
    """Return the paper's figure if the row is for the paper's descriptor."""
    return {"mAP": value} if features == papers else {}

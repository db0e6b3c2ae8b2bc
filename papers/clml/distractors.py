"""003, Figure 3: growing numbers of distractors in the gallery."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ml.evaluation.report import rank_protocol
from papers.clml.fits import DESCRIPTOR_NAMES, ClmlFits
from papers.clml.table_rows import TableComputations, describe_alterations
from papers.harness.results import ALONE, CROWD, difference, figure
from papers.harness.run_context import RunContext, ranked_arrays
from papers.harness.table_types import Computation, ComputationOutput, Figure, Plot, Result, Row, Table

DISTRACTOR_SHARES = (0.125, 0.25, 0.5)
"""Shares of all distractors. Every fit also ranks without and with all of them."""


def make_distractor_table(fits: ClmlFits) -> TableComputations:
    """Figure 3."""
    sides = {(f, m): make(f)[: fits.context.scope.few_draws] for f in fits.features for m, make in _pair(fits).items()}
    smaller = {
        key: [make_fewer_distractors_computation(fits.context, w) for w in computations]
        for key, computations in sides.items()
    }

    def table() -> Table:
        rows = [_sizes_row(fits.context, f"{DESCRIPTOR_NAMES[f]}, {m}", sides[f, m], smaller[f, m]) for f, m in sides]
        columns = list(rows[0].figures)
        rows += [_gain_row(fits.context, f, sides, smaller, columns) for f in fits.features]
        header = (
            f"LFW, mAP in percent, d = 32, {fits.name_protocols('lbp', sweep=True)}; the columns: how many "
            f"UTKFace faces are in "
            "the gallery beside LFW's (they stand in for the paper's million; each share is drawn once)."
        )
        plot = Plot("clml-figure-3", "mAP against the number of distractors, LDML and CLML", partial(_draw_sizes, rows))
        return Table("figure-3", "Figure 3: distractors", header, columns, rows, [plot])

    return TableComputations([w for key in sides for w in (*sides[key], *smaller[key])], table)


def _pair(fits: ClmlFits) -> dict[str, Any]:
    return {"LDML": fits.ldml, "CLML": fits.clml}


def make_fewer_distractors_computation(context: RunContext, of: Computation) -> Computation:
    """A fit's queries ranked with a share of the distractors behind the gallery: arrays as `context.ranked_arrays`."""

    def run(folder: Any, progress: Any) -> ComputationOutput:
        fitted = context.result(of)
        if "distractors" not in fitted.arrays:
            return {"sizes": []}, {}
        others = np.random.default_rng(0).permutation(fitted.arrays["distractors"])
        sizes = sorted({round(share * len(others)) for share in DISTRACTOR_SHARES})
        split, arrays = context.protocol(str(of.key["protocol"])), dict[str, Any]()
        for size in sizes:
            arrays |= ranked_arrays(
                rank_protocol(fitted.arrays["lfw"], split, distractors=others[:size]), f"crowd{size}"
            )
        return {"sizes": sizes, "all": len(others)}, arrays

    return Computation(f"{of.name}, fewer distractors", {"what": "fewer distractors", "of": of.key}, 6.0, run)


def _sizes_row(
    context: RunContext, name: str, computations: Sequence[Computation], smaller: Sequence[Computation]
) -> Row:
    parts = _by_size(context.results(computations), context.results(smaller))
    figures = {column: figure(results, "mAP", where) for column, (results, where) in parts.items()}
    return Row(name, figures, computations=[*computations, *smaller])


def _by_size(whole: Sequence[Result], smaller: Sequence[Result]) -> dict[str, tuple[Sequence[Result], str]]:
    """Return, for each number of distractors, the results and the name of their arrays."""
    record = smaller[0].record
    parts: dict[str, tuple[Sequence[Result], str]] = {"0": (whole, ALONE)}
    parts |= {f"{size:,}": (smaller, f"crowd{size}") for size in record["sizes"]}
    return parts | ({f"{record['all']:,}": (whole, CROWD)} if record["sizes"] else {})


def _gain_row(context: RunContext, features: str, sides: Any, smaller: Any, columns: Sequence[str]) -> Row:
    """Make a row of CLML minus LDML by number of distractors. The paper claims that it stays positive."""
    one, other = (
        _by_size(context.results(sides[features, m]), context.results(smaller[features, m])) for m in ("CLML", "LDML")
    )
    figures = {}
    for column in columns:
        (a, where), (b, _) = one[column], other[column]
        gap = difference(a, b, "mAP", where).difference
        figures[column] = Figure(100 * gap.value, 100 * gap.low, 100 * gap.high, draws=len(a))
    computation = sides[features, "CLML"][0]
    return Row(
        f"{DESCRIPTOR_NAMES[features]}, CLML less LDML, paired", figures, differences=columns, claim="above",
        altered=describe_alterations("clml", computation.key["options"]),
        computations=[w for m in ("CLML", "LDML") for w in sides[features, m]],
    )  # fmt: skip


def _draw_sizes(rows: Sequence[Row], axes: Any) -> None:
    for i, row in enumerate(r for r in rows if "less" not in r.name):
        sizes = [int(c.replace(",", "")) for c in row.figures]
        style = "--" if "LDML" in row.name else "-"
        axes.plot(sizes, [f.value for f in row.figures.values()], style, marker="o", color=f"C{i // 2}", label=row.name)
    axes.set(xlabel="distractors", ylabel="mAP, percent")
    axes.legend(ncols=3, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1))

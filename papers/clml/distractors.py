"""003, Figure 3: more and more strangers in the gallery."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ml.evaluation.report import rank_protocol
from papers.clml.fits import NAMES, ClmlFits
from papers.clml.table_rows import TableWorks, describe_alterations
from papers.harness.lab_fits import Lab, ranked_arrays
from papers.harness.results import ALONE, CROWD, difference, figure
from papers.harness.table_types import Figure, Plot, Result, Row, Table, Work, WorkOutput

SHARES = (0.125, 0.25, 0.5)
"""Of all distractors; none and all are ranked by every fit."""


def crowds(fits: ClmlFits) -> TableWorks:
    """Figure 3."""
    sides = {(f, m): make(f)[: fits.lab.scope.few_draws] for f in fits.features for m, make in _pair(fits).items()}
    smaller = {key: [make_fewer_distractors_work(fits.lab, w) for w in works] for key, works in sides.items()}

    def table() -> Table:
        rows = [_sizes_row(fits.lab, f"{NAMES[f]}, {m}", sides[f, m], smaller[f, m]) for f, m in sides]
        columns = list(rows[0].figures)
        rows += [_gain_row(fits.lab, f, sides, smaller, columns) for f in fits.features]
        header = (
            f"LFW, mAP in percent, d = 32, {fits.name_protocols('lbp', sweep=True)}; the columns: how many "
            f"UTKFace faces are in "
            "the gallery beside LFW's (they stand in for the paper's million; each share is drawn once)."
        )
        plot = Plot("clml-figure-3", "mAP against the number of distractors, LDML and CLML", partial(_draw_sizes, rows))
        return Table("figure-3", "Figure 3: distractors", header, columns, rows, [plot])

    return TableWorks([w for key in sides for w in (*sides[key], *smaller[key])], table)


def _pair(fits: ClmlFits) -> dict[str, Any]:
    return {"LDML": fits.ldml, "CLML": fits.clml}


def make_fewer_distractors_work(lab: Lab, of: Work) -> Work:
    """A fit's queries ranked with a share of the distractors behind the gallery: arrays as `lab.ranked_arrays`."""

    def run(folder: Any, progress: Any) -> WorkOutput:
        fitted = lab.result(of)
        if "distractors" not in fitted.arrays:
            return {"sizes": []}, {}
        others = np.random.default_rng(0).permutation(fitted.arrays["distractors"])
        sizes = sorted({round(share * len(others)) for share in SHARES})
        split, arrays = lab.protocol(str(of.key["protocol"])), dict[str, Any]()
        for size in sizes:
            arrays |= ranked_arrays(
                rank_protocol(fitted.arrays["lfw"], split, distractors=others[:size]), f"crowd{size}"
            )
        return {"sizes": sizes, "all": len(others)}, arrays

    return Work(f"{of.name}, fewer distractors", {"what": "fewer distractors", "of": of.key}, 6.0, run)


def _sizes_row(lab: Lab, name: str, works: Sequence[Work], smaller: Sequence[Work]) -> Row:
    parts = _by_size(lab.results(works), lab.results(smaller))
    figures = {column: figure(results, "mAP", where) for column, (results, where) in parts.items()}
    return Row(name, figures, works=[*works, *smaller])


def _by_size(whole: Sequence[Result], smaller: Sequence[Result]) -> dict[str, tuple[Sequence[Result], str]]:
    """Each size with the results that tell of it, and under which name."""
    record = smaller[0].record
    parts: dict[str, tuple[Sequence[Result], str]] = {"0": (whole, ALONE)}
    parts |= {f"{size:,}": (smaller, f"crowd{size}") for size in record["sizes"]}
    return parts | ({f"{record['all']:,}": (whole, CROWD)} if record["sizes"] else {})


def _gain_row(lab: Lab, features: str, sides: Any, smaller: Any, columns: Sequence[str]) -> Row:
    """CLML less LDML at every size; the paper claims that it is there and stays."""
    one, other = (
        _by_size(lab.results(sides[features, m]), lab.results(smaller[features, m])) for m in ("CLML", "LDML")
    )
    figures = {}
    for column in columns:
        (a, where), (b, _) = one[column], other[column]
        gap = difference(a, b, "mAP", where).difference
        figures[column] = Figure(100 * gap.value, 100 * gap.low, 100 * gap.high, draws=len(a))
    work = sides[features, "CLML"][0]
    return Row(
        f"{NAMES[features]}, CLML less LDML, paired", figures, differences=columns, claim="above",
        altered=describe_alterations("clml", work.key["options"]),
        works=[w for m in ("CLML", "LDML") for w in sides[features, m]],
    )  # fmt: skip


def _draw_sizes(rows: Sequence[Row], axes: Any) -> None:
    for i, row in enumerate(r for r in rows if "less" not in r.name):
        sizes = [int(c.replace(",", "")) for c in row.figures]
        style = "--" if "LDML" in row.name else "-"
        axes.plot(sizes, [f.value for f in row.figures.values()], style, marker="o", color=f"C{i // 2}", label=row.name)
    axes.set(xlabel="distractors", ylabel="mAP, percent")
    axes.legend(ncols=3, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1))

"""Rows of 003's retrieval tables, and what the figures themselves say of why one is worse."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ml import registry
from papers.clml.fits import NAMES, WIDTH, ClmlFits
from papers.harness.results import describe_difference, difference, figure, figures
from papers.harness.table_types import TOLERANCE, Row, Table, Work
from papers.harness.verdicts import compare_with_paper

COLUMNS = ("mAP", "1@10")
L2 = {"lbp": 13.24, "fisher": 22.88, "mobilefacenet": 63.06}
"""003, Table 2: mAP of the descriptors themselves."""
OTHER_NETWORK = (
    "the paper's network (CASIA, 320 numbers) cannot be had; MobileFaceNet stands in, its figures are its own"
)


@dataclass(frozen=True, eq=False)
class TableWorks:
    """One table or figure of the paper. works: in the order in which one needs another."""

    works: Sequence[Work]
    table: Callable[[], Table]


def make_retrieval_row(
    fits: ClmlFits,
    features: str,
    name: str,
    works: Sequence[Work],
    paper: Mapping[str, float],
    columns: Sequence[str] = COLUMNS,
) -> Row:
    """A row of mAP and calls, alone, with its cause where it is below the paper's figure."""
    shown = figures(fits.lab.results(works), columns)
    about = {"protocol": sorted({str(w.key["protocol"]) for w in works}), "options": works[0].key["options"]}
    if features == "mobilefacenet" and paper:
        return Row(name, shown, paper, "not possible here", OTHER_NETWORK, about, works)
    changed = describe_alterations(str(works[0].key["method"]), works[0].key["options"]) if paper else ""
    row = Row(name, shown, paper, about=about, works=works, altered=changed)
    below = set(compare_with_paper(row).values()) == {-1}
    return replace(row, cause=_why(fits, features, row)) if below else row


def _why(fits: ClmlFits, features: str, row: Row) -> str:
    plain = figure(fits.lab.results(fits.l2(features)), "mAP").value
    if plain < L2[features] - TOLERANCE:
        return f"{NAMES[features]} itself is weaker here before anything is learned (L2 {plain:.1f} for {L2[features]})"
    options = row.works[0].key["options"]
    axes = options.get("axes", 2000)
    held = ", and a regulariser that was chosen on other photos" if options.get("shrink", 1.0) else ""
    return (
        f"{NAMES[features]} itself is as good (L2 {plain:.1f} for {L2[features]}), so it is the learning: maps within "
        f"{axes:,} of {WIDTH[features]:,} axes{held}"
    )


def describe_gain(fits: ClmlFits, name: str, better: Sequence[Work], than: Sequence[Work], column: str = "mAP") -> str:
    """`name: +1.2 [+0.3, +2.1], p 0.01` on the draws that both have."""
    both = min(len(better), len(than))
    one, other = (fits.lab.results(works[:both]) for works in (better, than))
    return f"{name}: {describe_difference(difference(one, other, column))}"


def describe_alterations(method: str, options: Mapping[str, Any]) -> str:
    """How a fit differs from the formulas of 003, by its options and their defaults; empty where it does not."""
    if method not in ("ldml", "clml"):
        return ""
    built = registry.build("embedders", method, **options).options()
    differs = {
        "unit length": built["unit"],
        "loss on the sphere": built["spherical"] > 0,
        "held to its start": built["proximal_weight"] > 0,
        "maps pulled together": built.get("pull", 0.0) > 0,
    }
    return ", ".join(name for name, does in differs.items() if does)


def order_works(works: Sequence[Work]) -> list[Work]:
    """Fits on the same descriptors and people one after the other, for they share their principal axes: first those of
    which there are few, which is what most tables have in common, sweeps last. Then what is made of fits."""
    fits = [w for w in works if "features" in w.key]
    many = Counter(w.group for w in fits)
    fits.sort(key=lambda w: (many[w.group], w.group))
    return [*fits, *(w for w in works if "features" not in w.key)]

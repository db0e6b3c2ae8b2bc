"""Rows of 003's retrieval tables, and why a row is worse, as far as the figures show."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ml import registry
from papers.clml.fits import DESCRIPTOR_NAMES, DESCRIPTOR_WIDTH, ClmlFits
from papers.harness.results import describe_difference, difference, figure, figures
from papers.harness.table_types import TOLERANCE_POINTS, Computation, Row, Table
from papers.harness.verdicts import compare_with_paper

COLUMNS = ("mAP", "1@10")
L2 = {"lbp": 13.24, "fisher": 22.88, "mobilefacenet": 63.06}
"""003, Table 2: mAP of the descriptors without learning."""
OTHER_NETWORK = (
    "the paper's network (CASIA, 320 numbers) is not available; MobileFaceNet stands in, its figures are its own"
)


@dataclass(frozen=True, eq=False)
class TableComputations:
    """A table or figure of the paper. computations: in an order in which each needs only earlier ones"""

    computations: Sequence[Computation]
    table: Callable[[], Table]


def make_retrieval_row(
    fits: ClmlFits,
    features: str,
    name: str,
    computations: Sequence[Computation],
    paper: Mapping[str, float],
    columns: Sequence[str] = COLUMNS,
) -> Row:
    """Make a row of mAP and n-call without distractors, with the cause if it is below the paper's figure."""
    shown = figures(fits.context.results(computations), columns)
    about = {
        "protocol": sorted({str(w.key["protocol"]) for w in computations}),
        "options": computations[0].key["options"],
    }
    if features == "mobilefacenet" and paper:
        return Row(name, shown, paper, "not possible here", OTHER_NETWORK, about, computations)
    changed = describe_alterations(str(computations[0].key["method"]), computations[0].key["options"]) if paper else ""
    row = Row(name, shown, paper, about=about, computations=computations, altered=changed)
    below = set(compare_with_paper(row).values()) == {-1}
    return replace(row, cause=_why(fits, features, row)) if below else row


def _why(fits: ClmlFits, features: str, row: Row) -> str:
    plain = figure(fits.context.results(fits.l2(features)), "mAP").value
    if plain < L2[features] - TOLERANCE_POINTS:
        return (
            f"{DESCRIPTOR_NAMES[features]} itself is weaker here before anything is learned (L2 {plain:.1f} for "
            f"{L2[features]})"
        )
    options = row.computations[0].key["options"]
    axes = options.get("axes", 2000)
    held = ", and a regulariser that was chosen on other photos" if options.get("shrink", 1.0) else ""
    return (
        f"{DESCRIPTOR_NAMES[features]} itself is as good (L2 {plain:.1f} for {L2[features]}), so it is the learning: "
        "maps within "
        f"{axes:,} of {DESCRIPTOR_WIDTH[features]:,} axes{held}"
    )


def describe_gain(
    fits: ClmlFits, name: str, better: Sequence[Computation], than: Sequence[Computation], column: str = "mAP"
) -> str:
    """Describe a difference on the common draws, such as `name: +1.2 [+0.3, +2.1], p 0.01`."""
    both = min(len(better), len(than))
    one, other = (fits.context.results(computations[:both]) for computations in (better, than))
    return f"{name}: {describe_difference(difference(one, other, column))}"


def describe_alterations(method: str, options: Mapping[str, Any]) -> str:
    """Describe how a fit differs from the formulas of 003, from its options; empty if it does not."""
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


def order_computations(computations: Sequence[Computation]) -> list[Computation]:
    """Order the fits by descriptors and people, because such fits share their principal axes.

    Small groups come first, since most tables need them; then sweeps; then computations that use fits.
    """
    fits = [w for w in computations if "features" in w.key]
    many = Counter(w.group for w in fits)
    fits.sort(key=lambda w: (many[w.group], w.group))
    return [*fits, *(w for w in computations if "features" not in w.key)]

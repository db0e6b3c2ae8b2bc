"""People never seen: evaluate on people from whom nothing was learned, which the papers did not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ml.embedders.base import TrainingSet
from ml.evaluation.protocols import Protocol
from papers.beyond import celeba
from papers.clml.fits import DESCRIPTOR_NAMES, ClmlFits
from papers.clml.table_rows import TableComputations
from papers.harness.photos import MODEL
from papers.harness.results import CROWD, describe_difference, difference, figure, figures
from papers.harness.run_context import Method, RunContext
from papers.harness.table_types import Computation, Row, Table

FIGURE_NAMES = ("mAP", "1@10")
ALL_DISTRACTORS_COLUMN = "mAP, all distractors"
COLUMNS = ("mAP", "1@1", "1@10", ALL_DISTRACTORS_COLUMN)
DIMS = (32, 128)
WITH_CELEBA = {"also": celeba.ABOUT}
VOCABULARY_NOTE = "the vocabulary of FV was learned without labels, from photos that may be of them"


@dataclass(frozen=True, eq=False)
class UnseenEntry:
    """A row and its computations. more: whether it is fitted on CelebA10k as well"""

    features: str
    method: Method
    computations: Sequence[Computation]
    more: bool = False

    @property
    def name(self) -> str:
        return f"{DESCRIPTOR_NAMES[self.features]}, {name_method(self.method)}{', and CelebA10k' if self.more else ''}"


def name_method(method: Method, with_k: bool = True) -> str:
    """Return the name of a method in tables."""
    k = f", k = {method.options['k']}" if with_k and "k" in method.options else ""
    names = {"l2": "L2", "cosine": "cosine", "wpca": "WPCA-cosine", "ldml": "LDML", "clml": "CLML"}
    return names[method.name] + k + (f", d = {method.dim}" if method.dim else "")


def methods(fits: ClmlFits, features: str, kind: str, dims: Sequence[int]) -> Iterator[Method]:
    """Iterate over the descriptor's own distance, and the methods learned without and with labels, at each d."""
    yield Method("cosine" if features == MODEL else "l2")
    options = fits.options(features, kind)
    for dim in dims:
        yield from (Method("wpca", dim, {"unit": True}), options.of_ldml(dim), options.of_clml(dim=dim))


def dims(fits: ClmlFits, features: str) -> Sequence[int]:
    """Return the values of d below the width of the descriptor; only the first in a quick run."""
    return DIMS[:1] if fits.context.scope.quick or features == MODEL else DIMS


def draws(fits: ClmlFits, kind: str, others: str = "all others") -> str:
    """Describe which rows use which protocol files."""
    many, swept = fits.name_protocols("lbp", kind=kind), fits.name_protocols("lbp", sweep=True, kind=kind)
    return f"All rows: {many}" if many == swept else f"LBP's L2, and LBP at d = 32: {many}; {others}: {swept}"


def make_unseen_table(fits: ClmlFits) -> TableComputations:
    entries = list(_lines(fits))
    return TableComputations(
        [computation for entry in entries for computation in entry.computations], lambda: _table(fits, entries)
    )


def _lines(fits: ClmlFits) -> Iterator[UnseenEntry]:
    for features in fits.features:
        for method in methods(fits, features, "disjoint", dims(fits, features)):
            yield UnseenEntry(features, method, fits.computations(method, features, "disjoint"))
    if celeba.is_available(fits.context) and not fits.context.scope.quick:
        for dim in DIMS:
            method = fits.options("lbp", "disjoint").of_ldml(dim)
            yield UnseenEntry(
                "lbp", method, [_with_celeba(fits.context, method, i) for i in fits.context.scope.few_seeds], more=True
            )


def _with_celeba(context: RunContext, method: Method, draw: int) -> Computation:
    def train(split: Protocol) -> TrainingSet:
        return celeba.together(context.identities("lbp", split), celeba.people(context, "lbp"))

    return context.retrieval(method, "lbp", f"disjoint-{draw}", train=train, about=WITH_CELEBA)


def _table(fits: ClmlFits, entries: list[UnseenEntry]) -> Table:
    rows = [_row(fits.context, entry) for entry in entries]
    vocabulary = f"; {VOCABULARY_NOTE}" if "fisher" in fits.features else ""
    others = "all others" + (", and what was fitted on CelebA10k as well" if any(n.more for n in entries) else "")
    header = (
        f"LFW, in percent. Half of the people are learned from; one photo of each other person with five or more is "
        f"searched for (about 210) among all photos of the people not learned from (about 6,500){vocabulary}. "
        f"{draws(fits, 'disjoint', others)}. No paper tested this; what was asked of LBP at d = 32 is judged on the "
        f"page of CLML."
    )
    return Table("never-seen", "People never seen", header, COLUMNS, rows, notes=list(_paired(fits.context, entries)))


def _row(context: RunContext, entry: UnseenEntry) -> Row:
    results = context.results(entry.computations)
    shown = figures(results, COLUMNS[:3])
    if context.photos.has("distractors"):
        shown[ALL_DISTRACTORS_COLUMN] = figure(results, "mAP", CROWD)
    about = {"protocol": [w.key["protocol"] for w in entry.computations], "options": dict(entry.method.options)}
    return Row(entry.name, shown, about=about | (WITH_CELEBA if entry.more else {}), computations=entry.computations)


def _paired(context: RunContext, entries: list[UnseenEntry]) -> Iterator[str]:
    """Describe CLML minus LDML, and the gain from CelebA10k, on the same queries."""
    by = {(n.features, n.method.name, n.method.dim, n.more): n for n in entries}
    for (features, name, dim, more), entry in by.items():
        if name == "clml":
            yield f"{entry.name}, less LDML: {_both(context, entry, by[features, 'ldml', dim, False])}"
        if more:
            yield f"{entry.name}, less the same without: {_both(context, entry, by[features, name, dim, False])}"


def _both(context: RunContext, a: UnseenEntry, b: UnseenEntry) -> str:
    shared = min(len(a.computations), len(b.computations))
    first, second = (context.results(entry.computations[:shared]) for entry in (a, b))
    return "; ".join(f"{column} {describe_difference(difference(first, second, column))}" for column in FIGURE_NAMES)

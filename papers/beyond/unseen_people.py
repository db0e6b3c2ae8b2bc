"""People never seen: what the papers never tested, that nobody who is searched for was learned from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ml.embedders.base import TrainingSet
from ml.evaluation.protocols import Protocol
from papers.beyond import celeba
from papers.clml.fits import NAMES, ClmlFits
from papers.clml.table_rows import TableWorks
from papers.harness.lab_fits import Lab, Method
from papers.harness.photos import MODEL
from papers.harness.results import CROWD, describe_difference, difference, figure, figures
from papers.harness.table_types import Row, Table, Work

WHAT = ("mAP", "1@10")
ALL = "mAP, all distractors"
COLUMNS = ("mAP", "1@1", "1@10", ALL)
DIMS = (32, 128)
MORE = {"also": celeba.ABOUT}
VOCABULARY = "the vocabulary of FV was learned without labels, from photos that may be of them"


@dataclass(frozen=True, eq=False)
class UnseenEntry:
    """A row before its figures are known. more: fitted on CelebA10k as well."""

    features: str
    method: Method
    works: Sequence[Work]
    more: bool = False

    @property
    def name(self) -> str:
        return f"{NAMES[self.features]}, {name_method(self.method)}{', and CelebA10k' if self.more else ''}"


def name_method(method: Method, with_k: bool = True) -> str:
    """As tables name it."""
    k = f", k = {method.options['k']}" if with_k and "k" in method.options else ""
    names = {"l2": "L2", "cosine": "cosine", "wpca": "WPCA-cosine", "ldml": "LDML", "clml": "CLML"}
    return names[method.name] + k + (f", d = {method.dim}" if method.dim else "")


def methods(fits: ClmlFits, features: str, kind: str, dims: Sequence[int]) -> Iterator[Method]:
    """The descriptor's own distance, and what is learned without labels and with them, at each d."""
    yield Method("cosine" if features == MODEL else "l2")
    options = fits.options(features, kind)
    for dim in dims:
        yield from (Method("wpca", dim, {"unit": True}), options.of_ldml(dim), options.of_clml(dim=dim))


def dims(fits: ClmlFits, features: str) -> Sequence[int]:
    """Those below the width of the descriptor; in a quick look the first."""
    return DIMS[:1] if fits.lab.scope.quick or features == MODEL else DIMS


def draws(fits: ClmlFits, kind: str, others: str = "all others") -> str:
    """Which rows are of which protocol files."""
    many, swept = fits.name_protocols("lbp", kind=kind), fits.name_protocols("lbp", sweep=True, kind=kind)
    return f"All rows: {many}" if many == swept else f"LBP's L2, and LBP at d = 32: {many}; {others}: {swept}"


def strangers(fits: ClmlFits) -> TableWorks:
    entries = list(_lines(fits))
    return TableWorks([work for entry in entries for work in entry.works], lambda: _table(fits, entries))


def _lines(fits: ClmlFits) -> Iterator[UnseenEntry]:
    for features in fits.features:
        for method in methods(fits, features, "disjoint", dims(fits, features)):
            yield UnseenEntry(features, method, fits.works(method, features, "disjoint"))
    if celeba.there(fits.lab) and not fits.lab.scope.quick:
        for dim in DIMS:
            method = fits.options("lbp", "disjoint").of_ldml(dim)
            yield UnseenEntry(
                "lbp", method, [_with_celeba(fits.lab, method, i) for i in fits.lab.scope.few_seeds], more=True
            )


def _with_celeba(lab: Lab, method: Method, draw: int) -> Work:
    def train(split: Protocol) -> TrainingSet:
        return celeba.together(lab.identities("lbp", split), celeba.people(lab, "lbp"))

    return lab.retrieval(method, "lbp", f"disjoint-{draw}", train=train, about=MORE)


def _table(fits: ClmlFits, entries: list[UnseenEntry]) -> Table:
    rows = [_row(fits.lab, entry) for entry in entries]
    vocabulary = f"; {VOCABULARY}" if "fisher" in fits.features else ""
    others = "all others" + (", and what was fitted on CelebA10k as well" if any(n.more for n in entries) else "")
    header = (
        f"LFW, in percent. Half of the people are learned from; one photo of each other person with five or more is "
        f"searched for (about 210) among all photos of the people not learned from (about 6,500){vocabulary}. "
        f"{draws(fits, 'disjoint', others)}. No paper tested this; what was asked of LBP at d = 32 is judged on the "
        f"page of CLML."
    )
    return Table("never-seen", "People never seen", header, COLUMNS, rows, notes=list(_paired(fits.lab, entries)))


def _row(lab: Lab, entry: UnseenEntry) -> Row:
    results = lab.results(entry.works)
    shown = figures(results, COLUMNS[:3])
    if lab.photos.has("distractors"):
        shown[ALL] = figure(results, "mAP", CROWD)
    about = {"protocol": [w.key["protocol"] for w in entry.works], "options": dict(entry.method.options)}
    return Row(entry.name, shown, about=about | (MORE if entry.more else {}), works=entry.works)


def _paired(lab: Lab, entries: list[UnseenEntry]) -> Iterator[str]:
    """CLML less LDML, and what CelebA10k brought, on the same queries."""
    by = {(n.features, n.method.name, n.method.dim, n.more): n for n in entries}
    for (features, name, dim, more), entry in by.items():
        if name == "clml":
            yield f"{entry.name}, less LDML: {_both(lab, entry, by[features, 'ldml', dim, False])}"
        if more:
            yield f"{entry.name}, less the same without: {_both(lab, entry, by[features, name, dim, False])}"


def _both(lab: Lab, a: UnseenEntry, b: UnseenEntry) -> str:
    shared = min(len(a.works), len(b.works))
    first, second = (lab.results(entry.works[:shared]) for entry in (a, b))
    return "; ".join(f"{column} {describe_difference(difference(first, second, column))}" for column in WHAT)

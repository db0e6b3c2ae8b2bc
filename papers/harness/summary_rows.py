"""The figures of the summary page, and where in the JSON of the chapters each is found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LFW, PAIRS = "fitted on LFW: mAP", "accuracy"
KNOWN, NEVER = "people learned from", "people never seen"
PROTOCOL_TITLES = {KNOWN: "closed set", NEVER: "never seen"}


@dataclass(frozen=True)
class FigureRef:
    """A reference to a figure: chapter (the name of its JSON), table, row and column."""

    chapter: str
    table: str
    row: str
    column: str = "mAP"


@dataclass(frozen=True)
class SummaryRow:
    """A row of the page.

    unlearned: a baseline with as many numbers; None if none was measured; baseline: its name, or why there is none
    note: beginning of the chapter's note with the paired difference; part: text before it in a note with several
    """

    name: str
    learned: FigureRef
    unlearned: FigureRef | None
    baseline: str
    note: str = ""
    part: str = ""

    @property
    def refs(self) -> list[FigureRef]:
        return [self.learned] + ([self.unlearned] if self.unlearned else [])


@dataclass(frozen=True)
class SummarySection:
    """A section of the page. whole: unlearned descriptors of full size by name, listed below the table"""

    title: str
    rows: Sequence[SummaryRow]
    whole: Mapping[str, FigureRef] = field(default_factory=dict)


def _cnn(row: str, column: str) -> FigureRef:
    return FigureRef("beyond", "cnn", row, column)


def _smaller(dim: int) -> list[SummaryRow]:
    learned = f"learned, {dim}, as chosen"
    return [
        SummaryRow(
            f"{dim} numbers, {who}", _cnn(learned, f"{kind}: mAP"), _cnn(f"PCA, {dim}", f"{kind}: mAP"), f"PCA-{dim}",
            f"{learned}, less PCA-{dim}: {kind}, mAP",
        )
        for who, kind in PROTOCOL_TITLES.items()
    ]  # fmt: skip


def _whole() -> list[SummaryRow]:
    """Return the rows that compare 64 learned numbers with all 128 of the network, paired."""
    return [
        SummaryRow(
            f"64 numbers against its own 128, {who}", _cnn("learned, 64, as chosen", f"{kind}: mAP"),
            _cnn("cosine, 128 numbers", f"{kind}: mAP"), "cosine of all 128",
            f"learned, 64, as chosen, less cosine at 128: {kind}, mAP",
        )
        for who, kind in PROTOCOL_TITLES.items()
    ]  # fmt: skip


def _known(descriptor: str, method: str, dim: int, cell: FigureRef) -> SummaryRow:
    base = FigureRef("beyond", "across", f"{descriptor}, WPCA-cosine, d = {dim}", LFW)
    return SummaryRow(f"{descriptor}, {method}, {dim} numbers, {KNOWN}", cell, base, f"WPCA-{dim}")


def _unseen(descriptor: str, method: str, dim: int) -> SummaryRow:
    cells = [FigureRef("beyond", "never-seen", f"{descriptor}, {one}, d = {dim}") for one in (method, "WPCA-cosine")]
    return SummaryRow(
        f"{descriptor}, {method.split(',')[0]}, {dim} numbers, {NEVER}", cells[0], cells[1], f"WPCA-{dim}"
    )


def _two_sides(descriptor: str) -> SummaryRow:
    cells = [FigureRef("clml", "never-seen", f"{descriptor}, both sides, {one}") for one in ("LDML", "WPCA-cosine")]
    return SummaryRow(f"{descriptor} of both sides, LDML, 32 numbers, {NEVER}", cells[0], cells[1], "WPCA-32")


def _pairs(size: str, way: str) -> SummaryRow:
    """Return a row for labelled pairs.

    From 1,000 or fewer pairs of any two faces nothing can be learned, so there they are the unlearned baseline.
    """
    base = FigureRef("beyond", "labels", "no labels: WPCA-cosine of the first 2,000 faces, d = 128")
    nothing_learned = way == "suggested" and size in ("200", "1,000")
    note, part = ("Suggested less any two faces, mAP, paired:", size) if nothing_learned else ("", "")
    learned = FigureRef("beyond", "labels", f"{size} pairs, {way}")
    return SummaryRow(f"{size} pairs, {way}", learned, base, "WPCA-128, no labels", note, part)


def _coupled(name: str, row: str, numbers: int) -> SummaryRow:
    base = FigureRef("cp-mtml", "table-4-lbp", "WPCA", f"d={numbers}")
    return SummaryRow(name, FigureRef("cp-mtml", "tables-2-6", row, "1@10"), base, f"WPCA-{numbers}")


def _head(dim: int, head: str) -> SummaryRow:
    cells = [
        FigureRef("manifolds", "manifolds-frozen", f"{dim}: {one}", "R@1")
        for one in (head, "its principal axes, where heads start")
    ]
    return SummaryRow(f"MobileFaceNet to {dim} numbers, {head}, R@1", cells[0], cells[1], f"PCA-{dim}, where it starts")


def _digits(head: str) -> SummaryRow:
    cells = [FigureRef("manifolds", "manifolds-table-2", one, "error") for one in (head, "PCA-20")]
    return SummaryRow(f"digits, {head}, 20 numbers, *error*: less is better", cells[0], cells[1], "PCA-20")


def _cosim(row: str) -> SummaryRow:
    base = FigureRef("cosim", "table-4", "LBP, cosine", "LFW")
    name = row if "printed" in row else f"{row}, altered"
    return SummaryRow(
        name, FigureRef("cosim", "table-5", row, "accuracy"), base, "LBP alone, WPCA-300; both descriptors not measured"
    )


WHOLE = {
    f"{descriptor} by L2, {numbers} numbers, {who}": FigureRef("beyond", table, f"{descriptor}, L2", column)
    for descriptor, numbers in (("LBP", "9,860"), ("FV", "16,896"))
    for who, table, column in ((KNOWN, "across", LFW), (NEVER, "never-seen", "mAP"))
}
WHOLE_CNN = {
    f"{row}, {who}": _cnn(row, f"{kind}: mAP")
    for row in ("cosine, 128 numbers", "cosine, 128 numbers of 4 bits")
    for who, kind in PROTOCOL_TITLES.items()
}
SECTIONS = (
    SummarySection(
        "A good CNN (MobileFaceNet, 128 numbers): mAP on LFW", [*_smaller(64), *_smaller(32), *_whole()], WHOLE_CNN,
    ),
    SummarySection(
        "Handmade descriptors: mAP on LFW (LDML and CLML altered; held back: with the options for people never seen)",
        [
            _known("LBP", "LDML", 32, FigureRef("clml", "table-2", "LBP, LDML")),
            _known("LBP", "CLML", 32, FigureRef("clml", "table-2", "LBP, CLML, k chosen (16)")),
            _known("LBP", "LDML held back", 32, FigureRef("beyond", "across", "LBP, LDML, d = 32", LFW)),
            _known("LBP", "CLML held back", 32, FigureRef("beyond", "across", "LBP, CLML, k = 16, d = 32", LFW)),
            _known("FV", "LDML", 32, FigureRef("clml", "table-2", "FV, LDML")),
            _known("FV", "CLML", 32, FigureRef("clml", "table-2", "FV, CLML, k chosen (16)")),
            _known("LBP", "CLML", 128, FigureRef("clml", "figure-2", "LBP, CLML, d = 128")),
            _known("FV", "CLML", 128, FigureRef("clml", "figure-2", "FV, CLML, d = 128")),
            *(_unseen("LBP", method, dim) for dim in (32, 128) for method in ("LDML", "CLML, k = 16")),
            *(_unseen("FV", method, dim) for dim in (32, 128) for method in ("LDML", "CLML, k = 4")),
            _two_sides("LBP"), _two_sides("FV"),
        ],
        WHOLE,
    ),
    SummarySection(
        "Same person or not: accuracy on LFW's pairs",
        [
            SummaryRow(
                "MobileFaceNet, LDML, 128 numbers",
                FigureRef("clml", "table-3", "CNN (MobileFaceNet), LDML, d = 128", PAIRS),
                FigureRef("clml", "table-3", "CNN (MobileFaceNet), L2", PAIRS), "L2 of its 128",
            ),
            SummaryRow(
                "FV, LDML, 128 numbers", FigureRef("clml", "table-3", "FV, LDML, d = 128", "accuracy"),
                FigureRef("clml", "table-3", "FV, L2", "accuracy"), "L2 of all 16,896; none at 128 was measured",
            ),
            *(_cosim(row) for row in ("CoSiM-m, as printed", "CoSiM-a, as printed", "CoSiM-m", "CoSiM-a")),
        ],
    ),
    SummarySection(
        "A second task beside identity, LBP: 1-call@10",
        [
            _coupled("stML, 64 numbers", "stML, 64 numbers per face", 64),
            _coupled("stML, 128 numbers", "stML, 128 numbers per face", 128),
            _coupled("CP-mtML as printed (expression), 128 numbers", "CP-mtML (expression), 128 numbers per face", 128),
            _coupled("CP-mtML as printed (age), 128 numbers", "CP-mtML (age), 128 numbers per face", 128),
            _coupled(
                "CP-mtML, altered: L0 from the next components (age), 128 numbers",
                "CP-mtML, L0 from the next components (age), 128 numbers per face", 128,
            ),
        ],
    ),
    SummarySection(
        "Layers on a manifold",
        [
            *(_digits(head) for head in ("Conv", "qConv", "qConv, inverse metric", "Stiefel")),
            *(_head(dim, head) for dim in (32, 128) for head in ("Conv", "qConv", "Stiefel")),
            SummaryRow(
                "five layers, LFW, Stiefel, accuracy",
                FigureRef("manifolds", "manifolds-stl10", "LFW, people with 20 photos or more: Stiefel", PAIRS),
                None, "",
            ),
        ],
    ),
    SummarySection(
        "Labelled pairs, LBP and LDML, 128 numbers, people without labels: mAP",
        [_pairs(size, way) for size in ("200", "1,000", "5,000", "50,000") for way in ("suggested", "half the same")],
    ),
)  # fmt: skip

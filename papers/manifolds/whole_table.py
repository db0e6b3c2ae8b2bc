"""001, Tables 3 to 5 end to end, and the paper's own figures, whose photos are not here."""

from collections.abc import Sequence

from papers.harness.lab import Lab
from papers.harness.plan import Row, Table, Work
from papers.manifolds import whole
from papers.manifolds.compared import Trial
from papers.manifolds.faces_table import COLUMNS, Frozen, choices, row, told, trial
from papers.manifolds.heads import HEADS
from papers.manifolds.part import SAME, Part, flat

HEADS_HERE = ("plain", "qconv", "qconv-inverse", "stiefel")
WHOLE = (
    "A light net of 0.4 million weights, taught {first} steps of {batch} photos by pairs; the paper has Inception "
    "and a classification loss; then {steps} steps with a head 128 -> {dim} behind it, the net by RMSProp at {fine:g}, "
    "rates as chosen on MobileFaceNet. Short, for want of a GPU: only the differences say something."
)
QUOTED: dict[str, tuple[tuple[str, ...], dict[str, tuple[float, ...]]]] = {
    "CUB-200-2011": (
        ("NMI", "R@1", "R@2", "R@4", "R@8"),
        {
            "Trip-SH": (55.4, 42.6, 54.9, 66.4, 77.2),
            "qConv": (62.5, 52.2, 64.0, 75.7, 83.3),
            "Stiefel": (62.3, 52.3, 64.5, 75.3, 84.0),
        },
    ),
    "CARS196": (
        ("NMI", "R@1", "R@2", "R@4", "R@8"),
        {
            "Trip-SH": (53.4, 51.5, 63.8, 73.5, 82.4),
            "qConv": (63.5, 71.9, 81.5, 87.9, 92.5),
            "Stiefel": (64.2, 73.2, 82.2, 88.6, 92.2),
        },
    ),
    "SOP": (
        ("NMI", "R@1", "R@10"),
        {"Trip-SH": (89.5, 66.7, 82.4), "qConv": (89.3, 68.5, 82.9), "Stiefel": (89.9, 69.2, 83.1)},
    ),
}
NO_PHOTOS = "its photos and an Inception network are not to be had here; people stand in, in the next tables"


class Whole(Part):
    """A small net and its head, taught together.

    first: steps by pairs; steps: with a head
    """

    first, steps = 500, 120

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self.seeds = range(min(2, len(lab.scope.few_seeds)))

    @property
    def choices(self) -> dict[str, Work]:
        return {h: w for h, w in choices(self.lab, Frozen.steps, Frozen.least).items() if h in HEADS_HERE}

    def chosen_works(self) -> list[Work]:
        return [self._begun, *(flat(self._learned) if self.lab.store.has(self._begun) else [])]

    def tables(self) -> Sequence[Table]:
        header = told(self.lab, Frozen.least) + WHOLE.format(
            first=self.first, batch=whole.BATCH, steps=self.steps, dim=whole.DIM, fine=whole.FINE
        )
        works = self._learned
        rows = [row("where it begins, 128 numbers", self.lab, [self._begun])]
        rows += [row(HEADS[head].title, self.lab, works[head], works["plain"]) for head in works]
        title = "Tables 3 to 5, with people: end to end"
        return [Table("manifolds-whole", title, header, COLUMNS, rows, notes=[f"{self.told()}.", SAME])]

    def trials(self) -> Sequence[Trial]:
        return [trial("end to end, R@1", self.lab, self._learned)]

    @property
    def _begun(self) -> Work:
        return whole.begun(self.lab, self.first, Frozen.least)

    @property
    def _learned(self) -> dict[str, list[Work]]:
        plans = {h: [whole.plan(h, rate, self.steps, s) for s in self.seeds] for h, rate in self.known.items()}
        first = self._begun
        return {
            h: [whole.end_to_end(self.lab, first, plan, Frozen.least) for plan in each] for h, each in plans.items()
        }


def quoted() -> Table:
    """What the paper prints, of which nothing can be computed here."""
    rows = [
        Row(f"{data}: {name}", {}, dict(zip(columns, figures, strict=True)), "not possible here", NO_PHOTOS)
        for data, (columns, each) in QUOTED.items()
        for name, figures in each.items()
    ]
    notes = ["Trip-SH has a plain layer. Its R@100 on SOP is printed below its R@10, which cannot be, and is left out."]
    columns = ("NMI", "R@1", "R@2", "R@4", "R@8", "R@10")
    return Table("manifolds-quoted", "Tables 3 to 5: as printed", "In percent.", columns, rows, notes=notes)

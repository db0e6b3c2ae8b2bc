"""001, Tables 3 to 5 with people in place of birds, cars and products: a head on a CNN that stays as it is."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ml.evaluation.intervals import over_draws
from papers.harness.lab import Lab
from papers.harness.plan import Figure, Result, Row, Table, Work
from papers.harness.results import percent
from papers.manifolds import compared, faces
from papers.manifolds.compared import Judged, Trial, within
from papers.manifolds.heads import HEADS
from papers.manifolds.part import SAME, Part, flat
from papers.manifolds.people import ALIKE, sides

AT = (1, 2, 4, 8)
COLUMNS = ("NMI", *(f"R@{k}" for k in AT), "R@1 over Conv's", "NMI over Conv's", "axes")
HEADS_HERE = ("rmsprop", "plain", "qconv", "qconv-inverse", "stiefel")
SERVED = ("qconv", "stiefel")
DIMS = (32, 128)
HEADER = (
    "CelebA10k teaches, {taught:,} photos of {people:,} people ({alike:,} more were left out, whom MobileFaceNet finds "
    "as near as cosine {near} to somebody in LFW); LFW is tested, {asked:,} photos of {whose:,} people with {least} "
    "or more, each a query among all others. NMI of k-means with as many heaps as people: with few photos each, chance "
    "alone stands high. In percent, ± over seeds, [95 %, bootstrap over people; NMI: Student over seeds]; over Conv's: "
    "paired; axes: as in Table 2. "
)
FROZEN = "A head on MobileFaceNet's 128 numbers, which stay: tau = 0.5, batches of 32 people x 2, {steps} steps, {how}."


class Frozen(Part):
    """Heads on MobileFaceNet.

    steps; least: photos that somebody in LFW must have; options: of the service's own training
    """

    steps, least = 3000, 2
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self.seeds = lab.scope.few_seeds

    @property
    def choices(self) -> dict[str, Work]:
        return choices(self.lab, self.steps, self.least)

    def chosen_works(self) -> list[Work]:
        learned = [work for dim in DIMS for work in flat(self._learned(dim))]
        return [*learned, *flat(self._served), self._itself, *(self._start(dim) for dim in DIMS)]

    def tables(self) -> Sequence[Table]:
        header = told(self.lab, self.least) + FROZEN.format(steps=self.steps, how=self.how)
        rows = [row("the feature itself", self.lab, [self._itself])]
        for dim in DIMS:
            works = self._learned(dim)
            rows.append(row(f"{dim}: its principal axes, where heads start", self.lab, [self._start(dim)]))
            rows += [row(f"{dim}: {HEADS[h].title}", self.lab, works[h], works["plain"]) for h in works]
        rows += [row(name, self.lab, works) for name, works in self._served.items()]
        title = "Tables 3 to 5, with people: heads on a CNN that stays"
        return [Table("manifolds-frozen", title, header, COLUMNS, rows, notes=[f"{self.told()}.", SAME])]

    def trials(self) -> Sequence[Trial]:
        return [trial(f"MobileFaceNet to {dim}, R@1", self.lab, self._learned(dim)) for dim in DIMS]

    def _learned(self, dim: int) -> dict[str, list[Work]]:
        plans = {h: [faces.plan(h, rate, self.steps, s) for s in self.seeds] for h, rate in self.known.items()}
        return {h: [faces.learned(self.lab, dim, plan, self.least) for plan in each] for h, each in plans.items()}

    @property
    def _served(self) -> dict[str, list[Work]]:
        return {
            f"{dim}: {method} as the service trains it": [
                faces.served(self.lab, method, self.options, dim, self.least, seed) for seed in self.seeds
            ]
            for dim in DIMS
            for method in SERVED
        }

    @property
    def _itself(self) -> Work:
        return faces.untaught(self.lab, 0, self.least)

    def _start(self, dim: int) -> Work:
        return faces.untaught(self.lab, dim, self.least)


def choices(lab: Lab, steps: int, least: int) -> dict[str, Work]:
    return {head: faces.choice(lab, head, DIMS[0], steps, least) for head in HEADS_HERE}


def told(lab: Lab, least: int) -> str:
    """Who teaches and who is tested."""
    both = sides(lab.photos, least)
    return HEADER.format(
        taught=len(both.taught), people=int(both.people.max()) + 1, alike=both.alike, near=ALIKE,
        asked=len(both.asked), whose=int(both.whose.max()) + 1, least=least,
    )  # fmt: skip


def row(name: str, lab: Lab, works: Sequence[Work], conv: Sequence[Work] | None = None) -> Row:
    results = lab.results(works)
    figures = {"NMI": _over_seeds([r.facts["nmi"] for r in results])}
    figures |= {f"R@{k}": Judged.of(results, within(k), "whose").figure for k in AT}
    if "axes" in results[0].facts:
        figures["axes"] = compared.mean_axes(results)
    if conv is not None and list(conv) != list(works):
        others = lab.results(conv)
        gain = Judged.of(results, within(1), "whose").over(Judged.of(others, within(1), "whose"))
        figures["R@1 over Conv's"] = percent(gain.difference, draws=len(results))
        both = zip(results, others, strict=True)
        figures["NMI over Conv's"] = _over_seeds([a.facts["nmi"] - b.facts["nmi"] for a, b in both])
    return Row(name, figures, about=_about(results), works=works)


def trial(title: str, lab: Lab, works: Mapping[str, Sequence[Work]]) -> Trial:
    found = {head: lab.results(each) for head, each in works.items()}
    judged = compared.of_heads(found, within(1), "whose")
    apart = compared.apart(found, "qconv") if "matrix" in found["qconv"][0].arrays else float("nan")
    return Trial(title, judged, compared.likeness(found), works, apart=apart)


def _over_seeds(values: Sequence[float]) -> Figure:
    found = np.array(values)
    sd = float(np.std(found, ddof=1)) if len(found) > 1 else float("nan")
    one = percent(over_draws(found), sd, len(found))
    return one if len(found) > 1 else Figure(one.value)


def _about(results: Sequence[Result]) -> dict[str, Any]:
    keys = [r.facts["key"] for r in results]
    return {"data": "identities-celeba10k, lfw-deepfunneled", "seeds": len(keys), "what": keys[0]["what"]}

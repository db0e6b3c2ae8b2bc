"""000, CoSiM: the tables and figures of "Collaborative similarity metric learning for face recognition in the wild"."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from papers.cosim.accuracy import FVF, JSML, LATE, Accuracies
from papers.cosim.cast import JOINT, LONG, QUICK_STEPS, SINGLE, STEPS, SUB, Cast
from papers.cosim.fvf import fvf, products
from papers.cosim.learning import figure_4, figure_5
from papers.cosim.read import Heard, Reader
from papers.cosim.sizes import Beside, figure_10
from papers.cosim.spread import spreads, table_6
from papers.cosim.systems import View2
from papers.cosim.words import header, notes
from papers.harness.lab import FOLDS, Lab, Method
from papers.harness.photos import MOBILEFACENET
from papers.harness.plan import Chapter, Table, Work
from papers.harness.results import accuracy

QUICK_FOLDS = 2


def chapter(lab: Lab, cast: Cast | None = None) -> Chapter:
    """cast: systems of other sizes, for a small world."""
    asked = Tables(lab, cast or Cast(lab.scope.quick, QUICK_STEPS if lab.scope.quick else STEPS))
    return Chapter("cosim", "CoSiM (000)", asked.works, asked.tables)


@dataclass(frozen=True, eq=False)
class Tables:
    lab: Lab
    cast: Cast

    @cached_property
    def view(self) -> View2:
        return View2(self.lab)

    @property
    def folds(self) -> Sequence[int]:
        return FOLDS[:QUICK_FOLDS] if self.cast.quick else FOLDS

    @property
    def few(self) -> Sequence[int]:
        return self.folds[: max(2, len(self.lab.scope.few_seeds))]

    @cached_property
    def recogniser(self) -> list[Work]:
        """A network of a million parameters, as it comes."""
        there = (self.lab.photos.data / MOBILEFACENET).exists()
        return self.lab.verification(Method("cosine"), "mobilefacenet") if there and not self.cast.quick else []

    def works(self) -> list[Work]:
        view, cast = self.view, self.cast
        found = view.fits([*cast.networks().values(), *cast.others().values()], self.folds)
        found += view.fits([one for sweep in cast.sweeps().values() for _, one in sweep], self.few)
        found += view.fits(list(cast.long().values()), self.folds[:1])
        if not cast.quick:
            found += [products(view), *(fvf(view, fold) for fold in self.folds), *self.recogniser]
        return found

    def tables(self) -> list[Table]:
        reader, few = Reader(self.view, self.folds), Reader(self.view, self.few)
        told, named = header(self.view, self.folds), self._heard(reader)
        accuracies = Accuracies.of(reader, told, named)
        alone = [n for n in (*SINGLE, *JOINT, f"{SUB}, SIFT", f"{SUB}, LBP", "LDML", FVF) if n in named]
        swept = {n: [(r, few.system(one)) for r, one in sweep] for n, sweep in self.cast.sweeps().items()}
        plain = [f"{feature}, {name}" for name in ("Euclidean", "cosine") for feature in ("SIFT", "LBP")]
        apart = {n: named[n] for n in plain} | {"SIFT, sigma": named[SINGLE[0]], "LBP, sigma": named[SINGLE[1]]}
        apart |= {n: named[n] for n in (LATE, *JOINT)}
        more = [*((n, f"{n}, as printed") for n in JOINT), (SUB, JSML), (f"{SUB} ⊕ FV", f"{SUB} ⊕ {FVF}")]
        runs = {n: self.view.fit(one, self.folds[0]) for n, one in self.cast.long().items()}
        watched = f"{told} The first fold's models, watched by the pairs of the fold that judges."
        return [
            accuracies.table_5(notes(self.cast, [named[n] for n in JOINT])),
            accuracies.differences(more),
            accuracies.table_4(),
            figure_10(reader, few, told, {n: named[n] for n in alone}, accuracies.figures, swept, self._beside()),
            table_6(reader, told, spreads(reader, apart)),
            figure_5(watched, {n: (w, self.lab.result(w)) for n, w in runs.items()}, list(LONG)[: 2 - self.cast.quick]),
            figure_4(),
        ]

    def _heard(self, reader: Reader) -> dict[str, Heard]:
        """All systems and their fusions, by name."""
        cast = self.cast.networks() | self.cast.others()
        own = {name: replace(reader.system(one), name=name) for name, one in cast.items()}
        own["LBP, SML"] = replace(own["SML-L"], name="LBP, SML")
        members = {LATE: [*SINGLE], JSML: [*SINGLE, *JOINT], SUB: [f"{SUB}, SIFT", f"{SUB}, LBP"]}
        if not self.cast.quick:
            own[FVF] = reader.heard(FVF, [fvf(self.view, fold) for fold in self.folds])
            members |= {FVF: [FVF], "FV": [FVF, "SML, FV", f"{SUB}, FV"]}
        joined = [(JSML, SUB), (JSML, FVF), (SUB, FVF), (JSML, FVF, SUB), (SUB, "FV"), (JSML, "FV", SUB)]
        fused = {name: parts for name, parts in members.items() if name != FVF}
        fused |= {
            " ⊕ ".join(some): [p for n in some for p in members[n]] for some in joined if {*some} <= members.keys()
        }
        return own | {name: reader.fused(name, [own[p] for p in parts]) for name, parts in fused.items()}

    def _beside(self) -> dict[str, Beside]:
        if not self.recogniser:
            return {}
        sides = [self.lab.protocol(f"view2:{fold}") for fold in FOLDS]
        found = accuracy(self.lab.results(self.recogniser), [s.pairs for s in sides], sides[0].people)
        size = (self.lab.photos.data / MOBILEFACENET).stat().st_size / 4
        return {"MobileFaceNet, cosine": (size, found, self.recogniser)}

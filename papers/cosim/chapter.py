"""000, CoSiM: the tables and figures of "Collaborative similarity metric learning for face recognition in the wild"."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from papers.cosim.accuracy_tables import FVF, JSML, LATE, AccuracyTables
from papers.cosim.captions import header, notes
from papers.cosim.distance_table import spreads, table_6
from papers.cosim.fisher_vector_faces import make_fvf_computation, make_product_computation
from papers.cosim.learning_curves import figure_4, figure_5
from papers.cosim.pair_scores import PairScoreReader, SystemScores
from papers.cosim.parameter_counts import Beside, figure_10
from papers.cosim.system_catalogue import JOINT, LONG_RUN_STEPS, QUICK_STEPS, SINGLE, STEPS, SUB, SystemCatalogue
from papers.cosim.systems import View2
from papers.harness.photos import MOBILEFACENET_FILE
from papers.harness.results import accuracy
from papers.harness.run_context import FOLDS, Method, RunContext
from papers.harness.table_types import Chapter, Computation, Table

QUICK_FOLDS = 2


def chapter(context: RunContext, catalogue: SystemCatalogue | None = None) -> Chapter:
    """Make the chapter. catalogue: systems of other sizes, for tests"""
    paper_tables = CosimTables(
        context, catalogue or SystemCatalogue(context.scope.quick, QUICK_STEPS if context.scope.quick else STEPS)
    )
    return Chapter("cosim", "CoSiM (000)", paper_tables.computations, paper_tables.tables)


@dataclass(frozen=True, eq=False)
class CosimTables:
    context: RunContext
    catalogue: SystemCatalogue

    @cached_property
    def view(self) -> View2:
        return View2(self.context)

    @property
    def folds(self) -> Sequence[int]:
        return FOLDS[:QUICK_FOLDS] if self.catalogue.quick else FOLDS

    @property
    def sweep_folds(self) -> Sequence[int]:
        return self.folds[: max(2, len(self.context.scope.few_seeds))]

    @cached_property
    def recogniser(self) -> list[Computation]:
        """Return the computations for a network with a million parameters, without learning."""
        there = (self.context.photos.data / MOBILEFACENET_FILE).exists()
        return (
            self.context.verification(Method("cosine"), "mobilefacenet") if there and not self.catalogue.quick else []
        )

    def computations(self) -> list[Computation]:
        view, catalogue = self.view, self.catalogue
        computations = view.fits([*catalogue.networks().values(), *catalogue.others().values()], self.folds)
        computations += view.fits([one for sweep in catalogue.sweeps().values() for _, one in sweep], self.sweep_folds)
        computations += view.fits(list(catalogue.long().values()), self.folds[:1])
        if not catalogue.quick:
            computations += [
                make_product_computation(view),
                *(make_fvf_computation(view, fold) for fold in self.folds),
                *self.recogniser,
            ]
        return computations

    def tables(self) -> list[Table]:
        reader, sweep_reader = PairScoreReader(self.view, self.folds), PairScoreReader(self.view, self.sweep_folds)
        data_text, named = header(self.view, self.folds), self._read_system_scores(reader)
        accuracies = AccuracyTables.of(reader, data_text, named)
        alone = [n for n in (*SINGLE, *JOINT, f"{SUB}, SIFT", f"{SUB}, LBP", "LDML", FVF) if n in named]
        swept = {n: [(r, sweep_reader.system(one)) for r, one in sweep] for n, sweep in self.catalogue.sweeps().items()}
        plain = [f"{feature}, {name}" for name in ("Euclidean", "cosine") for feature in ("SIFT", "LBP")]
        separated = {n: named[n] for n in plain} | {"SIFT, sigma": named[SINGLE[0]], "LBP, sigma": named[SINGLE[1]]}
        separated |= {n: named[n] for n in (LATE, *JOINT)}
        more = [*((n, f"{n}, as printed") for n in JOINT), (SUB, JSML), (f"{SUB} ⊕ FV", f"{SUB} ⊕ {FVF}")]
        runs = {n: self.view.fit(one, self.folds[0]) for n, one in self.catalogue.long().items()}
        watched = f"{data_text} The first fold's models, watched by the pairs of the fold that judges."
        return [
            accuracies.table_5(notes(self.catalogue, [named[n] for n in JOINT])),
            accuracies.differences(more),
            accuracies.table_4(),
            figure_10(
                reader,
                sweep_reader,
                data_text,
                {n: named[n] for n in alone},
                accuracies.figures,
                swept,
                self._measure_recogniser(),
            ),
            table_6(reader, data_text, spreads(reader, separated)),
            figure_5(
                watched,
                {n: (w, self.context.result(w)) for n, w in runs.items()},
                list(LONG_RUN_STEPS)[: 2 - self.catalogue.quick],
            ),
            figure_4(),
        ]

    def _read_system_scores(self, reader: PairScoreReader) -> dict[str, SystemScores]:
        """Return all systems and their fusions by name."""
        catalogue = self.catalogue.networks() | self.catalogue.others()
        own = {name: replace(reader.system(one), name=name) for name, one in catalogue.items()}
        own["LBP, SML"] = replace(own["SML-L"], name="LBP, SML")
        members = {LATE: [*SINGLE], JSML: [*SINGLE, *JOINT], SUB: [f"{SUB}, SIFT", f"{SUB}, LBP"]}
        if not self.catalogue.quick:
            own[FVF] = reader.scores(FVF, [make_fvf_computation(self.view, fold) for fold in self.folds])
            members |= {FVF: [FVF], "FV": [FVF, "SML, FV", f"{SUB}, FV"]}
        joined = [(JSML, SUB), (JSML, FVF), (SUB, FVF), (JSML, FVF, SUB), (SUB, "FV"), (JSML, "FV", SUB)]
        fused = {name: parts for name, parts in members.items() if name != FVF}
        fused |= {
            " ⊕ ".join(some): [p for n in some for p in members[n]] for some in joined if {*some} <= members.keys()
        }
        return own | {name: reader.fused(name, [own[p] for p in parts]) for name, parts in fused.items()}

    def _measure_recogniser(self) -> dict[str, Beside]:
        if not self.recogniser:
            return {}
        sides = [self.context.protocol(f"view2:{fold}") for fold in FOLDS]
        figure = accuracy(self.context.results(self.recogniser), [s.pairs for s in sides], sides[0].people)
        size = (self.context.photos.data / MOBILEFACENET_FILE).stat().st_size / 4
        return {"MobileFaceNet, cosine": (size, figure, self.recogniser)}

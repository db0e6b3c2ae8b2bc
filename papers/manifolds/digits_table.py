"""001, Table 2 and Figure 1, from the results on digits."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from papers.harness.results import percent
from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, Declared, Plot, Row, Table
from papers.manifolds import digits, head_comparison
from papers.manifolds.experiment import SAME_START_NOTE, Experiment, list_all
from papers.manifolds.head_comparison import HeadComparison, PairedScores, read_correct, read_correct_flat
from papers.manifolds.head_layers import HEADS

COLUMNS = ("error", "reduction from Conv", "error, equal axes", "axes", "epoch")
ERRORS = {"ae": 11.13, "plain": 14.84, "qconv": 9.93, "stiefel": 9.75}
SECONDS = {"ae": 10.5, "plain": 12.1, "qconv": 12.3, "stiefel": 12.4}
GAINS = {"qconv": 14.84 - 9.93, "stiefel": 14.84 - 9.75}
TITLES = {
    "start": "where the layers start", "ae": "AE", "pca": "PCA-20", "pixels": "the 784 pixels themselves",
}  # fmt: skip
SHOWN = ("ae", "plain", "qconv", "stiefel")
HEADER = (
    "MNIST's 10,000 test digits, since the training file is not available here: a drawn half teaches, the other half "
    "is tested ({seeds}); the paper has 60,000 and 10,000. 784 -> 20, N = 100, tau = 1, {epochs} epochs of 50 batches, "
    "pixels brought to unit length, {rates}. Error of the nearest neighbour in percent, ± over splits, [95 %, "
    "bootstrap over digits]; reduction from Conv: paired, in points; equal axes: the same directions, all of one "
    "weight; axes: how many of the 20 distances are made of (exp of the entropy of M's eigenvalues); epoch: CPU time "
    "in percent of Conv's, in turns in one run, [quartiles]."
)
INVERSE = (
    "qConv, inverse metric: Tr(xi G theta') is left alone by rotations as the paper's Tr(xi G^-1 theta') is; its "
    "gradient is the partial derivatives times G^-1 (scaled gradient descent). The paper does not try it."
)


class DigitExperiment(Experiment):
    """Table 2 and Figure 1.

    sizes: epochs, rounds of timing, points of the plot
    """

    sizes: ClassVar = {True: (20, 3, 500), False: (100, 7, 2000)}

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.epochs, self.rounds, self.points = self.sizes[self.quick]

    def chosen_computations(self) -> list[Computation]:
        return [*list_all(self._learned), *list_all(self._baselines), self._times, self._scatter]

    def tables(self) -> Sequence[Table]:
        rows = [self._row(name, TITLES[name], self._baselines) for name in TITLES]
        rows += [self._row(head, HEADS[head].title, self._learned) for head in HEADS]
        splits = f"{len(self._seeds)} such splits" if len(self._seeds) > 1 else "one such split"
        header = HEADER.format(seeds=splits, epochs=self.epochs, rates=self.how)
        plots = [self._scattered(), self._curves()]
        return [Table("manifolds-table-2", "Table 2: one layer on digits", header, COLUMNS, rows, plots, self._notes())]

    def trials(self) -> Sequence[HeadComparison]:
        computations = self._learned
        results = {head: self.context.results(computations[head]) for head in HEADS}
        own, alike = (head_comparison.score_heads(results, one, "asked") for one in (read_correct, read_correct_flat))
        return [
            HeadComparison(
                "digits",
                own,
                head_comparison.summarise_heads(results),
                computations,
                alike,
                GAINS,
                head_comparison.measure_matrix_gap(results, "qconv"),
            )
        ]

    @property
    def choices(self) -> dict[str, Computation]:
        return {head: digits.make_choice_computation(self.context, head, self.epochs) for head in HEADS}

    @property
    def _seeds(self) -> range:
        return self.context.scope.seeds

    @property
    def _learned(self) -> dict[str, list[Computation]]:
        known = self.known
        return {
            h: [digits.make_head_computation(self.context, h, r, self.epochs, s) for s in self._seeds]
            for h, r in known.items()
        }

    @property
    def _baselines(self) -> dict[str, list[Computation]]:
        return {
            name: [digits.make_baseline_computation(self.context, name, self.epochs, s) for s in self._seeds]
            for name in TITLES
        }

    @property
    def _times(self) -> Computation:
        return digits.make_timing_computation(self.context, self.known, self.rounds)

    @property
    def _scatter(self) -> Computation:
        first = {
            name: computations[0]
            for name, computations in {**self._baselines, **self._learned}.items()
            if name in SHOWN
        }
        return digits.make_scatter_computation(self.context, first, self.points)

    def _row(self, name: str, title: str, computations: Mapping[str, Sequence[Computation]]) -> Row:
        results, conv = self.context.results(computations[name]), self.context.results(self._learned["plain"])
        own = PairedScores.of(results, read_correct, "asked")
        figures = {"error": head_comparison.complement_figure(own.figure)}
        if name != "plain":
            figures["reduction from Conv"] = percent(own.over(PairedScores.of(conv, read_correct, "asked")).difference)
        if name != "pixels":
            figures["error, equal axes"] = head_comparison.complement_figure(
                PairedScores.of(results, read_correct_flat, "asked").figure
            )
            figures["axes"] = head_comparison.mean_axes(results)
        ratios = self.context.result(self._times).record["ratios"].get(name)
        if ratios:
            figures["epoch"] = head_comparison.summarise_ratios(ratios)
        paper = (
            {"error": ERRORS[name], "epoch": round(100 * SECONDS[name] / SECONDS["plain"], 1)} if name in ERRORS else {}
        )
        pca = self._error(self._baselines["pca"])
        verdict: Declared | None = "not possible here" if paper else None
        cause = f"5,000 other digits teach, not MNIST's 60,000; PCA-20, unlearned, errs in {pca:.1f} %" if paper else ""
        about = {"data": "MNIST t10k", "rate": self.known.get(name), "epochs": self.epochs, "splits": len(results)}
        return Row(title, figures, paper, verdict, cause, about, computations[name])

    def _notes(self) -> list[str]:
        fine = digits.plan_training("stiefel", 0.0, 0, 0).fine
        means = {name: self._error(computations) for name, computations in {**self._baselines, **self._learned}.items()}
        first = min(HEADS, key=lambda head: means[head])
        return [
            f"{self.describe_rates()}; of Stiefel's S, by RMSProp, {fine:g}.",
            SAME_START_NOTE,
            INVERSE,
            f"PCA-20 needs no label and errs in {means['pca']:.1f} %, {HEADS[first].title}, the best of the layers, in "
            f"{means[first]:.1f} %.",
        ]

    def _error(self, computations: Sequence[Computation]) -> float:
        return 100 - 100 * float(
            PairedScores.of(self.context.results(computations), read_correct, "asked").means.mean()
        )

    def _scattered(self) -> Plot:
        arrays = self.context.result(self._scatter).arrays

        def draw(axes: Any) -> None:
            for at, name in zip(axes.flat, SHOWN, strict=True):
                at.scatter(*arrays[name].T, c=arrays["values"], cmap="tab10", s=4)
                at.set_title(TITLES.get(name) or HEADS[name].title)
                at.set_axis_off()

        return Plot("manifolds-figure-1", "t-SNE of digits under AE, Conv, qConv and Stiefel", draw, 2, 2)

    def _curves(self) -> Plot:
        """Plot the spectrum of M by head, and the error by rate, which show why heads differ."""
        spectra = {h: self._spectrum(self._learned[h][0]) for h in HEADS}
        choices = {} if self.quick else self.choices
        tried = {h: self.context.result(w).record["errors"] for h, w in choices.items() if h != "rmsprop"}

        def draw(axes: Any) -> None:
            for head, share in spectra.items():
                axes[0].plot(range(1, len(share) + 1), share, marker=".", label=HEADS[head].title)
            axes[0].set(yscale="log", xlabel="axis", ylabel="share of M's trace")
            axes[0].legend()
            for head, errors in tried.items():
                known = {float(rate): 100 * error for rate, error in errors.items() if error is not None}
                axes[1].plot([*known], [*known.values()], marker=".", label=HEADS[head].title)
            axes[1].set(xscale="log", xlabel="rate", ylabel="error on the inner split, %", ylim=(0, 20))

        return Plot("manifolds-spectrum", "eigenvalues of M by head, and error by rate", draw, 1, 2)

    def _spectrum(self, computation: Computation) -> list[float]:
        strength = np.linalg.svd(self.context.result(computation).arrays["matrix"], compute_uv=False) ** 2
        return [float(s) for s in strength / strength.sum()]


def _of(computations: Mapping[str, Sequence[Computation]]) -> list[Computation]:
    return [computation for group in computations.values() for computation in group]

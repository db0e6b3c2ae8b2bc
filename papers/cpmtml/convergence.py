"""002, Figure 4: the loss, and mAP on held-out people, by the number of updates."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import Progress
from papers.cpmtml.fits import HELD_OUT, PROTOCOL, CpmtmlFits
from papers.cpmtml.learners import CPMTML_FROM_NEXT, CPMTML_LEARNERS, MTLMCA_LEARNERS, QUICK_RATE, STML_LEARNER, Setting
from papers.cpmtml.tasks import AUXILIARY_PAIRS, PAIRS
from papers.harness.table_types import Computation, ComputationOutput, Figure, Plot, Row, Table

DIM, BATCH = 64, 256
STEPS, QUICK_STEPS = 2000, 150
"""Batches of all tasks together; the second in a quick run."""
CONVERGED_SHARE = 0.05
"""A fit has converged if at most this share of the fall of the loss is in the last tenth of the updates."""
PRINTED = (CPMTML_LEARNERS[0], MTLMCA_LEARNERS[0])
COLUMNS = (
    "loss left after 1/10", "after 9/10", "at the end", "mAP held out at the end", "at its best", "which is after",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ConvergenceTable:
    """Fits of draw 0 with expression as the second task, with their learning curves."""

    fits: CpmtmlFits

    @property
    def steps(self) -> int:
        return QUICK_STEPS if self.fits.context.scope.quick else STEPS

    def settings(self) -> list[Setting]:
        learners = PRINTED if self.fits.context.scope.quick else (*PRINTED, CPMTML_FROM_NEXT[0], STML_LEARNER)
        return [Setting(one, "lbp", DIM) for one in learners]

    def computations(self) -> list[Computation]:
        return [self._watched(setting) for setting in self.settings()]

    def table(self) -> Table:
        """Test the paper's claim that both of its learners have converged."""
        courses = {s.learner.title: self._course(s) for s in self.settings()}
        rows = [self._row(s, courses[s.learner.title]) for s in self.settings()]
        header = (
            f"LFW, LBP, d = {DIM}, draw 0 (queries-0.txt), without {HELD_OUT:.0%} of its people, who are searched for "
            f"among themselves (mAP in percent); {PAIRS:,} identity pairs, {AUXILIARY_PAIRS:,} of expression (LFW's "
            "own, for "
            f"FACES); {self.steps:,} batches of {BATCH} pairs, that is {self.steps * BATCH:,} updates at rate "
            f"{QUICK_RATE:g}. The loss is the mean hinge of the last 100 batches, in percent of the first told; the "
            "best is after so many percent of the updates. The paper prints curves and no figures."
        )
        return Table("figure-4", "Figure 4: convergence", header, COLUMNS, rows, [_plot(courses)])

    def _watched(self, setting: Setting) -> Computation:
        method = setting.with_options(steps=self.steps, held_out=HELD_OUT, refit=False)

        def run(folder: Path, progress: Progress) -> ComputationOutput:
            seen: list[tuple[float, float, float]] = []

            def watched(step: int, whole: int, values: dict[str, float]) -> None:
                seen.append((step, values.get("loss", np.nan), values.get("held_out", np.nan)))
                progress(step, whole, values)

            method.build().fit(self.fits.data(setting, PROTOCOL), progress=watched)
            return {}, {"course": np.array(seen, np.float64)}

        key = {**method.key, "features": "lbp", "protocol": PROTOCOL, "second": setting.learner.aux, "watched": True}
        return Computation(
            f"course of {setting.learner.title}", key, 15.0 + 1.2 * self.steps * setting.step_seconds, run
        )

    def _course(self, setting: Setting) -> NDArray[np.float64]:
        return self.fits.context.result(self._watched(setting)).arrays["course"]

    def _row(self, setting: Setting, course: NDArray[np.float64]) -> Row:
        step, loss, held = course.T
        tenth, late = (loss[np.searchsorted(step, share * step[-1])] for share in (0.1, 0.9))
        best = int(np.nanargmax(held))
        shares = (tenth / loss[0], late / loss[0], loss[-1] / loss[0], held[-1], held[best], step[best] / step[-1])
        figures = {column: Figure(100 * float(share)) for column, share in zip(COLUMNS, shares, strict=True)}
        computations, name = [self._watched(setting)], setting.learner.title
        if setting.learner not in PRINTED:
            return Row(name, figures, computations=computations)
        left = (late - loss[-1]) / max(loss[0] - loss[-1], 1e-12)
        tail = f"the last tenth of the updates has {left:.1%} of the fall of the loss"
        if left <= CONVERGED_SHARE:
            return Row(name, figures, cause=f"converged, as the paper says: {tail}", computations=computations)
        return Row(name, figures, cause=f"not converged: {tail}", computations=computations)


def _plot(courses: dict[str, NDArray[np.float64]]) -> Plot:
    def draw(axes: Any) -> None:
        for name, (step, loss, held) in ((n, c.T) for n, c in courses.items()):
            axes[0].plot(BATCH * step, loss, label=name)
            axes[1].plot(BATCH * step, 100 * held, label=name)
        axes[0].set(xlabel="pair updates", ylabel="mean hinge")
        axes[1].set(xlabel="pair updates", ylabel="mAP of people held out, percent")
        axes[0].legend(fontsize=7, loc="upper right")

    return Plot("cpmtml-convergence", "loss, and mAP of people held out, by pair updates", draw, columns=2)

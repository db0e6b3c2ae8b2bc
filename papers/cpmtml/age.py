"""002, Figure 3: faces of the same age, with identities as the second task."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ml.embedders.base import Progress, TrainingSet
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import rank_protocol
from papers.cpmtml.fits import (
    FIT_OVERHEAD_SECONDS,
    CpmtmlFits,
    choose_method,
    count_steps_tried,
    make_choice_computations,
)
from papers.cpmtml.learners import STML_LEARNER, WPCA_LEARNER, PaperLearner, Setting
from papers.cpmtml.printed_figures import CPMTML, UTML
from papers.cpmtml.tasks import AGE, PAIRS, ages_first
from papers.harness.results import ALONE
from papers.harness.run_context import Method, ranked_arrays
from papers.harness.table_types import Computation, ComputationOutput, Result

DIM, SPLITS, IDENTITIES = 32, 5, 30_000
SECOND_TASK = "identity"
PRINTED = PaperLearner(CPMTML, "cpmtml", SECOND_TASK, {"common": "first"})
CPMTML_FROM_NEXT = PaperLearner(f"{CPMTML}, L0 from the next components", "cpmtml", SECOND_TASK)
LEARNERS = (WPCA_LEARNER, STML_LEARNER, PaperLearner(UTML, "utml", SECOND_TASK), PRINTED, CPMTML_FROM_NEXT)


def split(names: Sequence[str], number: int) -> Protocol:
    """Split the faces: half to learn from; of the others, one of each age is a query, the rest are the gallery.

    names: `AGE/...`. Ages take the place of people in the protocol.
    """
    ages = np.array([int(name.split("/")[0]) for name in names])
    draw = np.random.default_rng(number)
    test = draw.random(len(ages)) < 0.5
    queries = np.sort([draw.choice(np.flatnonzero(test & (ages == age))) for age in np.unique(ages[test])])
    gallery = np.setdiff1d(np.flatnonzero(test), queries)
    return Protocol(f"age-{number}", ages, np.flatnonzero(~test), queries, gallery)


@dataclass(frozen=True, eq=False)
class AgeFits:
    """Fits and rankings of faces of known age."""

    fits: CpmtmlFits

    @property
    def splits(self) -> range:
        scope = self.fits.context.scope
        return range(min(SPLITS, scope.draws))

    def settings(self, features: str) -> list[Setting]:
        """Return the settings, including stML with twice the numbers."""
        learners = LEARNERS if not self.fits.context.scope.quick else (WPCA_LEARNER, STML_LEARNER, PRINTED)
        both = [Setting(one, features, DIM, PAIRS, IDENTITIES) for one in learners]
        return [*both, Setting(STML_LEARNER, features, 2 * DIM, PAIRS, IDENTITIES)]

    def choices(self, setting: Setting) -> list[Computation]:
        if self.fits.context.scope.quick or not setting.learner.learns:
            return []
        at = Setting(setting.learner, setting.features, DIM, setting.pairs, setting.auxiliary)
        return make_choice_computations(at, partial(self._data, at, 0), protocol="age-0")

    def computations(self, setting: Setting) -> list[Computation]:
        """Return one computation per split; none until the rate is chosen."""
        method = choose_method(self.fits.context, setting, self.choices(setting))
        return [] if method is None else [self._computation(setting, method, number) for number in self.splits]

    def guessed(self, setting: Setting) -> list[Computation]:
        method = setting.with_options(steps=count_steps_tried(setting) // 2)
        return [self._computation(setting, method, number) for number in self.splits]

    def results(self, setting: Setting) -> list[Result]:
        return self.fits.context.results(self.computations(setting))

    def _split(self, number: int) -> Protocol:
        return split(self.fits.context.photos.names("age"), number)

    def _data(self, setting: Setting, number: int) -> TrainingSet:
        both = setting.learner.aux == SECOND_TASK
        return ages_first(self.fits.context, setting.features, self._split(number).training, both=both)

    def _computation(self, setting: Setting, method: Method, number: int) -> Computation:
        key = {**method.key, "features": setting.features, "task": AGE, "protocol": f"age-{number}"}

        def run(folder: Path, progress: Progress) -> ComputationOutput:
            protocol = self._split(number)
            embedder = method.build().fit(self._data(setting, number), progress=progress)
            rows = self.fits.context.photos.rows("age", setting.features)
            ranked = rank_protocol(embedder.embed(rows, AGE), protocol)
            return {"notes": dict(embedder.notes)}, ranked_arrays(ranked, ALONE)

        seconds = FIT_OVERHEAD_SECONDS + method.options.get("steps", 0) * setting.step_seconds
        return Computation(f"age {setting.learner.title} {setting.features} {number}", key, seconds, run)

"""The fits of 002. Rate and steps are chosen once, on people held out of draw 0."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ml.embedders.base import Progress, TrainingSet
from papers.cpmtml.learners import STML_LEARNER, WPCA_LEARNER, Setting
from papers.cpmtml.tasks import FER, MOOD, PAIRS, make_training_set, possible
from papers.harness.run_context import Method, RunContext
from papers.harness.table_types import Computation, ComputationOutput, Result

RATES = (0.12, 0.24)
STEPS = 300
"""Largest number of batches of 256 pairs for each task."""
HELD_OUT = 0.2
TUNING_DIM = 64
"""The d at which rate and steps are chosen for all d."""
FIT_OVERHEAD_SECONDS = 8.0
"""Seconds of a fit outside its steps: start, embedding, ranking."""
PROTOCOL = "queries-0"


def count_steps_tried(setting: Setting) -> int:
    """Return the number of steps that are tried, all tasks together."""
    return setting.learner.tasks * STEPS


def make_choice_computations(setting: Setting, data: Callable[[], TrainingSet], **key: Any) -> list[Computation]:
    """Return a computation for each rate, which finds the best number of steps on held-out people."""
    steps = count_steps_tried(setting)
    methods = [setting.with_options(rate=rate, steps=steps, held_out=HELD_OUT, refit=False) for rate in RATES]

    def run(method: Method, folder: Path, progress: Progress) -> ComputationOutput:
        notes = method.build().fit(data(), progress=progress).notes
        return {"rate": method.options["rate"], **notes}, {}

    seconds = FIT_OVERHEAD_SECONDS + 1.3 * steps * setting.step_seconds
    named = {"features": setting.features, "chosen": "rate and steps", **key}
    name = f"rate of {setting.learner.title}, {setting.features}"
    return [Computation(name, {**method.key, **named}, seconds, partial(run, method)) for method in methods]


def choose_method(context: RunContext, setting: Setting, choice: Sequence[Computation]) -> Method | None:
    """Return the method with the best rate and steps, scaled to the number of pairs; None until they are chosen."""
    if not all(context.store.has(computation) for computation in choice):
        return None
    records = (context.result(computation).record for computation in choice)
    best = max(records, key=lambda record: record["held_out"] or 0.0, default=None)
    if best is None:
        return setting.method
    return setting.with_options(rate=best["rate"], steps=best["steps"] * setting.pairs // PAIRS)


@dataclass(frozen=True, eq=False)
class CpmtmlFits:
    """The fits of the chapter, one computation per learner and draw."""

    context: RunContext
    known: dict[Setting, Method] = field(default_factory=dict)
    """The methods chosen so far."""

    def possible(self, settings: Sequence[Setting]) -> list[Setting]:
        """Return the settings whose photos are available."""
        return [s for s in settings if possible(self.context, s.learner.aux)]

    def choices(self, setting: Setting) -> list[Computation]:
        """Return the computations of the choice, which are the same for every d and number of pairs."""
        if self.context.scope.quick or not setting.learner.learns:
            return []
        at = replace(setting, dim=TUNING_DIM, pairs=PAIRS)
        return make_choice_computations(at, partial(self.data, at, PROTOCOL), protocol=PROTOCOL, **self._about(at))

    def method(self, setting: Setting) -> Method | None:
        if setting not in self.known and (method := choose_method(self.context, setting, self.choices(setting))):
            self.known[setting] = method
        return self.known.get(setting)

    def data(self, setting: Setting, protocol: str) -> TrainingSet:
        """Return the training set of a setting."""
        split, train = (
            self.context.protocol(protocol),
            make_training_set(self.context, setting.features, setting.learner.aux),
        )
        return train(split) if train else self.context.identities(setting.features, split)

    def computations(self, setting: Setting) -> list[Computation]:
        """Return one computation per draw; none until the rate is chosen."""
        method = self.method(setting)
        return [] if method is None else self._draws(setting, method)

    def results(self, setting: Setting) -> list[Result]:
        return self.context.results(self.computations(setting))

    def done(self, setting: Setting) -> bool:
        computations = self.computations(setting)
        return bool(computations) and all(self.context.store.has(computation) for computation in computations)

    def guessed(self, setting: Setting) -> list[Computation]:
        """Return as many computations as there will be, before anything is chosen."""
        return self._draws(
            setting, setting.with_options(steps=count_steps_tried(setting) * setting.pairs // PAIRS // 2)
        )

    def seeds(self, setting: Setting) -> range:
        """Return the draws: all for LBP at d = 32, and for the main learners at d = 64; fewer for the rest."""
        one, scope = setting.learner, self.context.scope
        main = one in (WPCA_LEARNER, STML_LEARNER) or (one.coupled and one.aux != FER)
        cheap = setting.dim == 32 or (main and setting.dim == 64) or (one is STML_LEARNER and setting.dim == 128)
        return scope.seeds if setting.features == "lbp" and setting.pairs == PAIRS and cheap else scope.few_seeds

    def _draws(self, setting: Setting, method: Method) -> list[Computation]:
        one, features = setting.learner, setting.features
        seconds = FIT_OVERHEAD_SECONDS + method.options.get("steps", 0) * setting.step_seconds
        # Table 1 takes these apart
        keep = one.coupled and one.aux in (MOOD, FER) and (features, setting.dim, setting.pairs) == ("lbp", 64, PAIRS)
        fit = partial(
            self.context.retrieval, method, features, train=make_training_set(self.context, features, one.aux),
            about=self._about(setting), seconds=seconds, keep=keep,
        )  # fmt: skip
        return [fit(f"queries-{draw}") for draw in self.seeds(setting)]

    def _about(self, setting: Setting) -> dict[str, Any]:
        return {"second": setting.learner.aux} if setting.learner.aux else {}

"""The fits of 002: rate and steps are chosen once, on people held out of draw 0, and frozen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ml.embedders.base import Progress, TrainingSet
from papers.cpmtml.learners import ONE, WHITENED, Setting
from papers.cpmtml.tasks import FER, MOOD, PAIRS, make_training_set, possible
from papers.harness.lab_fits import Lab, Method
from papers.harness.table_types import Result, Work, WorkOutput

RATES = (0.12, 0.24)
STEPS = 300
"""Batches of 256 pairs for each task, at most."""
HELD_OUT = 0.2
TUNED_AT = 64
"""The d at which rate and steps are chosen for all d."""
BESIDES = 8.0
"""Seconds of a fit that are none of its steps: the start, embedding, ranking."""
PROTOCOL = "queries-0"


def count_steps_tried(setting: Setting) -> int:
    """So many steps are tried, all tasks together."""
    return setting.learner.tasks * STEPS


def make_choice_works(setting: Setting, data: Callable[[], TrainingSet], **key: Any) -> list[Work]:
    """A work for each rate: how well people held out are found, and after how many steps best."""
    steps = count_steps_tried(setting)
    methods = [setting.with_options(rate=rate, steps=steps, held_out=HELD_OUT, refit=False) for rate in RATES]

    def run(method: Method, folder: Path, progress: Progress) -> WorkOutput:
        notes = method.build().fit(data(), progress=progress).notes
        return {"rate": method.options["rate"], **notes}, {}

    seconds = BESIDES + 1.3 * steps * setting.step_seconds
    named = {"features": setting.features, "chosen": "rate and steps", **key}
    name = f"rate of {setting.learner.title}, {setting.features}"
    return [Work(name, {**method.key, **named}, seconds, partial(run, method)) for method in methods]


def choose_method(lab: Lab, setting: Setting, choice: Sequence[Work]) -> Method | None:
    """With the rate and the steps that were best, more of them for more pairs; None as long as they are not chosen."""
    if not all(lab.store.has(work) for work in choice):
        return None
    records = (lab.result(work).record for work in choice)
    best = max(records, key=lambda record: record["held_out"] or 0.0, default=None)
    if best is None:
        return setting.method
    return setting.with_options(rate=best["rate"], steps=best["steps"] * setting.pairs // PAIRS)


@dataclass(frozen=True, eq=False)
class CpmtmlFits:
    """Works of one learner each, a draw each."""

    lab: Lab
    known: dict[Setting, Method] = field(default_factory=dict)
    """What was chosen: asked for after each work."""

    def possible(self, settings: Sequence[Setting]) -> list[Setting]:
        """Those whose photos are here."""
        return [s for s in settings if possible(self.lab, s.learner.aux)]

    def choices(self, setting: Setting) -> list[Work]:
        """The same for every d and number of pairs."""
        if self.lab.scope.quick or not setting.learner.learns:
            return []
        at = replace(setting, dim=TUNED_AT, pairs=PAIRS)
        return make_choice_works(at, partial(self.data, at, PROTOCOL), protocol=PROTOCOL, **self._about(at))

    def method(self, setting: Setting) -> Method | None:
        if setting not in self.known and (method := choose_method(self.lab, setting, self.choices(setting))):
            self.known[setting] = method
        return self.known.get(setting)

    def data(self, setting: Setting, protocol: str) -> TrainingSet:
        """What a setting learns from."""
        split, train = self.lab.protocol(protocol), make_training_set(self.lab, setting.features, setting.learner.aux)
        return train(split) if train else self.lab.identities(setting.features, split)

    def works(self, setting: Setting) -> list[Work]:
        """One a draw; none as long as its rate is not chosen."""
        method = self.method(setting)
        return [] if method is None else self._draws(setting, method)

    def results(self, setting: Setting) -> list[Result]:
        return self.lab.results(self.works(setting))

    def done(self, setting: Setting) -> bool:
        works = self.works(setting)
        return bool(works) and all(self.lab.store.has(work) for work in works)

    def guessed(self, setting: Setting) -> list[Work]:
        """As many works as there will be, told before anything is chosen."""
        return self._draws(
            setting, setting.with_options(steps=count_steps_tried(setting) * setting.pairs // PAIRS // 2)
        )

    def seeds(self, setting: Setting) -> range:
        """All draws for LBP at d = 32, and at d = 64 for what 002 is about; fewer for the rest."""
        one, scope = setting.learner, self.lab.scope
        main = one in (WHITENED, ONE) or (one.coupled and one.aux != FER)
        cheap = setting.dim == 32 or (main and setting.dim == 64) or (one is ONE and setting.dim == 128)
        return scope.seeds if setting.features == "lbp" and setting.pairs == PAIRS and cheap else scope.few_seeds

    def _draws(self, setting: Setting, method: Method) -> list[Work]:
        one, features = setting.learner, setting.features
        seconds = BESIDES + method.options.get("steps", 0) * setting.step_seconds
        # Table 1 takes these apart
        keep = one.coupled and one.aux in (MOOD, FER) and (features, setting.dim, setting.pairs) == ("lbp", 64, PAIRS)
        fit = partial(
            self.lab.retrieval, method, features, train=make_training_set(self.lab, features, one.aux),
            about=self._about(setting), seconds=seconds, keep=keep,
        )  # fmt: skip
        return [fit(f"queries-{draw}") for draw in self.seeds(setting)]

    def _about(self, setting: Setting) -> dict[str, Any]:
        return {"second": setting.learner.aux} if setting.learner.aux else {}

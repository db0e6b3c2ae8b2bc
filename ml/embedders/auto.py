"""Automatic choice: the descriptors as they are, unless people held out show that a learned map is better."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from ml import registry
from ml.distances import Distance
from ml.embedders.base import Embedder, Maps, Progress, TrainingSet, offset_progress
from ml.embedders.cosine import Cosine
from ml.errors import CannotGoOn, NotFitted, WrongShape
from ml.metric_learning.holdout import require_task
from ml.metric_learning.selection.candidates import (
    METHODS,
    UNCHANGED,
    Base,
    CandidateMethod,
    FitCandidate,
    list_candidates,
    list_corrections,
)
from ml.metric_learning.selection.input_map import InputMap, fit_input_map
from ml.metric_learning.selection.selection import PROGRESS_STEPS, Choice, Selection
from ml.options import option
from ml.types import Rows


@dataclass
class Auto(Embedder):
    """Fits several candidates, and takes one only if it is shown to be better than changing nothing.

    The candidates are the descriptors as they are, within-class covariance normalisation, low-rank corrections, LDML
    and CLML held to the descriptors, and WPCA, LDML and CLML from whitened axes. They are compared on people held out,
    fold by fold. `notes["choice"]` says what was chosen and why. Learns the first task alone.
    """

    dim: int = option(0, "numbers of an embedding; 0: as many as the choice needs", low=0, unit="numbers")
    base: Base = option("cosine", "how the descriptors are compared where nothing is learned")
    folds: int = option(5, "parts of the people that take turns in being held out", low=2, high=100, unit="folds")
    max_seconds: float = option(
        90.0, "no candidate is started after this time; 0: nothing is tried, and nothing changes", low=0, unit="seconds"
    )
    methods: tuple[CandidateMethod, ...] = option(METHODS, "methods of the candidates to try")
    only: str = option("", "fit this candidate without a choice, as a refit does; empty: choose", server_only=True)
    device: str = option("auto", "auto, cpu or cuda", server_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fitted: Embedder | None = None

    @property
    def chosen(self) -> Embedder:
        """The fitted embedder that was chosen. Raises NotFitted."""
        if self._fitted is None:
            if "method" not in self.notes:
                raise NotFitted(type(self).__name__)
            chosen = cast(Embedder, registry.build("embedders", self.notes["method"], **self.notes["options"]))
            chosen.learned, chosen.tasks = self.learned, self.tasks
            self._fitted = chosen
        return self._fitted

    @property
    def width(self) -> int | None:
        return self.notes.get("width")

    @property
    def metric(self) -> Distance:
        return self.chosen.metric if "method" in self.notes else super().metric

    def linear_map(self) -> tuple[Rows, Rows] | None:
        return self.chosen.linear_map()

    def refit_options(self) -> dict[str, Any]:
        return {"only": self.notes["choice"]["candidate"]} if "choice" in self.notes else {}

    def start_from(self, model: Embedder) -> Self:
        """Start from another model: it takes the place of the descriptors as they are.

        It must be one linear map, or the cosine or the distance of the descriptors. Raises CannotGoOn, NotFitted.
        """
        start = model.chosen if isinstance(model, Auto) else model
        if start.needs_fit and start.linear_map() is None:
            raise CannotGoOn(f"Auto can start from one linear map, which {type(start).__name__} is not")
        self.start_model = start
        return self

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        task, start = require_task(data), self.start_model
        inputs = self._make_input_map(data)
        inner = data if inputs is None else replace(data, rows=self._map(inputs, data.rows), blocks=())
        original = inner if start is not None and start.needs_fit else data
        candidates = self._list_candidates(inner.rows.shape[1], len(task.faces))
        if self.only:
            choice = Choice(self._find_candidate(candidates), "the candidate that was asked for")
        else:
            selection = Selection(inner, original, candidates, self.folds, self.max_seconds, self.seed, self.device)
            choice = selection.choose(progress)
        count = len(candidates) * PROGRESS_STEPS
        last = offset_progress(count - PROGRESS_STEPS, count, progress)
        chosen, unchanged = choice.candidate.build(self.seed, self.device), choice.candidate.name == UNCHANGED
        chosen.fit(
            original if unchanged else inner,
            progress=lambda step, steps, values: last(PROGRESS_STEPS * step // max(1, steps), count, values),
        )
        if inputs is not None and not (unchanged and original is data):
            chosen.learned = inputs.precede(chosen.learned)
        self._fitted, self.learned, self.tasks = chosen, chosen.learned, (task.task,)
        self.notes = {
            "method": choice.candidate.method,
            "options": json.loads(json.dumps(chosen.options())),
            "width": data.rows.shape[1],
            "choice": choice.to_dict(),
            "fit": chosen.notes,
        }
        progress(count, count, {})

    def _make_input_map(self, data: TrainingSet) -> InputMap | None:
        start = self.start_model
        if start is None or not start.needs_fit:
            return fit_input_map(data, self.seed, self.device)
        linear = start.linear_map()
        return None if linear is None else InputMap(*linear)

    def _map(self, inputs: InputMap, rows: Rows) -> Rows:
        start = self.start_model
        return inputs.apply(rows) if start is None or not start.needs_fit else start.embed(rows)

    def _find_candidate(self, candidates: Sequence[FitCandidate]) -> FitCandidate:
        by_name = {candidate.name: candidate for candidate in candidates}
        if self.only not in by_name:
            raise WrongShape("only", " or ".join(by_name), repr(self.only))
        return by_name[self.only]

    def _list_candidates(self, width: int, faces: int) -> tuple[FitCandidate, ...]:
        start, methods = self.start_model, METHODS if self.only else self.methods
        if start is None or not start.needs_fit:
            base: Base = self.base if start is None else "cosine" if isinstance(start, Cosine) else "l2"
            return list_candidates(width, faces, base, self.dim if start is None else 0, methods)
        return list_corrections(width, "cosine" if getattr(start, "unit", False) else "l2", methods)

    def _embed(self, rows: Rows, task: str) -> Rows:
        return self.chosen.embed(rows, task)

    def maps(self, rows: Rows, task: str = "identity") -> Maps | None:
        return self.chosen.maps(rows, task)

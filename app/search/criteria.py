"""By what a search compares: one task, or a mix of several."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from sqlalchemy.orm import Session

from app.errors import Conflict
from app.publishing.pointers import BUILT_IN, enabled
from app.serving.deployments import Serving
from app.serving.scores import Scores
from ml.distances import EUCLIDEAN


@dataclass(frozen=True, eq=False)
class Criterion:
    """A task as one generation serves it. share: its weight, of 1; scale: divides its distances in a mix."""

    serving: Serving
    share: float = 1.0
    scale: float = 1.0

    @property
    def factor(self) -> float:
        """What its distances are multiplied by."""
        return self.share / self.scale


@dataclass(frozen=True, eq=False)
class Criteria:
    """Each by one generation for the whole of a request. A mix's distance is sum_t share_t distance_t / scale_t."""

    each: tuple[Criterion, ...]

    @classmethod
    def of(cls, servings: dict[Serving, float]) -> Self:
        """serving -> its share. Raises Conflict where a mix is wanted and a task's distances have no known scale."""
        if len(servings) == 1:
            return cls(tuple(Criterion(serving) for serving in servings))
        return cls(tuple(Criterion(serving, share, _scale(serving)) for serving, share in servings.items()))

    @property
    def first(self) -> Serving:
        return self.each[0].serving

    @property
    def mixed(self) -> bool:
        return len(self.each) > 1

    @property
    def collection(self) -> str:
        return self.first.served.collection

    @property
    def model(self) -> str:
        return ",".join(dict.fromkeys(c.serving.generation.id for c in self.each))

    @property
    def index_generation(self) -> str:
        return ",".join(c.serving.index_generation for c in self.each)

    @cached_property
    def facts(self) -> Scores:
        """What distances mean: of a mix nothing is known but their order."""
        if not self.mixed:
            return self.first.facts
        return Scores(next((m for m in (c.serving.index.metric for c in self.each) if not m.is_euclidean), EUCLIDEAN))


def switched_on(session: Session, tasks: Sequence[str]) -> None:
    """Raises Conflict where a task that a model serves has been switched off since."""
    off = set(tasks) - set(enabled(session, tasks)) if list(tasks) != [BUILT_IN] else set()
    if off:
        raise Conflict(
            f"the task {', '.join(sorted(off))} is off; an administrator can switch it on", code="TaskDisabled"
        )


def _scale(serving: Serving) -> float:
    """How far this gallery's strangers spread. Raises Conflict."""
    calibration = serving.facts.calibration
    spread = calibration.impostors.spread if calibration is not None else 0.0
    if spread <= 0:
        raise Conflict(
            f"the distances of the task {serving.task!r} cannot be weighed against others yet: its model is not "
            "calibrated here; more faces, and subjects with two or more, are needed, or search by one task",
            code="NotCalibrated",
        )
    return spread

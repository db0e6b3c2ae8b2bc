"""The base of embedders that learn nothing."""

from dataclasses import dataclass

from ml.embedders.base import Embedder, Progress, TrainingSet


@dataclass
class FixedMap(Embedder):
    """Takes rows of any width; there is nothing to fit."""

    @property
    def width(self) -> int | None:
        return None

    @property
    def needs_fit(self) -> bool:
        return False

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        pass

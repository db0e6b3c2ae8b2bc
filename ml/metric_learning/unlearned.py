"""What the maps share that there are before anything was learned."""

from dataclasses import dataclass

from ml.embedders.base import Embedder, Progress, TrainingSet


@dataclass
class Unlearned(Embedder):
    """Takes rows of any width; there is nothing to fit."""

    @property
    def width(self) -> int | None:
        return None

    @property
    def needs_fit(self) -> bool:
        return False

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        pass

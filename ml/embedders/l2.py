"""The descriptor's own distance: what there is before anything was learned."""

from dataclasses import dataclass

from ml.embedders.base import Embedder, Maps, Progress, TrainingSet
from ml.types import Rows


@dataclass
class L2(Embedder):
    """The identity map, compared by squared Euclidean distance."""

    @property
    def width(self) -> int | None:
        return None

    @property
    def needs_fit(self) -> bool:
        return False

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        pass

    def _embed(self, rows: Rows, task: str) -> Rows:
        return rows

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return Maps.one(rows)

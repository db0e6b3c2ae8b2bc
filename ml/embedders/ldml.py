"""Logistic discriminant metric learning: one linear map, learned from pairs.

Source: Guillaumin 2009; 003, equation 5.
"""

from dataclasses import dataclass, replace
from typing import Self

from ml.embedders.base import Embedder, Maps, Progress, TrainingSet
from ml.metric_learning.linear_embedding import (
    embed_linear,
    get_linear_map,
    get_width,
    make_linear_maps,
    require_linear_map,
)
from ml.metric_learning.logistic.options import BatchOptions, MapOptions
from ml.options import option, option_group
from ml.types import Rows


@dataclass
class Ldml(Embedder):
    """z = L x, which minimises sum_ij w_ij ln(1 + exp(-y_ij (b - |z_i - z_j|^2))) and its regularisers.

    The weights of a batch sum to 1 and regularisers are measured in the variance of the descriptors, so options suit
    any number of faces and any descriptor. Learns the first task alone, within the leading principal axes; several
    descriptors in a row are weighted to equal variance.
    """

    dim: int = option(128, "numbers of an embedding", low=1, unit="numbers")
    steps: int = option(300, "batches of the fit", low=1, unit="steps")
    held_out: float = option(0.0, "share of people held out to choose the best number of steps", low=0, high=1)
    unit: bool = option(
        True,
        "divide each z by its norm, which depends on the photo more than on the person; off, as in the paper, the "
        "results are about as good for people of the training set and worse for others",
    )
    device: str = option("auto", "auto, cpu or cuda", server_only=True)
    batches: BatchOptions = option_group(BatchOptions)
    map: MapOptions = option_group(MapOptions)

    @property
    def width(self) -> int | None:
        return get_width(self.learned)

    def start_from(self, model: Embedder) -> Self:
        """Start from one linear map, such as another LDML or a WPCA, and take over its `dim`."""
        projection, offset = require_linear_map(self, model)
        self.learned = {"projection": projection, "offset": offset}
        self.start_model, self.dim, self.map = model, len(projection), replace(self.map, start="learned")
        return self

    def linear_map(self) -> tuple[Rows, Rows] | None:
        return get_linear_map(self, self.learned)

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        from ml.metric_learning.logistic.trainer import LogisticTrainer, export_linear  # torch: only where it is fitted

        trainer = LogisticTrainer(self, data)
        fitted = trainer.fit_linear(self.steps, progress)
        self.tasks = (trainer.data.task.task,)
        self.learned, self.notes = export_linear(fitted, trainer.data.subspace), fitted.outcome.notes

    def _embed(self, rows: Rows, task: str) -> Rows:
        return embed_linear(self.learned, rows, self.unit)

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return make_linear_maps(self.learned, rows, self.unit)

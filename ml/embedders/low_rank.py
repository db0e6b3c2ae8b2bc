"""A low-rank correction of the descriptor: the identity plus a few directions, learned from pairs and held back."""

from dataclasses import dataclass

from ml.embedders.base import Embedder, Maps, Progress, TrainingSet
from ml.embedders.ldml import Ldml
from ml.metric_learning.holdout import require_task, scale_proximal_weight
from ml.metric_learning.linear_embedding import embed_linear, get_linear_map, get_width, make_linear_maps
from ml.metric_learning.logistic.options import BatchOptions, MapOptions
from ml.options import option, option_group
from ml.types import Rows


@dataclass
class LowRank(Embedder):
    """z = x + U V x, with U V of low rank, by LDML's loss of z brought to unit length.

    The fit starts at U = 0, which is the cosine of the descriptors, and `proximal_weight` pulls it back there. Learns
    the first task alone. A descriptor with more numbers than `axes` is first projected onto its principal axes.
    """

    rank: int = option(16, "directions of the correction", low=1, unit="directions")
    steps: int = option(150, "batches of the fit; 0: nothing changes", low=0, unit="steps")
    held_out: float = option(0.0, "share of people held out to choose the best number of steps", low=0, high=1)
    proximal_weight: float = option(
        0.01, "weight of the pull of the map towards the identity, times prior / n for n matched faces", low=0
    )
    operating_weight: float = option(
        1.0, "weight of the loss at the operating point of a search, beside that of all pairs; 0: without", low=0
    )
    prior: float = option(300.0, "matched faces at which the pull has its nominal weight", low=0, unit="faces")
    rate: float = option(0.02, "Adam's step, relative to the size of the descriptor's axes", low=0)
    axes: int = option(512, "largest number of axes in which the correction is learned", low=1, unit="axes")
    unit: bool = option(True, "divide each z by its norm")
    device: str = option("auto", "auto, cpu or cuda", server_only=True)
    batches: BatchOptions = option_group(BatchOptions, groups=128, others=128)

    @property
    def width(self) -> int | None:
        return get_width(self.learned)

    def linear_map(self) -> tuple[Rows, Rows] | None:
        return get_linear_map(self, self.learned)

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        # torch: only where it is fitted
        from ml.metric_learning.logistic.low_rank_map import LowRankMap, find_start_directions
        from ml.metric_learning.logistic.trainer import LogisticTrainer
        from ml.metric_learning.tensors import as_arrays

        trainer = LogisticTrainer(self._describe_start(data), data)
        task, subspace = trainer.data.task, trainer.data.subspace
        self.tasks = (task.task,)
        start, bias, radius = trainer.fit_start()
        scale = float(start[0, 0])
        directions = find_start_directions(trainer, scale, bias, radius, min(self.rank, len(start)))
        held = scale_proximal_weight(self.proximal_weight, self.prior, task) * trainer.data.mean_squared_norm
        model = LowRankMap(scale, directions, held)
        bias, outcome = trainer.fit_map(model, bias, self.steps, progress, radius=radius)
        projection = subspace.lift(model.projection)
        self.learned = as_arrays({"projection": projection, "offset": projection @ subspace.mean})
        self.notes = outcome.notes

    def _describe_start(self, data: TrainingSet) -> Ldml:
        """Describe a fit that starts at the identity, or at the principal axes of a descriptor that is wide for it."""
        width, learned_from = data.rows.shape[1], int((1 - self.held_out) * len(require_task(data).faces))
        axes = max(1, min(self.axes, learned_from - 1))
        options = MapOptions(
            start="pca", spherical=1.0, shrink=0.0, rate=self.rate, axes=axes if width > axes else 0,
            operating_weight=self.operating_weight,
        )  # fmt: skip
        return Ldml(
            seed=self.seed, dim=min(width, axes), held_out=self.held_out, device=self.device, batches=self.batches,
            map=options,
        )  # fmt: skip

    def _embed(self, rows: Rows, task: str) -> Rows:
        return embed_linear(self.learned, rows, self.unit)

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return make_linear_maps(self.learned, rows, self.unit)

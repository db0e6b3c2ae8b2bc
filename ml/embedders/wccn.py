"""Within-class covariance normalisation: less weight where photos of one person differ, from pairs of the same.

Source: Hatch, Kajarekar and Stolcke 2006.
"""

from dataclasses import dataclass

from ml.embedders.base import Embedder, Maps, Progress, TrainingSet
from ml.errors import NotFitted, TooFewPairs
from ml.metric_learning.holdout import count_pairs, require_task
from ml.metric_learning.linear_embedding import embed_linear, get_width, make_linear_maps
from ml.options import option
from ml.types import Rows


@dataclass
class Wccn(Embedder):
    """z = A x, where A^-2 is the covariance within people, mixed with the identity.

    With a shrinkage of 1, nothing changes: z = x, or x / |x| with `unit`. Learns the first task alone, from pairs of
    the same; pairs of different people are not used. A descriptor with more numbers than `axes` is first projected
    onto its leading directions.
    """

    shrinkage: float = option(
        0.7, "share of the identity in the covariance; 1: nothing changes, 0: pure normalisation", low=0, high=1
    )
    min_pairs: int = option(10, "smallest number of pairs of the same that a fit accepts", low=0, unit="pairs")
    axes: int = option(512, "largest number of directions in which the map is learned", low=1, unit="axes")
    unit: bool = option(True, "start from the cosine: divide x and z by their norms; off: from the distance of x")
    device: str = option("auto", "auto, cpu or cuda", server_only=True)

    @property
    def width(self) -> int | None:
        return get_width(self.learned)

    def linear_map(self) -> tuple[Rows, Rows] | None:
        if not self.learned:
            raise NotFitted(type(self).__name__)
        return self.learned["projection"], self.learned["offset"]

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        # imported here, because torch takes two seconds to load and embedding does not need it
        from ml.metric_learning.subspace import fit_leading_directions
        from ml.metric_learning.tensors import as_arrays, as_tensor, select_device
        from ml.metric_learning.whitening import fit_within_covariance, make_normalising_map

        task = require_task(data)
        same, _ = count_pairs(task)
        if same < self.min_pairs:
            raise TooFewPairs(f"pairs of the same ({task.task})", self.min_pairs, same)
        self.tasks = (task.task,)
        x = as_tensor(data.rows[task.faces], select_device(self.device))
        if self.unit:
            x = x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)
        axes = fit_leading_directions(x, self.axes, self.seed) if x.shape[1] > self.axes else None
        inside = x if axes is None else x @ axes.T
        normalising = make_normalising_map(fit_within_covariance(inside, task), self.shrinkage)
        projection = normalising if axes is None else normalising @ axes
        self.learned = as_arrays({"projection": projection, "offset": projection.new_zeros(len(projection))})
        self.notes = {"steps": 1}
        progress(1, 1, {})

    def _embed(self, rows: Rows, task: str) -> Rows:
        return embed_linear(self.learned, rows, self.unit)

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return make_linear_maps(self.learned, rows, self.unit)

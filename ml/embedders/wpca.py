"""Whitened principal components, which need no labels; other methods start from them."""

from dataclasses import dataclass

from ml.embedders.base import Embedder, Maps, Progress, TrainingSet
from ml.errors import NotFitted, TooFewPairs, WrongShape
from ml.metric_learning.linear_embedding import embed_linear, get_width, make_linear_maps
from ml.options import option
from ml.types import Rows


@dataclass
class Wpca(Embedder):
    """z = diag(s + floor)^-1 V (x - mean): PCA whose axes all have variance one (002, section 4.2).

    Several descriptors in a row are weighted to equal variance first.
    """

    dim: int = option(64, "numbers of an embedding", low=1, unit="numbers")
    whiten: bool = option(True, "scale every axis to variance one; off: plain PCA")
    sample: int = option(
        4000, "rows from which the axes are computed; the mean is computed from all rows", low=1, unit="rows"
    )
    floor: float = option(
        0.0, "added to each standard deviation, as a share of the largest, so that noise is not amplified", low=0
    )
    unit: bool = option(False, "divide each z by its norm, so that the squared distance is 2 - 2 cos")
    device: str = option("auto", "auto, cpu or cuda", server_only=True)

    @property
    def width(self) -> int | None:
        return get_width(self.learned)

    def linear_map(self) -> tuple[Rows, Rows] | None:
        if not self.learned:
            raise NotFitted(type(self).__name__)
        return self.learned["projection"], self.learned["offset"]

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        if len(data.rows) <= self.dim:
            raise TooFewPairs("faces", self.dim + 1, len(data.rows))
        if data.rows.shape[1] < self.dim:
            raise WrongShape("rows", f"(N, {self.dim} or more)", data.rows.shape)
        # imported here, because torch takes two seconds to load and embedding does not need it
        from ml.metric_learning.principal_axes import fit_principal_axes, whiten_axes
        from ml.metric_learning.tensors import as_tensor, select_device

        rows = as_tensor(data.rows, select_device(self.device))
        axes, deviations, mean = fit_principal_axes(rows, self.dim, self.seed, self.sample, widths=data.widths)
        if self.whiten:
            axes = whiten_axes(axes, deviations, self.floor)
        self.learned = {"projection": axes.cpu().numpy(), "offset": (axes @ mean).cpu().numpy()}
        self.notes = {"steps": 1, "variance": [float(s) ** 2 for s in deviations]}
        progress(1, 1, {})

    def _embed(self, rows: Rows, task: str) -> Rows:
        return embed_linear(self.learned, rows, self.unit)

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return make_linear_maps(self.learned, rows, self.unit)

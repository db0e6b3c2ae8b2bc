"""Whitened principal components: the best that can be done without labels, and where the others start."""

from dataclasses import dataclass

from ml.embedders.base import Progress, TrainingSet
from ml.errors import TooFewPairs, WrongShape
from ml.metric_learning.linear_embedding import Projected


@dataclass
class Wpca(Projected):
    """z = diag(s + floor)^-1 V (x - mean): PCA whose axes all have variance one (002, section 4.2).

    Several descriptors in a row are weighted first so that they vary alike.

    dim: d; whiten: off, it is plain PCA; sample: rows that the axes are computed from (the mean is of all);
    floor: added to each standard deviation, as a share of the largest, so that noise is not blown up;
    unit: divide each z by its norm, so that the squared distance is 2 - 2 cos (WPCA-cosine);
    device: "auto", "cpu" or "cuda".
    """

    dim: int = 64
    whiten: bool = True
    sample: int = 4000
    floor: float = 0.0
    unit: bool = False
    device: str = "auto"

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        if len(data.rows) <= self.dim:
            raise TooFewPairs("faces", self.dim + 1, len(data.rows))
        if data.rows.shape[1] < self.dim:
            raise WrongShape("rows", f"(N, {self.dim} or more)", data.rows.shape)
        from ml.metric_learning.tensors import device_of, principal, tensor  # and with them torch

        rows = tensor(data.rows, device_of(self.device))
        axes, deviations, mean = principal(rows, self.dim, self.seed, self.sample, widths=data.widths)
        if self.whiten:
            axes = axes / (deviations + self.floor * deviations[0]).clamp_min(1e-6 * float(deviations[0]))[:, None]
        self.learned = {"projection": axes.cpu().numpy(), "offset": (axes @ mean).cpu().numpy()}
        self.notes = {"steps": 1, "variance": [float(s) ** 2 for s in deviations]}
        progress(1, 1, {})

"""The triplet loss (001, equation 12)."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Triplet:
    """mean over the triplets of [d2(a, p) - d2(a, n) + margin]_+: squared distances, whatever the length of z.

    The mean is over all triplets, also those that are far enough apart already.
    """

    margin: float = 0.5

    def __call__(self, d2: Tensor, triplets: Tensor, weight: Tensor | None = None) -> Tensor:
        """d2: (B, B) squared distances, through which it can be differentiated; triplets: (T, 3) anchor, positive,
        negative; weight: (T,), which should sum to 1; without it all weigh alike. Returns (), 0 where T = 0.
        """
        anchor, positive, negative = triplets.T
        hinge = (d2[anchor, positive] - d2[anchor, negative] + self.margin).clamp_min(0)
        return hinge.sum() / max(1, len(hinge)) if weight is None else hinge @ weight

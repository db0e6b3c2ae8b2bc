"""The triplet loss (001, equation 12)."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Triplet:
    """The mean over triplets of [d2(a, p) - d2(a, n) + margin]_+, with squared distances of embeddings of any length.

    The mean is over all triplets, including those without loss.
    """

    margin: float = 0.5

    def __call__(self, d2: Tensor, triplets: Tensor, weight: Tensor | None = None) -> Tensor:
        """Compute the loss, (); 0 if T is 0.

        d2: (B, B) squared distances, which may require gradients; triplets: (T, 3) anchors, positives, negatives
        weight: (T,) weights that sum to 1; None: all triplets weigh alike
        """
        anchor, positive, negative = triplets.T
        hinge = (d2[anchor, positive] - d2[anchor, negative] + self.margin).clamp_min(0)
        return hinge.sum() / max(1, len(hinge)) if weight is None else hinge @ weight

"""Whitened principal components of descriptors, as CoSiM and Sub-SML take them in."""

from torch import Tensor

from ml.embedders._pairs import principal


def whitened(rows: Tensor, inner: int, seen: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Axes (r, D) and offset (r,) of x = axes row - offset, r <= inner.

    x has mean 0 and variance 1 over the faces that the pairs speak of: batch normalisation with the averages that it
    would come to, since its input does not change while the network learns.
    rows: (N, D), from all of which the axes come; seen: (S,) indexes of the faces of the pairs.
    """
    axes, deviations, mean = principal(rows, min(inner, rows.shape[1], len(rows) - 1), seed)
    axes = axes / deviations.clamp_min(1e-6 * float(deviations[0]))[:, None]
    x = (rows[seen] - mean) @ axes.T
    spread = x.std(0).clamp_min(1e-6)
    return axes / spread[:, None], (axes @ mean + x.mean(0)) / spread

"""Learn the mean and the spread of each source from unlabelled faces."""

import numpy as np

from ml.compensation.correction import Floats, SourceCompensation, SourceCorrection, Sources
from ml.types import Rows

MEAN_PRIOR_FACES = 10.0
"""The mean of a source with n faces is n / (n + MEAN_PRIOR_FACES) its own; the rest is the reference's."""
SPREAD_PRIOR_FACES = 300.0
"""The same for its spread, which has more numbers to learn."""
ISOTROPIC_SHARE = 0.7
"""The share of an equal spread in all directions that is mixed into each covariance."""
MAX_SPREAD_DIM = 512
"""Wider embeddings are corrected by their mean only."""
MIN_FACES_TO_CORRECT = 5
UNIT_LENGTH_TOLERANCE = 1e-3


def fit_compensation(rows: Rows, sources: Sources, reference: str | None = None) -> SourceCompensation:
    """Learn the corrections of all sources with MIN_FACES_TO_CORRECT faces or more, except the reference.

    rows: (N, d) embeddings, N at least 1; sources: (N,). Nobody needs to know who the faces show.
    reference: the source whose rows stay as they are; by default the one with the most faces

    The mean and the covariance of a source are shrunk towards those of the reference, so that a source of few faces is
    hardly moved. The spread is aligned by the optimal transport map between two normal distributions (Dowson and Landau
    1982). docs/research/sources.md says how the constants were chosen.
    """
    names, counts = np.unique(sources, return_counts=True)
    if reference is None:
        reference = str(names[np.argmax(counts)])
    own = rows[sources == reference].astype(np.float64)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    fit = _ReferenceSource(own)
    corrections = {
        str(name): fit.correct(rows[sources == name].astype(np.float64))
        for name, count in zip(names, counts, strict=True)
        if name != reference and count >= MIN_FACES_TO_CORRECT
    }
    has_unit_length = bool(np.all(np.abs(lengths - 1) < UNIT_LENGTH_TOLERANCE))
    return SourceCompensation(reference, fit.mean, has_unit_length, corrections)


class _ReferenceSource:
    """The mean and the covariance of the reference source."""

    def __init__(self, rows: Floats) -> None:
        self.mean = rows.mean(0)
        self.faces = len(rows)
        self.variance = float(rows.var(0).sum())
        has_spread = rows.shape[1] <= MAX_SPREAD_DIM and self.faces > 1
        self.covariance = np.cov(rows.T, bias=True).reshape(rows.shape[1], -1) if has_spread else None

    def correct(self, rows: Floats) -> SourceCorrection:
        """Learn the correction of another source from its (n, d) rows."""
        faces, mean = len(rows), rows.mean(0)
        weight = faces / (faces + MEAN_PRIOR_FACES)
        difference = mean - self.mean
        by_chance = float(rows.var(0).sum()) / max(1, faces - 1) + self.variance / max(1, self.faces - 1)
        shift = max(0.0, float(difference @ difference) - by_chance) / max(self.variance, np.finfo(np.float64).tiny)
        return SourceCorrection(self.mean + weight * difference, self._align(rows), faces, shift)

    def _align(self, rows: Floats) -> Floats | None:
        """Return the (d, d) map from the source's spread to the reference's; None if it is not learned."""
        if self.covariance is None or not self.variance:
            return None
        weight = len(rows) / (len(rows) + SPREAD_PRIOR_FACES)
        own = weight * np.cov(rows.T, bias=True).reshape(rows.shape[1], -1) + (1 - weight) * self.covariance
        return _transport(_mix_isotropic(own), _mix_isotropic(self.covariance))


def _mix_isotropic(covariance: Floats) -> Floats:
    dim = len(covariance)
    equal = np.trace(covariance) / dim * np.eye(dim)
    mixed: Floats = (1 - ISOTROPIC_SHARE) * covariance + ISOTROPIC_SHARE * equal
    return mixed


def _transport(source: Floats, target: Floats) -> Floats:
    """Return the symmetric matrix T with T @ source @ T = target, for positive definite matrices."""
    values, axes = np.linalg.eigh(source)
    root, inverse_root = (axes * np.sqrt(values)) @ axes.T, (axes / np.sqrt(values)) @ axes.T
    inner_values, inner_axes = np.linalg.eigh(root @ target @ root)
    inner_root = (inner_axes * np.sqrt(np.maximum(inner_values, 0))) @ inner_axes.T
    transport: Floats = inverse_root @ inner_root @ inverse_root
    return transport

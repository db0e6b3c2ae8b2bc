"""Learn the mean and the spread of each source from unlabelled faces."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ml.compensation.correction import Floats, SourceCompensation, SourceCorrection, Sources
from ml.compensation.simulation import SimulatedFaces
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
MAX_SOURCES = 100
MAX_CORRECTIONS_BYTES = 64 * 2**20
"""Of the corrections of all sources. While they are judged there are up to six times as many."""
PAIRS_PRIOR = 500.0
"""The covariance of n good faces with their simulations has the weight n / (n + PAIRS_PRIOR); the rest is the
transport map's."""
SIMULATION_ISOTROPIC_SHARE = 0.1
"""As ISOTROPIC_SHARE, for the covariance of simulated faces."""
WHITENING_EXPONENT = -0.25
"""Of the reference's covariance, in the correction by simulation: lower, and poor photos find more in a gallery of good
ones; higher, and good photos find more among poor ones."""
UNIT_LENGTH_TOLERANCE = 1e-3


def fit_compensation(
    rows: Rows,
    sources: Sources,
    reference: str | None = None,
    simulations: Mapping[str, SimulatedFaces] | None = None,
) -> SourceCompensation:
    """Learn the corrections of all sources with MIN_FACES_TO_CORRECT faces or more, except the reference.

    rows: (N, d) embeddings, N at least 1; sources: (N,). Nobody needs to know who the faces show.
    reference: the source whose rows stay as they are; by default the one with the most faces
    simulations: faces of the reference degraded so that they resemble a source, for some of the sources

    The mean and the covariance of a source are shrunk towards those of the reference, so that a source of few faces is
    hardly moved. The spread is aligned by the optimal transport map between two normal distributions (Dowson and Landau
    1982), or by a regression on simulated faces. docs/research/sources.md says how the constants were chosen.
    """
    names, counts = np.unique(sources, return_counts=True)
    if reference is None:
        reference = find_reference(sources)
    fit = _ReferenceSource(rows[sources == reference].astype(np.float64))
    corrections = {
        str(name): fit.correct(rows[sources == name].astype(np.float64))
        for name, count in zip(names, counts, strict=True)
        if name != reference and count >= MIN_FACES_TO_CORRECT
    }
    has_unit = has_unit_length(rows)
    if has_unit and fit.covariance is not None and fit.variance:
        for name, simulated in (simulations or {}).items():
            if name in corrections and len(simulated.faces):
                own = rows[sources == name].astype(np.float64)
                corrections[name] = fit.correct_by_simulation(corrections[name], own, rows, simulated)
    return SourceCompensation(reference, fit.mean, has_unit, corrections)


def limit_sources(dim: int) -> int:
    """Return how many sources of embeddings with `dim` numbers are corrected at most, beside the reference."""
    numbers = dim * dim if dim <= MAX_SPREAD_DIM else dim
    return min(MAX_SOURCES, MAX_CORRECTIONS_BYTES // (8 * numbers))


def find_reference(sources: Sources) -> str:
    """Return the source with the most faces. sources: (N,), N at least 1"""
    names, counts = np.unique(sources, return_counts=True)
    return str(names[np.argmax(counts)])


def has_unit_length(rows: Rows) -> bool:
    """Whether all (N, d) rows have unit length."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    return bool(np.all(np.abs(lengths - 1) < UNIT_LENGTH_TOLERANCE))


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

    def correct_by_simulation(
        self, plain: SourceCorrection, own: Floats, rows: Rows, simulation: SimulatedFaces
    ) -> SourceCorrection:
        """Learn the correction of a source from pairs of a good face and its simulation.

        plain: the correction without simulation; own: (n, d) rows of the source; rows: that the simulation points to

        With the covariances D of the simulations, C of the reference and X between both, a row x of the source becomes
        (x - mean) D^-1 X C^-1/4: the good face that is expected of it, whitened in part. It loses its part along the
        mean of the reference, is scaled so that it varies as much as the reference does, and moves to that mean. So a
        search from the reference meets the corrected faces of strangers as often as their good faces.
        """
        assert self.covariance is not None, "the caller asks only where there is a spread"
        good, degraded = rows[simulation.faces].astype(np.float64), simulation.rows.astype(np.float64)
        expected = self.mean + degraded.mean(0) - good.mean(0)
        weight = len(own) / (len(own) + MEAN_PRIOR_FACES)
        mean = expected + weight * (own.mean(0) - expected)
        good, degraded = good - good.mean(0), degraded - degraded.mean(0)
        covariance = degraded.T @ degraded / len(degraded)
        by_transport = covariance if plain.spread is None else covariance @ plain.spread
        share = len(good) / (len(good) + PAIRS_PRIOR)
        crossed = share * (degraded.T @ good / len(good)) + (1 - share) * by_transport
        predicted = np.linalg.solve(_mix_isotropic(covariance, SIMULATION_ISOTROPIC_SHARE), crossed)
        spread = predicted @ _raise(_mix_isotropic(self.covariance), WHITENING_EXPONENT)
        tiny = np.finfo(np.float64).tiny
        spread -= np.outer(spread @ self.mean, self.mean) / max(float(self.mean @ self.mean), tiny)
        spread *= np.sqrt(self.variance / max(float(np.sum((covariance @ spread) * spread)), tiny))
        return replace(plain, mean=mean, spread=spread, degradation=simulation.degradation)

    def _align(self, rows: Floats) -> Floats | None:
        """Return the (d, d) map from the source's spread to the reference's; None if it is not learned."""
        if self.covariance is None or not self.variance:
            return None
        weight = len(rows) / (len(rows) + SPREAD_PRIOR_FACES)
        own = weight * np.cov(rows.T, bias=True).reshape(rows.shape[1], -1) + (1 - weight) * self.covariance
        return _transport(_mix_isotropic(own), _mix_isotropic(self.covariance))


def _mix_isotropic(covariance: Floats, share: float = ISOTROPIC_SHARE) -> Floats:
    dim = len(covariance)
    mixed: Floats = (1 - share) * covariance + share * np.trace(covariance) / dim * np.eye(dim)
    return mixed


def _raise(matrix: Floats, exponent: float) -> Floats:
    """Return a power of a positive definite matrix."""
    values, axes = np.linalg.eigh(matrix)
    power: Floats = (axes * values**exponent) @ axes.T
    return power


def _transport(source: Floats, target: Floats) -> Floats:
    """Return the symmetric matrix T with T @ source @ T = target, for positive definite matrices."""
    values, axes = np.linalg.eigh(source)
    root, inverse_root = (axes * np.sqrt(values)) @ axes.T, (axes / np.sqrt(values)) @ axes.T
    inner_values, inner_axes = np.linalg.eigh(root @ target @ root)
    inner_root = (inner_axes * np.sqrt(np.maximum(inner_values, 0))) @ inner_axes.T
    transport: Floats = inverse_root @ inner_root @ inverse_root
    return transport

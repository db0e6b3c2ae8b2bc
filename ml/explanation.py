"""Explain a distance: how much each cell of the face and each descriptor contributes. The parts are exact.

For a linear embedding, d = |L (x - y)|^2 = sum_j (x_j - y_j) (L^T L (x - y))_j. This is one term for each number of the
descriptor, and the terms are summed by the cell that a number describes. A contribution can be
negative, because the terms of different cells interact through the same axes.

    for explanation in explain_distances(model, row, others):
        explanation.parts[0].cells        (17, 10) for LBP

All cells of all parts and the rest sum to the distance.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.descriptors.base import CellLayout
from ml.embedders.base import Maps
from ml.errors import NotLinear
from ml.model import Model, Recipe
from ml.types import CropKind, Rows

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DescriptorContribution:
    """The contribution of one descriptor to a distance.

    contribution: the sum over its cells; cells: (layout.rows, layout.columns) float64
    layout, cells: None if the descriptor has no cells
    """

    descriptor: str
    crop: CropKind
    contribution: float
    layout: CellLayout | None
    cells: Floats | None


@dataclass(frozen=True, eq=False)
class DistanceExplanation:
    """A squared distance (float64) and its parts: the contributions of the parts and `rest` sum to `distance`.

    rest: the part that no cell contributes. It is 0 for a single linear map. With CLML it comes from faces in different
        local maps, with embeddings of unit length from their different norms.
    """

    distance: float
    parts: tuple[DescriptorContribution, ...]
    rest: float


def explain_distances(model: Model, row: Rows, others: Rows, task: str = "identity") -> list[DistanceExplanation]:
    """Explain the distances between one face and n others.

    row: (D,) descriptors of the one; others: (n, D) descriptors of the others
    Raises NotLinear if the embedder is not made of linear maps; WrongShape, NotFitted, NotFinite.
    """
    rows = np.concatenate([row[None], others])
    model.embed(rows[:1], task)  # raises if the row cannot be embedded
    maps = model.embedder.maps(rows, task)
    if maps is None:
        raise NotLinear(f"the embedder {model.embedder_name}")
    values, rest = compute_contributions(maps)
    return [
        DistanceExplanation(float(of.sum() + over), tuple(_parts(model.recipe, of)), float(over))
        for of, over in zip(values, rest, strict=True)
    ]


def compute_contributions(maps: Maps) -> tuple[Floats, Floats]:
    """Split the distances of the first row to n others: (n, D) contributions of each number, and (n,) the rest.

    With q the shares, and m and D the mean and the difference of two faces,
    z_x - z_y = sum_s mq_s L_s (x - y) + Dq_s (L_s mx - o_s). The first term is split by number, the second is the rest.
    Neither depends on the origin of the descriptor.
    """
    x, others = maps.rows[:1].astype(np.float64), maps.rows[1:].astype(np.float64)
    if maps.projections is None:
        return (x - others) ** 2, np.zeros(len(others))
    shares = maps.shares.astype(np.float64)
    mean, difference = (shares[:1] + shares[1:]) / 2, shares[:1] - shares[1:]
    met = np.flatnonzero(shares.any(axis=0))
    turned = {s: (_turned(maps, s, x - others), _turned(maps, s, (x + others) / 2) - maps.offsets[s]) for s in met}
    z = sum(
        (mean[:, [s]] * by + difference[:, [s]] * off for s, (by, off) in turned.items()), np.zeros((len(others), 1))
    )
    values = np.zeros(others.shape)
    for s in met:
        values += mean[:, [s]] * (z @ maps.projections[s].astype(np.float64))
    rest = sum((difference[:, s] * (z * off).sum(axis=1) for s, (_, off) in turned.items()), np.zeros(len(others)))
    return values * (x - others), rest


def _turned(maps: Maps, s: np.int64, rows: Floats) -> Floats:
    assert maps.projections is not None, "the identity has no projections"
    projected: Floats = rows @ maps.projections[s].astype(np.float64).T
    return projected


def _parts(recipe: Recipe, values: Floats) -> Iterator[DescriptorContribution]:
    """Split (D,) contributions by descriptor and cell."""
    start = 0
    for spec, descriptor in zip(recipe.descriptors, recipe.built, strict=True):
        own, cells = values[start : start + descriptor.dim], descriptor.cells
        start += descriptor.dim
        summed: Floats | None = None
        if cells is not None:
            by_cell = np.bincount(cells.cell_numbers, own, cells.rows * cells.columns).astype(np.float64)
            summed = by_cell.reshape(cells.rows, cells.columns)
        yield DescriptorContribution(spec.name, descriptor.crop, float(own.sum()), cells, summed)

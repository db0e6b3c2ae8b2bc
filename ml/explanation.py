"""Which cells of the face and which descriptors made a distance: its exact parts, not an estimate.

A linear embedding makes d = |L (x - y)|^2 = sum_j (x_j - y_j) (L^T L (x - y))_j, one part for each number of the
descriptor, and numbers are summed by the cell that they tell of. A part above 0 draws the two faces apart; one below 0
draws them together, since cells speak through the same axes.

    for told in explain(generation, row, others):
        told.parts[0].cells        (17, 10) for LBP; all cells of all parts, and told.rest, sum to told.distance
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
    """What one descriptor made of a distance: `contribution` is the sum of its `cells`.

    cells: (layout.rows, layout.columns) float64; both None where the descriptor has no cells
    """

    descriptor: str
    crop: CropKind
    contribution: float
    layout: CellLayout | None
    cells: Floats | None


@dataclass(frozen=True, eq=False)
class DistanceExplanation:
    """The contributions of the parts and `rest` sum to `distance`, the squared distance in float64.

    rest: what no cell made. 0 for one linear map; with CLML it is what came of the faces' belonging to different
    local maps, with rows of unit length (`wpca` with `unit`) what came of their different lengths
    """

    distance: float
    parts: tuple[DescriptorContribution, ...]
    rest: float


def explain(generation: Model, row: Rows, others: Rows, task: str = "identity") -> list[DistanceExplanation]:
    """The distances between one face and each of several, taken apart.

    row: (D,) descriptors of the one; others: (n, D). Raises NotLinear, WrongShape, NotFitted, NotFinite.
    """
    rows = np.concatenate([row[None], others])
    generation.embed(rows[:1], task)  # complains of what cannot be embedded
    maps = generation.embedder.maps(rows, task)
    if maps is None:
        raise NotLinear(f"the embedder {generation.embedder_name}")
    values, rest = contributions(maps)
    return [
        DistanceExplanation(float(of.sum() + over), tuple(_parts(generation.recipe, of)), float(over))
        for of, over in zip(values, rest, strict=True)
    ]


def contributions(maps: Maps) -> tuple[Floats, Floats]:
    """(n, D) what each number made of the distances of the first row to n others, and (n,) what none of them made.

    With q the shares, and m and D for the mean and the difference of two faces, one has
    z_x - z_y = sum_s mq_s L_s (x - y) + Dq_s (L_s mx - o_s): the first term by number, the second is the rest. Taken
    so, neither depends on where the descriptor has its origin.
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
    assert maps.projections is not None, "the identity turns nothing"
    projected: Floats = rows @ maps.projections[s].astype(np.float64).T
    return projected


def _parts(recipe: Recipe, values: Floats) -> Iterator[DescriptorContribution]:
    """values: (D,), those of each descriptor after those of the one before."""
    start = 0
    for spec, descriptor in zip(recipe.descriptors, recipe.built, strict=True):
        own, cells = values[start : start + descriptor.dim], descriptor.cells
        start += descriptor.dim
        summed: Floats | None = None
        if cells is not None:
            by_cell = np.bincount(cells.cell_numbers, own, cells.rows * cells.columns).astype(np.float64)
            summed = by_cell.reshape(cells.rows, cells.columns)
        yield DescriptorContribution(spec.name, descriptor.crop, float(own.sum()), cells, summed)

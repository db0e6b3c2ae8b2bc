"""The square patch that our landmark model sees, and where in it the five points of an average face lie."""

import numpy as np
from numpy.typing import NDArray

from ml.geometry import Matrix, scaled, similarity
from ml.types import Box, Points

SIDE = 64
EYES = 20.0
"""Pixels between the eyes of an average face in the patch."""
SHAPE: NDArray[np.float64] = np.array([(-0.5, -0.525), (0.5, -0.525), (0.0, 0.06), (-0.43, 0.495), (0.43, 0.495)])
"""An average face in eye distances, the origin in the middle of the patch."""
TEMPLATE: NDArray[np.float64] = SHAPE * EYES + (SIDE - 1) / 2

WIDE, ROOM = 128, 1.25
"""A wide patch is this many pixels wide and this much finer: varied patches are cut from it and not from the photo."""
WIDE_TEMPLATE: NDArray[np.float64] = SHAPE * EYES * ROOM + (WIDE - 1) / 2

BOX_EYES, BOX_SHIFT = 0.42, 0.0
"""Of the boxes of dlib's detector: eye distance over box width; where the patch's middle lies below the box's."""


def of_box(box: Box, eyes: float = BOX_EYES, shift: float = BOX_SHIFT) -> Matrix:
    """Photo -> patch, as far as a box tells. Returns (2, 3)."""
    middle = np.array([box.x + (box.width - 1) / 2, box.y + (box.height - 1) / 2 + shift * box.height])
    return scaled(EYES / (eyes * box.width), middle, np.full(2, (SIDE - 1) / 2))


def of_points(points: Points) -> Matrix:
    """Photo -> patch, upright, as the points tell. points: (5, 2). Returns (2, 3)."""
    return similarity(points, TEMPLATE)


def widened(frame: Matrix) -> Matrix:
    """Photo -> wide patch, from photo -> patch. Both are (2, 3)."""
    linear, shift = frame[:, :2] * ROOM, (frame[:, 2] - (SIDE - 1) / 2) * ROOM + (WIDE - 1) / 2
    return np.column_stack([linear, shift])


def look(turn: float, zoom: float, shift: tuple[float, float] = (0.0, 0.0)) -> Matrix:
    """Wide patch -> patch: turned by degrees, zoomed, shifted by eye distances, about the middle. Returns (2, 3)."""
    by = np.exp(1j * np.radians(turn)) * zoom / ROOM
    linear = np.array([[by.real, -by.imag], [by.imag, by.real]])
    to = np.multiply(shift, EYES) + (SIDE - 1) / 2
    return np.column_stack([linear, to - linear @ np.full(2, (WIDE - 1) / 2)])


def normal(patches: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, SIDE, SIDE) grey in 0..1 -> (n, 1, SIDE, SIDE) of zero mean and unit SD each: what the net takes."""
    patches = patches - patches.mean((1, 2), keepdims=True)
    return np.asarray((patches / (patches.std((1, 2), keepdims=True) + 1e-3))[:, None], np.float32)

"""The square patch that the landmark network takes, and the positions of an average face's landmarks in it."""

import numpy as np
from numpy.typing import NDArray

from ml.geometry import Matrix, scaled, similarity
from ml.types import Box, Points

PATCH_PIXELS = 64
EYE_DISTANCE_PIXELS = 20.0
"""Distance between the eyes of an average face in the patch."""
AVERAGE_FACE: NDArray[np.float64] = np.array(
    [(-0.5, -0.525), (0.5, -0.525), (0.0, 0.06), (-0.43, 0.495), (0.43, 0.495)]
)
"""The five landmarks of an average face in eye distances; the origin is the centre of the patch."""
TEMPLATE: NDArray[np.float64] = AVERAGE_FACE * EYE_DISTANCE_PIXELS + (PATCH_PIXELS - 1) / 2

WIDE_PATCH_PIXELS, WIDE_PATCH_SCALE = 128, 1.25
"""Side and relative resolution of a wide patch, from which views of a face are cut, instead of from the photo."""
WIDE_TEMPLATE: NDArray[np.float64] = AVERAGE_FACE * EYE_DISTANCE_PIXELS * WIDE_PATCH_SCALE + (WIDE_PATCH_PIXELS - 1) / 2

BOX_EYE_SHARE, BOX_SHIFT = 0.42, 0.0
"""For the boxes of dlib's detector: eye distance over box width, and how far the patch's centre lies below the box's,
as a share of its height."""


def frame_from_box(box: Box, eyes: float = BOX_EYE_SHARE, shift: float = BOX_SHIFT) -> Matrix:
    """Return the photo -> patch transform estimated from a face's box: (2, 3)."""
    middle = np.array([box.x + (box.width - 1) / 2, box.y + (box.height - 1) / 2 + shift * box.height])
    return scaled(EYE_DISTANCE_PIXELS / (eyes * box.width), middle, np.full(2, (PATCH_PIXELS - 1) / 2))


def frame_from_landmarks(points: Points) -> Matrix:
    """Return the photo -> patch transform that turns a face with (5, 2) landmarks upright: (2, 3)."""
    return similarity(points, TEMPLATE)


def widen_frame(frame: Matrix) -> Matrix:
    """Convert a photo -> patch transform to the photo -> wide patch transform. Both are (2, 3)."""
    linear, shift = (
        frame[:, :2] * WIDE_PATCH_SCALE,
        (frame[:, 2] - (PATCH_PIXELS - 1) / 2) * WIDE_PATCH_SCALE + (WIDE_PATCH_PIXELS - 1) / 2,
    )
    return np.column_stack([linear, shift])


def view_transform(turn: float, zoom: float, shift: tuple[float, float] = (0.0, 0.0)) -> Matrix:
    """Return a wide patch -> patch transform (2, 3) that rotates, zooms and shifts about the centre.

    turn: degrees; zoom: factor; shift: eye distances
    """
    by = np.exp(1j * np.radians(turn)) * zoom / WIDE_PATCH_SCALE
    linear = np.array([[by.real, -by.imag], [by.imag, by.real]])
    to = np.multiply(shift, EYE_DISTANCE_PIXELS) + (PATCH_PIXELS - 1) / 2
    return np.column_stack([linear, to - linear @ np.full(2, (WIDE_PATCH_PIXELS - 1) / 2)])


def normalise_patches(patches: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert (n, S, S) grey patches in 0..1 to the network's input: (n, 1, S, S), each with zero mean and unit SD."""
    patches = patches - patches.mean((1, 2), keepdims=True)
    return np.asarray((patches / (patches.std((1, 2), keepdims=True) + 1e-3))[:, None], np.float32)

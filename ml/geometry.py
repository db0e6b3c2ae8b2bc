"""Similarity transforms, and crops cut by them. A matrix is (2, 3) float64: p = matrix @ (x, y, 1)."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
IDENTITY: Matrix = np.eye(2, 3)


def similarity(source: NDArray[Any], target: NDArray[Any]) -> Matrix:
    """Fit the rotation, scale and shift that map (n, 2) source points to (n, 2) target points by least squares.

    Returns (2, 3). It never reflects. If all source points coincide, the scale is 1. Source: Umeyama 1991.
    """
    from_mean, to_mean = source.mean(0, dtype=np.float64), target.mean(0, dtype=np.float64)
    a = (source - from_mean) @ (1, 1j)
    b = (target - to_mean) @ (1, 1j)
    spread = float((a * a.conj()).real.sum())
    turn = complex((a.conj() @ b) / spread) if spread > 0 else 1 + 0j
    return _matrix(turn, from_mean, to_mean)


def _matrix(turn: complex, from_point: NDArray[Any], to_point: NDArray[Any]) -> Matrix:
    """Return the similarity that multiplies points, as complex numbers, by `turn` and maps one point to another."""
    linear = np.array([[turn.real, -turn.imag], [turn.imag, turn.real]])
    return np.column_stack([linear, to_point - linear @ from_point])


def scaled(scale: float, from_point: NDArray[Any], to_point: NDArray[Any]) -> Matrix:
    """Return the (2, 3) matrix that scales without rotation and maps `from_point` (2,) to `to_point` (2,)."""
    return _matrix(complex(scale), from_point, to_point)


def moved(matrix: Matrix, points: NDArray[Any]) -> NDArray[np.float32]:
    """Transform (..., 2) points by a (2, 3) matrix."""
    return np.asarray(points @ matrix[:, :2].T + matrix[:, 2], np.float32)


def inverse(matrix: Matrix) -> Matrix:
    """Return the inverse of a (2, 3) transform: (2, 3)."""
    back = np.linalg.inv(matrix[:, :2])
    return np.column_stack([back, -back @ matrix[:, 2]])


def warp(image: NDArray[np.uint8], matrix: Matrix, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Transform a picture, (H, W) or (H, W, 3): its pixel q moves to `matrix @ (q, 1)` in the result.

    matrix: (2, 3); size: (width, height) of the result. Interpolation is bilinear. A picture that is reduced to half or
    less is averaged first. Pixels outside the picture repeat its edge.
    """
    if size == image.shape[1::-1] and np.array_equal(matrix, IDENTITY):
        return image.copy()
    scale = float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))
    step = int(min(1 / max(scale, 1e-6), *image.shape[:2]))
    if step > 1:
        height, width = image.shape[0] // step, image.shape[1] // step
        whole = image[: height * step, : width * step]
        image = np.asarray(cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
        shift = matrix[:, 2] + matrix[:, :2] @ np.full(2, (step - 1) / 2)
        matrix = np.column_stack([matrix[:, :2] * step, shift])
    return np.asarray(cv2.warpAffine(image, matrix, size, borderMode=cv2.BORDER_REPLICATE), np.uint8)


def rescale(image: NDArray[np.uint8], scale: float, interpolation: int) -> NDArray[np.uint8]:
    """Enlarge or reduce a picture, (H, W) or (H, W, 3), by a factor. A side that would vanish keeps one pixel."""
    height, width = (round(scale * side) for side in image.shape[:2])
    if width and height:
        return np.asarray(cv2.resize(image, None, fx=scale, fy=scale, interpolation=interpolation), np.uint8)
    size = max(1, width), max(1, height)
    return np.asarray(cv2.resize(image, size, interpolation=interpolation), np.uint8)


def grey(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert (H, W, 3) RGB to (H, W) grey: 0.299 R + 0.587 G + 0.114 B."""
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)

"""Similarity transforms and the pictures that they cut. A matrix is (2, 3) float64: p = matrix @ (x, y, 1)."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def similarity(source: NDArray[Any], target: NDArray[Any]) -> Matrix:
    """The turn, scale and shift that bring (n, 2) points nearest to others: least squares (Umeyama 1991).

    A mirror image is never made. Points that all lie in one place keep their scale.
    """
    from_mean, to_mean = source.mean(0, dtype=np.float64), target.mean(0, dtype=np.float64)
    a = (source - from_mean) @ (1, 1j)
    b = (target - to_mean) @ (1, 1j)
    spread = float((a * a.conj()).real.sum())
    turn = complex((a.conj() @ b) / spread) if spread > 0 else 1 + 0j
    return _matrix(turn, from_mean, to_mean)


def _matrix(turn: complex, from_point: NDArray[Any], to_point: NDArray[Any]) -> Matrix:
    """The similarity that multiplies by `turn`, points being complex numbers, and moves one point to another."""
    linear = np.array([[turn.real, -turn.imag], [turn.imag, turn.real]])
    return np.column_stack([linear, to_point - linear @ from_point])


def scaled(scale: float, from_point: NDArray[Any], to_point: NDArray[Any]) -> Matrix:
    """Scale, no turn; one point goes to another. Points are (2,)."""
    return _matrix(complex(scale), from_point, to_point)


def moved(matrix: Matrix, points: NDArray[Any]) -> NDArray[np.float32]:
    """(..., 2) points under the transform."""
    return np.asarray(points @ matrix[:, :2].T + matrix[:, 2], np.float32)


def inverse(matrix: Matrix) -> Matrix:
    """The way back. matrix: (2, 3)."""
    back = np.linalg.inv(matrix[:, :2])
    return np.column_stack([back, -back @ matrix[:, 2]])


def warp(image: NDArray[np.uint8], matrix: Matrix, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The (width, height) picture whose pixel `matrix @ (q, 1)` shows the photo's pixel q.

    Bilinear; a photo that is shrunk to half or less is averaged first. Outside the photo its rim is repeated.
    """
    scale = float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))
    step = int(min(1 / max(scale, 1e-6), *image.shape[:2]))
    if step > 1:
        height, width = image.shape[0] // step, image.shape[1] // step
        whole = image[: height * step, : width * step]
        image = np.asarray(cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
        shift = matrix[:, 2] + matrix[:, :2] @ np.full(2, (step - 1) / 2)
        matrix = np.column_stack([matrix[:, :2] * step, shift])
    return np.asarray(cv2.warpAffine(image, matrix, size, borderMode=cv2.BORDER_REPLICATE), np.uint8)


def grey(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(H, W, 3) RGB -> (H, W): 0.299 R + 0.587 G + 0.114 B."""
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)

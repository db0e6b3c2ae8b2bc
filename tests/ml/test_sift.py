"""SIFT at nine points: equal to its definition in loops, and to OpenCV's where OpenCV rounds nothing."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ml.descriptors.sift import BLUR_SD_PIXELS, POINTS, SCALES, Sift
from ml.types import Crops

Floats = NDArray[np.float64]


def a_face(seed: int) -> Crops:
    """Draw (170, 100) smooth noise over the whole range."""
    smooth = blurred(np.random.default_rng(seed).normal(size=(170, 100)), 1.0 + seed % 3)
    spread: Floats = 255 * (smooth - smooth.min()) / np.ptp(smooth)
    return spread.astype(np.uint8)


def blurred(image: Floats, sigma: float) -> Floats:
    return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma), np.float64)


def smaller(crop: Crops, scale: int) -> Floats:
    """Shrink: each square of `scale` pixels becomes one; the edge is repeated to fill the last squares."""
    high, wide = -(-170 // scale), -(-100 // scale)
    full = np.pad(crop.astype(np.float64), ((0, high * scale - 170), (0, wide * scale - 100)), "edge")
    return np.asarray(full.reshape(high, scale, wide, scale).mean(axis=(1, 3)))


def slow_sift(image: Floats, x: float, y: float, pixels: tuple[int, int]) -> Floats:
    """Compute Lowe's section 6 for one upright keypoint with bins of 4 pixels, in loops over pixels and bins."""
    histograms = np.zeros((4, 4, 8))
    for row in range(1, pixels[0] - 1):
        for column in range(1, pixels[1] - 1):
            v, u = (row - y) / 4, (column - x) / 4
            if max(abs(u), abs(v)) >= 2.5:
                continue
            dx = image[row, column + 1] - image[row, column - 1]
            dy = image[row - 1, column] - image[row + 1, column]
            turn = (np.arctan2(dy, dx) / (2 * np.pi) * 8) % 8
            size = np.hypot(dx, dy) * np.exp(-(u**2 + v**2) / 8)
            for i in range(4):
                for j in range(4):
                    near = max(0, 1 - abs(v - (i - 1.5))) * max(0, 1 - abs(u - (j - 1.5)))
                    low = int(turn)
                    histograms[i, j, low % 8] += size * near * (1 - (turn - low))
                    histograms[i, j, (low + 1) % 8] += size * near * (turn - low)
    unit = histograms.ravel() / np.linalg.norm(histograms)
    cut = np.minimum(unit, 0.2)
    return np.asarray(cut / np.linalg.norm(cut))


@pytest.mark.parametrize("seed", range(2))
def test_sift_equals_a_loop_over_pixels(seed: int) -> None:
    crop = a_face(seed)
    described = Sift().describe(crop[None]).reshape(3, 9, 128)
    for k, scale in enumerate(SCALES):
        image = blurred(smaller(crop, scale), float(BLUR_SD_PIXELS))
        for p, (x, y) in enumerate(POINTS):
            at = (x + 0.5) / scale - 0.5, (y + 0.5) / scale - 0.5
            wanted = slow_sift(image, *at, (170 // scale, 100 // scale))
            np.testing.assert_allclose(described[k, p], wanted, atol=1e-5)


@pytest.mark.parametrize(("k", "min_cosine"), [(0, 0.9999), (1, 0.98), (2, 0.95)])
def test_it_agrees_with_opencv_which_puts_keypoints_on_whole_pixels(k: int, min_cosine: float) -> None:
    scale = SCALES[k]
    for seed in range(5):
        crop = a_face(seed)
        keypoints = [cv2.KeyPoint((x + 0.5) / scale - 0.5, (y + 0.5) / scale - 0.5, 4 / 1.5, 0) for x, y in POINTS]
        grey = np.round(smaller(crop, scale)).astype(np.uint8)
        kept, theirs = cv2.SIFT_create(sigma=4 / 3).compute(grey, keypoints)  # type: ignore[attr-defined]
        assert len(kept) == 9
        ours = Sift().describe(crop[None]).reshape(3, 9, 128)[k]
        likeness = (ours * theirs).sum(axis=1) / np.linalg.norm(theirs, axis=1)
        assert likeness.min() > min_cosine


def test_a_face_is_3456_numbers_and_each_patch_has_unit_length() -> None:
    row = Sift().describe(a_face(0)[None])
    assert row.shape == (1, 3456)
    np.testing.assert_allclose((row.reshape(27, 128) ** 2).sum(axis=1), 1, atol=1e-5)
    assert row.min() >= 0


def test_light_changes_nothing_and_contrast_next_to_nothing() -> None:
    dark = a_face(1) // 4
    plain, bright, strong = Sift().describe(np.stack([dark, dark + 150, dark * 4]))
    np.testing.assert_allclose(plain, bright, atol=2e-5)
    np.testing.assert_allclose(plain, strong, atol=2e-5)


def test_a_uniform_picture_has_a_zero_descriptor() -> None:
    assert not Sift().describe(np.full((2, 170, 100), 77, np.uint8)).any()


def test_a_brighter_right_points_right_and_a_brighter_top_points_up() -> None:
    across = np.tile(np.linspace(0, 250, 100), (170, 1)).astype(np.uint8)
    down = np.tile(np.linspace(250, 0, 170)[:, None], (1, 100)).astype(np.uint8)
    right, up = Sift().describe(np.stack([across, down])).reshape(2, 27, 16, 8).sum(axis=(1, 2))
    assert right.argmax() == 0
    assert up.argmax() == 2
    assert right[0] > 0.95 * right.sum()
    assert up[2] > 0.95 * up.sum()


def test_the_points_are_as_symmetric_as_the_face() -> None:
    mirrored = {(100 - x, y) for x, y in POINTS}
    assert mirrored == set(POINTS)
    assert len(mirrored) == 9


def test_gradients_are_counted_in_the_cell_that_contains_them() -> None:
    cells = Sift().cells
    assert (cells.rows, cells.columns, cells.size, cells.cell_numbers.shape) == (17, 10, 10, (3456,))
    one = a_face(2)
    for row, column in ((6, 2), (9, 5), (11, 7)):
        other = one.copy()
        other[row * 10 + 3 : row * 10 + 7, column * 10 + 3 : column * 10 + 7] ^= 255
        change = np.abs(Sift().describe(one[None]) - Sift().describe(other[None]))[0] ** 2
        by_square = np.bincount(cells.cell_numbers, change, 170).reshape(17, 10)
        near = by_square[row - 1 : row + 2, column - 1 : column + 2].sum()
        assert near > 0.5 * by_square.sum()

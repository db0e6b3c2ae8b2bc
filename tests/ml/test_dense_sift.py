"""Dense SIFT: equal to a loop over pixels and, where Debian's libvlfeat1 is, to VLFeat's own."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks import vlfeat
from ml.descriptors.common.dense_sift import DenseSift
from ml.types import Crops
from tests.ml.test_lbp import a_picture

Floats = NDArray[np.float64]
CPU = torch.device("cpu")


def root_sift(crops: Crops, stride: int = 1, dtype: torch.dtype = torch.float64) -> Floats:
    """(B, T, 128)"""
    patches = DenseSift(stride, CPU, dtype).patches(torch.from_numpy(crops))
    return (patches.rooted / patches.length[:, None]).mT.double().numpy()


def slow_root_sift(crop: Crops, top: int, left: int) -> Floats:
    """The patch whose first row and column these are: a share of each pixel for each cell that it reaches."""
    grey = crop.astype(float)
    cells = np.zeros((8, 4, 4))
    for row in range(4):
        for column in range(4):
            for dy in range(-5, 6):
                for dx in range(-5, 6):
                    y = min(max(top + 3 + 6 * row + dy, 0), 169)
                    x = min(max(left + 3 + 6 * column + dx, 0), 99)
                    by_y, by_x = slope(grey[:, x], y), slope(grey[y], x)
                    share = (1 - abs(dy) / 6) * (1 - abs(dx) / 6) * np.hypot(by_y, by_x)
                    turn = np.arctan2(by_y, by_x) % (2 * np.pi) / (2 * np.pi) * 8
                    first = int(turn)
                    cells[first % 8, row, column] += share * (1 - (turn - first))
                    cells[(first + 1) % 8, row, column] += share * (turn - first)
            cells[:, row, column] *= window(row) * window(column)
    cut = np.minimum(cells, 0.2 * np.linalg.norm(cells)).ravel()
    return np.sqrt(cut / cut.sum()) if cut.any() else cut


def slope(values: Floats, at: int) -> float:
    before, after = max(at - 1, 0), min(at + 1, len(values) - 1)
    return float((values[after] - values[before]) / (after - before))


def window(cell: int) -> float:
    away = np.arange(-5, 6) - 6 * (cell - 1.5)
    return float(np.exp(-(away**2) / (2 * 12**2)).mean())


@pytest.mark.parametrize("seed", range(4))
def test_a_patch_equals_a_loop_over_pixels(seed: int) -> None:
    draw, crop = np.random.default_rng(seed), a_picture(seed)
    rows = root_sift(crop[None])[0].reshape(147, 77, 128)
    quick = root_sift(crop[None], dtype=torch.float32)[0].reshape(147, 77, 128)
    corners = [(0, 0), (146, 76), (0, 76), (146, 0)]
    for top, left in corners + [tuple(draw.integers(0, [147, 77])) for _ in range(6)]:
        slow = slow_root_sift(crop, int(top), int(left))
        np.testing.assert_allclose(rows[top, left], slow, atol=1e-7)
        np.testing.assert_allclose(quick[top, left], slow, atol=1e-4)
        assert np.linalg.norm(quick[top, left] - slow) < 1e-4


@pytest.mark.parametrize("stride", [2, 5, 77])
def test_a_stride_leaves_patches_out_and_changes_none(stride: int) -> None:
    crops = np.stack([a_picture(1), a_picture(2)])
    every = root_sift(crops).reshape(2, 147, 77, 128)[:, ::stride, ::stride]
    np.testing.assert_allclose(root_sift(crops, stride), every.reshape(2, -1, 128), atol=1e-12)


def test_the_centres_are_those_of_the_patches() -> None:
    centres = DenseSift(1, CPU).centres().reshape(147, 77, 2)
    np.testing.assert_allclose(centres[0, 0], [12 / 100 - 0.5, 12 / 170 - 0.5], atol=1e-6)
    np.testing.assert_allclose(centres[-1, -1], -centres[0, 0], atol=1e-6)
    np.testing.assert_allclose(centres[10, 20], [32 / 100 - 0.5, 22 / 170 - 0.5], atol=1e-6)


def test_every_patch_has_length_one_and_one_of_one_grey_none() -> None:
    crop = a_picture(3)
    crop[60:, :] = 77
    lengths = np.linalg.norm(root_sift(crop[None])[0], axis=1).reshape(147, 77)
    np.testing.assert_allclose(lengths[:50], 1, atol=1e-9)
    assert not lengths[64:].any()


def test_brightness_and_contrast_change_nothing() -> None:
    dark = a_picture(4) // 8
    bright = (dark * 5 + 40).astype(np.uint8)
    np.testing.assert_allclose(root_sift(dark[None]), root_sift(bright[None]), atol=1e-6)


def test_it_equals_vlfeats_own() -> None:
    """But for VLFeat's arctangent, which is a polynomial a few thousandths off."""
    vl = vlfeat.library()
    if vl is None:
        pytest.skip("libvl is not installed (Debian: libvlfeat1)")
    theirs = np.sqrt(vlfeat.dense_sift(vl, a_picture(5)).astype(np.float64)).reshape(-1, 16, 8).transpose(0, 2, 1)
    theirs = theirs.reshape(-1, 128) / np.linalg.norm(theirs, axis=(1, 2))[:, None]
    ours = root_sift(a_picture(5)[None])[0]
    np.testing.assert_allclose(ours, theirs, atol=5e-3)
    assert np.linalg.norm(ours - theirs, axis=1).max() < 5e-3

"""LBP: equal to a loop over pixels, and blind to brightness and contrast."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ml.descriptors.lbp import BIN_OF_PATTERN, Lbp
from ml.errors import WrongShape
from ml.types import Crops

AROUND = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))


def a_picture(seed: int) -> Crops:
    """Draw (170, 100) noise of a random coarseness."""
    rng = np.random.default_rng(seed)
    block = int(rng.integers(1, 6))
    coarse = rng.integers(0, 256, (170 // block + 1, 100 // block + 1))
    noise = rng.integers(0, 3, (170, 100))
    return (np.kron(coarse, np.ones((block, block), int))[:170, :100] // 2 + noise).astype(np.uint8)


def slow_lbp(picture: Crops, cell: int) -> NDArray[np.float64]:
    """Compute vl_lbp like its C source: a loop over pixels, with a share for each of four cells."""
    grey = picture.astype(int)
    height, width = picture.shape
    down, across = height // cell, width // cell
    cells = np.zeros((58, down, across))
    for y in range(1, height - 1):
        for x in range(1, width - 1):
            bits = [grey[y + dy, x + dx] > grey[y, x] for dy, dx in AROUND]
            into = bin_of(bits)
            fy, fx = (y + 0.5) / cell - 0.5, (x + 0.5) / cell - 0.5
            top, left = int(np.floor(fy)), int(np.floor(fx))
            for row, by_row in ((top, 1 - (fy - top)), (top + 1, fy - top)):
                for column, by_column in ((left, 1 - (fx - left)), (left + 1, fx - left)):
                    if 0 <= row < down and 0 <= column < across:
                        cells[into, row, column] += by_row * by_column
    return np.asarray(np.sqrt(cells / cells.sum(axis=0)).ravel())


def bin_of(bits: list[bool]) -> int:
    """Return the bin by counting transitions on the circle, not from a table."""
    turns = [k for k in range(8) if bits[k] and not bits[k - 1]]
    if not turns:
        return 56
    return turns[0] * 7 + sum(bits) - 1 if len(turns) == 1 else 57


@pytest.mark.parametrize("seed", range(3))
def test_lbp_equals_a_loop_over_pixels(seed: int) -> None:
    picture = a_picture(seed)
    np.testing.assert_allclose(Lbp().describe(picture[None])[0], slow_lbp(picture, 10), atol=1e-6)


@pytest.mark.parametrize("cell", [7, 16, 33])
def test_cells_that_do_not_divide_the_picture_equal_the_loop_too(cell: int) -> None:
    picture = a_picture(cell)
    np.testing.assert_allclose(Lbp(cell=cell).describe(picture[None])[0], slow_lbp(picture, cell), atol=1e-6)


def test_the_table_has_each_uniform_bin_once_and_the_rest_in_57() -> None:
    counts = np.bincount(BIN_OF_PATTERN, minlength=58)
    assert counts[:56].tolist() == [1] * 56
    assert (counts[56], counts[57]) == (2, 198)


def test_a_face_is_9860_numbers_of_squared_norm_170() -> None:
    row = Lbp().describe(a_picture(0)[None])[0]
    assert row.shape == (9860,)
    np.testing.assert_allclose((row.reshape(58, 170) ** 2).sum(axis=0), 1, atol=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_brightness_and_contrast_change_no_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dark = a_picture(seed) // 8  # 0..16
    gain = int(rng.integers(1, 14))
    shift = int(rng.integers(0, 255 - 16 * gain + 1))
    bright = (dark.astype(int) * gain + shift).astype(np.uint8)
    rows = Lbp().describe(np.stack([dark, bright]))
    assert rows[0].tobytes() == rows[1].tobytes()


@pytest.mark.parametrize("grey", [0, 17, 255])
def test_a_cell_of_one_grey_has_all_of_it_in_bin_56(grey: int) -> None:
    row = Lbp().describe(np.full((1, 170, 100), grey, np.uint8)).reshape(58, 170)
    np.testing.assert_allclose(row[56], 1, atol=1e-6)
    assert not np.delete(row, 56, axis=0).any()


@pytest.mark.parametrize("cell", [0, 1, 101])
def test_a_cell_that_makes_no_histogram_is_refused(cell: int) -> None:
    with pytest.raises(WrongShape, match="2 to 100"):
        Lbp(cell=cell)


def test_pictures_of_a_batch_do_not_affect_each_other() -> None:
    crops = np.stack([a_picture(seed) for seed in range(5)])
    together = Lbp().describe(crops)
    alone = np.concatenate([Lbp().describe(crop[None]) for crop in crops])
    assert together.tobytes() == alone.tobytes()


def test_a_view_that_is_not_contiguous_is_described_alike() -> None:
    wide = np.stack([a_picture(1), a_picture(2)], axis=-1)
    crops = wide.transpose(2, 0, 1)
    assert Lbp().describe(crops).tobytes() == Lbp().describe(np.ascontiguousarray(crops)).tobytes()

"""CS-LBP and FPLBP: equal to loops over pixels; LBP as paper 000 lays it out; where their numbers come from."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ml.descriptors.common.cell_histograms import Celled
from ml.descriptors.cslbp import Cslbp
from ml.descriptors.fplbp import Fplbp
from ml.descriptors.lbp import Lbp
from ml.errors import WrongShape
from ml.types import Crops
from tests.ml.test_lbp import a_picture, slow_lbp

Floats = NDArray[np.float64]


def neighbour_offset(angle: float, radius: float) -> tuple[int, int]:
    """(dx, dy), clockwise from the right where y points down."""
    return round(radius * np.cos(angle)), round(radius * np.sin(angle))


def slow_cslbp(grey: NDArray[np.int64], x: int, y: int, radius: int, threshold: float) -> int:
    code = 0
    for i in range(4):
        dx, dy = neighbour_offset(i * np.pi / 4, radius)
        code += 2**i * (grey[y + dy, x + dx] / 255 - grey[y - dy, x - dx] / 255 > threshold)
    return int(code)


def slow_fplbp(grey: NDArray[np.int64], x: int, y: int, d: Fplbp) -> int:
    def patch(i: int, radius: int) -> NDArray[np.int64]:
        dx, dy = neighbour_offset(2 * np.pi * (i % d.patches) / d.patches, radius)
        half = d.side // 2
        return grey[y + dy - half : y + dy + half + 1, x + dx - half : x + dx + half + 1]

    def difference(i: int) -> int:
        return int(((patch(i, d.inner) - patch(i + d.alpha, d.outer)) ** 2).sum())

    half = d.patches // 2
    return int(sum(2**i * (difference(i) - difference(i + half) >= d.tau) for i in range(half)))


def slow_histograms(codes: dict[tuple[int, int], int], bins: int, shape: tuple[int, int], cell: int) -> Floats:
    """A share for each of the four cells round each pixel that has a code; each cell sums to 1."""
    down, across = shape[0] // cell, shape[1] // cell
    cells = np.zeros((bins, down, across))
    for (x, y), code in codes.items():
        fy, fx = (y + 0.5) / cell - 0.5, (x + 0.5) / cell - 0.5
        for row in (int(np.floor(fy)), int(np.floor(fy)) + 1):
            for column in (int(np.floor(fx)), int(np.floor(fx)) + 1):
                if 0 <= row < down and 0 <= column < across:
                    cells[code, row, column] += (1 - abs(fy - row)) * (1 - abs(fx - column))
    return np.asarray(cells / cells.sum(axis=0))


def coded(picture: Crops, edge: int, code: Any) -> dict[tuple[int, int], int]:
    grey = picture.astype(np.int64)
    down, across = grey.shape
    return {(x, y): code(grey, x, y) for y in range(edge, down - edge) for x in range(edge, across - edge)}


@pytest.mark.parametrize(("radius", "threshold", "cell"), [(2, 0.01, 10), (1, 0.0, 7), (3, 0.05, 16)])
def test_cslbp_equals_a_loop_over_pixels(radius: int, threshold: float, cell: int) -> None:
    picture = a_picture(cell)
    codes = coded(picture, radius, lambda grey, x, y: slow_cslbp(grey, x, y, radius, threshold))
    wanted = np.sqrt(slow_histograms(codes, 16, picture.shape, cell)).ravel()
    described = Cslbp(cell=cell, margin=0, radius=radius, threshold=threshold).describe(picture[None])[0]
    np.testing.assert_allclose(described, wanted, atol=1e-6)


FOUR_PATCHES = [
    Fplbp(margin=0),
    Fplbp(cell=7, margin=0, inner=2, outer=3, patches=6, side=1, alpha=2, tau=500.0),
    Fplbp(cell=16, margin=0, inner=3, outer=5, patches=12, side=5, alpha=0),
]


@pytest.mark.parametrize("descriptor", FOUR_PATCHES, ids=["default", "six", "twelve"])
def test_fplbp_equals_a_loop_over_pixels(descriptor: Fplbp) -> None:
    picture = a_picture(descriptor.cell)
    codes = coded(picture, descriptor.outer + descriptor.side // 2, lambda g, x, y: slow_fplbp(g, x, y, descriptor))
    counted = slow_histograms(codes, 2 ** (descriptor.patches // 2), picture.shape, descriptor.cell)
    cut = np.minimum(counted / np.sqrt((counted**2).sum(axis=0)), 0.2)
    wanted = (cut / np.sqrt((cut**2).sum(axis=0))).ravel()
    np.testing.assert_allclose(descriptor.describe(picture[None])[0], wanted, atol=1e-6)


@pytest.mark.parametrize("descriptor", [Cslbp(cell=16), Fplbp(), Fplbp(margin=3)], ids=str)
def test_pixels_in_the_margin_do_not_change_the_descriptor(descriptor: Celled) -> None:
    picture = a_picture(5)
    other = np.random.default_rng(1).integers(0, 256, picture.shape).astype(np.uint8)
    out = descriptor.margin * descriptor.cell
    other[out:-out, out:-out] = picture[out:-out, out:-out]
    rows = descriptor.describe(np.stack([picture, other]))
    assert rows[0].tobytes() == rows[1].tobytes()


def test_lbp_of_the_middle_is_7080_numbers_of_the_picture_cut_there() -> None:
    descriptor, picture = Lbp(margin=1, patterns=59), a_picture(4)
    row = descriptor.describe(picture[None])[0]
    assert row.shape == (7080,)
    histogram = row.reshape(59, 120) ** 2
    wanted = slow_lbp(picture[10:160, 10:90], 10).reshape(58, 120) ** 2
    np.testing.assert_allclose(histogram[:56], wanted[:56], atol=1e-6)
    np.testing.assert_allclose(histogram[56] + histogram[57], wanted[56], atol=1e-6)
    np.testing.assert_allclose(histogram[58], wanted[57], atol=1e-6)


def test_a_dark_dot_is_counted_as_all_brighter_and_one_grey_as_none() -> None:
    picture = np.full((170, 100), 90, np.uint8)
    picture[85, 45] = 80
    row = (Lbp(margin=1, patterns=59).describe(picture[None]).reshape(59, 15, 8) ** 2)[:, 7, 3]
    assert row[57] == pytest.approx(0.9025 / 100, rel=1e-5)  # the dot's share in its cell: 0.95 across, 0.95 down
    assert row[56] > 0.9
    assert row.sum() == pytest.approx(1, abs=1e-5)


CELLED: list[Celled] = [Lbp(), Lbp(margin=1, patterns=59), Cslbp(), Cslbp(cell=16, margin=0), Fplbp(), Fplbp(margin=0)]


@pytest.mark.parametrize("descriptor", CELLED, ids=str)
def test_a_change_within_one_square_changes_numbers_of_that_square_and_those_around_it(descriptor: Celled) -> None:
    cells, size = descriptor.cells, descriptor.cells.size
    assert cells.cell_numbers.shape == (descriptor.dim,)
    row, column = 5, 3
    one = np.random.default_rng(0).integers(0, 256, (1, 170, 100)).astype(np.uint8)
    other = one.copy()
    top, left = row * size + size // 2, column * size + size // 2
    other[:, top - 1 : top + 2, left - 1 : left + 2] ^= 255
    changed = np.unique(cells.cell_numbers[descriptor.describe(one)[0] != descriptor.describe(other)[0]])
    rows, columns = np.divmod(changed, cells.columns)
    assert row * cells.columns + column in changed
    assert np.abs(rows - row).max() <= 1
    assert np.abs(columns - column).max() <= 1


@pytest.mark.parametrize("descriptor", CELLED, ids=str)
def test_each_square_has_unit_length_and_one_that_is_left_out_has_none(descriptor: Celled) -> None:
    row = descriptor.describe(a_picture(2)[None])[0].astype(np.float64)
    cells = descriptor.cells
    sums = np.bincount(cells.cell_numbers, row**2, cells.rows * cells.columns).reshape(cells.rows, cells.columns)
    wanted, out = np.zeros_like(sums), descriptor.margin
    wanted[out : cells.rows - out, out : cells.columns - out] = 1
    np.testing.assert_allclose(sums, wanted, atol=1e-5)


@pytest.mark.parametrize("descriptor", [Cslbp(), Fplbp()], ids=str)
def test_more_light_changes_no_bit(descriptor: Celled) -> None:
    dark = a_picture(3) // 2
    rows = descriptor.describe(np.stack([dark, dark + 100]))
    assert rows[0].tobytes() == rows[1].tobytes()


def test_more_contrast_changes_no_bit_of_fplbp_but_cslbp_has_a_threshold() -> None:
    dark = a_picture(3) // 8
    pictures = np.stack([dark, dark * 5])
    same, threshold = Fplbp().describe(pictures), Cslbp().describe(pictures)
    assert same[0].tobytes() == same[1].tobytes()
    assert np.abs(threshold[0] - threshold[1]).max() > 0.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lbp(patterns=57), "patterns must be 58 or 59"),  # type: ignore[arg-type]
        (lambda: Lbp(margin=5), "margin must be 0 to 4 cells"),
        (lambda: Lbp(margin=-1), "margin"),
        (lambda: Cslbp(radius=5), "radius must be 1 to 4"),
        (lambda: Cslbp(threshold=2.55), "threshold must be 0 to 1"),
        (lambda: Fplbp(cell=4), "cell must be 5 to 100"),
        (lambda: Fplbp(inner=6), "inner and outer"),
        (lambda: Fplbp(patches=7), "patches must be even"),
        (lambda: Fplbp(side=2), "side must be 1, 3"),
        (lambda: Fplbp(outer=17), "16 pixels"),
    ],
)
def test_options_that_make_no_histogram_are_refused(make: Any, message: str) -> None:
    with pytest.raises(WrongShape, match=message):
        make()


@pytest.mark.parametrize("descriptor", [Fplbp(cell=5), Fplbp(cell=12, inner=16, outer=16), Cslbp(cell=4, radius=4)])
def test_the_smallest_cells_that_are_taken_have_pixels_in_each(descriptor: Celled) -> None:
    assert np.isfinite(descriptor.describe(a_picture(1)[None])).all()

"""Degraded crops: what each condition changes, and that a seed makes them repeatable."""

import numpy as np
import pytest

from ml.types import Crops
from papers.beyond.degradations import CLEAN, CONDITIONS, DEGRADATIONS, EYE_ROWS, LOWER_HALF_FIRST_ROW, degrade_crops


@pytest.fixture(scope="module")
def crops() -> Crops:
    """Three crops with smooth and fine structure."""
    rng = np.random.default_rng(0)
    slope = np.linspace(40, 200, 112)[None, :, None, None]
    fine = rng.normal(0, 25, (3, 112, 112, 3))
    return np.clip(slope + fine, 0, 255).astype(np.uint8)


def test_clean_crops_are_a_copy(crops: Crops) -> None:
    copy = degrade_crops(crops, CLEAN)
    assert np.array_equal(copy, crops)
    assert not np.shares_memory(copy, crops)


@pytest.mark.parametrize("condition", DEGRADATIONS)
def test_a_degradation_changes_every_crop_and_leaves_the_originals(crops: Crops, condition: str) -> None:
    before = crops.copy()
    degraded = degrade_crops(crops, condition)
    assert degraded.shape == crops.shape
    assert degraded.dtype == np.uint8
    assert all((one != other).any() for one, other in zip(degraded, crops, strict=True))
    assert np.array_equal(crops, before)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_crop_degrades_alike_wherever_it_stands(crops: Crops, condition: str) -> None:
    assert np.array_equal(degrade_crops(crops, condition, 3), degrade_crops(crops[::-1], condition, 3)[::-1])


def test_the_noise_depends_on_the_seed(crops: Crops) -> None:
    one, other = (degrade_crops(crops, "dark and noisy", seed) for seed in (0, 1))
    assert (one != other).any()


def test_covers_reach_their_rows_and_no_others(crops: Crops) -> None:
    lower, eyes = (degrade_crops(crops, name) for name in ("lower half covered", "eyes covered"))
    assert len(np.unique(lower[:, LOWER_HALF_FIRST_ROW:])) == 1
    assert np.array_equal(lower[:, :LOWER_HALF_FIRST_ROW], crops[:, :LOWER_HALF_FIRST_ROW])
    assert len(np.unique(eyes[:, EYE_ROWS])) == 1
    assert np.array_equal(np.delete(eyes, EYE_ROWS, 1), np.delete(crops, EYE_ROWS, 1))


def test_fewer_pixels_leave_less_detail(crops: Crops) -> None:
    detail = {
        name: float(np.abs(np.diff(degrade_crops(crops, name).astype(float), axis=1)).mean())
        for name in ("16 pixels", "32 pixels", CLEAN)
    }
    assert detail["16 pixels"] < detail["32 pixels"] < detail[CLEAN]


def test_dark_crops_keep_two_fifths_of_their_brightness(crops: Crops) -> None:
    assert degrade_crops(crops, "dark and noisy").mean() == pytest.approx(0.4 * crops.mean(), rel=0.03)


def test_an_unknown_condition_is_refused(crops: Crops) -> None:
    with pytest.raises(KeyError):
        degrade_crops(crops, "fog")

"""What more labels are expected to be worth."""

import numpy as np
import pytest

from ml.active_learning.expected_gain import STOP_POINTS, MeasuredStep, forecast


def test_a_doubling_is_expected_to_gain_as_much_as_the_one_before() -> None:
    step = MeasuredStep(labels_before=0, labels_after=50, gain=2.0, low=1.0, high=8.0)
    assert forecast(step, 50, next_labels=100).expected == pytest.approx(2.0)
    assert forecast(step, 150, next_labels=200).expected == pytest.approx(2.0)
    assert forecast(step, 150).expected < forecast(step, 50).expected


def test_the_bound_is_the_upper_end_of_the_last_step_per_label() -> None:
    step = MeasuredStep(labels_before=200, labels_after=1000, gain=1.0, low=0.2, high=1.6)
    outlook = forecast(step, 1000)
    assert outlook.at_most == pytest.approx(0.1)
    assert outlook.enough
    assert 0 < outlook.expected <= outlook.at_most
    assert outlook.expected_per_label == pytest.approx(outlook.expected / 50)
    wide = forecast(MeasuredStep(200, 250, 0.0, -0.5, 0.5), 250)
    assert wide.at_most == pytest.approx(0.5)
    assert wide.at_most > STOP_POINTS
    assert not wide.enough


def test_a_step_that_lost_expects_nothing() -> None:
    outlook = forecast(MeasuredStep(0, 100, -2.0, -3.0, -1.0), 100)
    assert (outlook.expected, outlook.at_most, outlook.enough) == (0.0, 0.0, True)


def test_the_bound_holds_on_curves_with_diminishing_returns() -> None:
    """By the intervals of noisy measurements, as a report has them."""
    rng, held = np.random.default_rng(0), []
    for _ in range(500):
        size, scale = rng.uniform(2, 12), rng.uniform(100, 2000)
        truth = lambda labels, size=size, scale=scale: size * (1 - np.exp(-labels / scale))  # noqa: E731
        before, after, noise = 200, 400, 0.3
        gain = truth(after) - truth(before) + noise * rng.normal()
        step = MeasuredStep(before, after, gain, gain - 1.96 * noise, gain + 1.96 * noise)
        held.append(truth(after + 50) - truth(after) <= forecast(step, after).at_most)
    assert np.mean(held) > 0.97

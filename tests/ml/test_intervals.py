"""Intervals cover: over many worlds, a 95 % interval holds the truth about 95 times in 100."""

import numpy as np
import pytest
from scipy.stats import bootstrap as scipys

from ml.calibration.rate_intervals import clopper_pearson
from ml.evaluation.intervals import bootstrap, bootstrap_mean, bootstrap_rate, pair_times, resample

WORLDS = 300
FEW, MANY = 0.90, 0.985
"""Of 300 intervals that cover with 95 %, fewer or more do so once in 10,000 runs; percentiles are a little narrow."""


def test_every_resample_draws_as_many_groups_as_there_are() -> None:
    times = np.concatenate(list(resample(700, resamples=1600)))
    assert times.shape == (1600, 700)
    assert (times.sum(1) == 700).all()
    assert times.var() == pytest.approx(1 - 1 / 700, abs=0.02)


def test_the_interval_equals_scipys() -> None:
    values = np.random.default_rng(4).exponential(size=80)
    ours = bootstrap_mean(values, resamples=20_000)
    theirs = scipys((values,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_an_interval_over_people_covers_and_one_over_photos_does_not() -> None:
    draw = np.random.default_rng(11)
    people = np.repeat(np.arange(60.0), 8)
    covered = np.zeros(2)
    for _ in range(WORLDS):
        chance = draw.beta(1.0, 1.0, 60)[people.astype(int)]
        values = (draw.random(len(people)) < chance).astype(np.float64)
        intervals = (bootstrap_mean(values, people, resamples=400), bootstrap_mean(values, resamples=400))
        covered += [one.low <= 0.5 <= one.high for one in intervals]
    assert FEW < covered[0] / WORLDS < MANY
    assert covered[1] / WORLDS < 0.8


def test_where_everybody_succeeds_the_interval_says_how_many_there_were() -> None:
    people = np.repeat(np.arange(20.0), 3)
    interval = bootstrap_rate(np.ones(60), people)
    assert (interval.value, interval.high) == (1, 1)
    assert interval.low == clopper_pearson(20, 20)[0] == pytest.approx(0.025 ** (1 / 20))
    assert bootstrap_rate(np.zeros(60), people).high == pytest.approx(1 - 0.025 ** (1 / 20))
    mixed = np.tile([0.0, 1.0, 1.0], 20)
    assert bootstrap_rate(mixed, people) == bootstrap_mean(mixed, people)


def test_figures_that_are_only_near_are_moved_to_the_exact_ones() -> None:
    values = np.random.default_rng(5).normal(size=50)
    plain, moved = (
        bootstrap(lambda times: (times @ values / 50)[:, None], 50, values=exact)[0]
        for exact in (None, np.array([values.mean() + 3]))
    )
    assert moved.low - plain.low == moved.high - plain.high == moved.value - plain.value == pytest.approx(3)


def test_a_centred_interval_stands_around_its_figure() -> None:
    """The number of different groups in a resample is always smaller than the number of groups."""
    counted, centred = (
        bootstrap(lambda times: (times > 0).sum(1, keepdims=True) * 1.0, 40, centred=c)[0] for c in (False, True)
    )
    assert counted.high < counted.value == 40
    assert centred.low < 40 < centred.high


def test_a_pair_of_two_people_comes_as_often_as_both_do() -> None:
    times = np.array([[2.0, 3.0, 0.0]])
    assert pair_times(times, np.array([0, 0, 1]), np.array([0, 1, 2])).tolist() == [[2, 6, 0]]


def test_a_figure_that_no_resample_has_has_no_interval() -> None:
    interval = bootstrap(lambda times: np.full((len(times), 1), np.nan), 5)[0]
    assert np.isnan([interval.value, interval.low, interval.high]).all()

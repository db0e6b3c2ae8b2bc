import numpy as np
import pytest
from scipy.stats import norm

from ml.errors import WrongShape
from ml.evaluation.identification import Probes, fnir
from ml.evaluation.verification import misses_at_fpir


def probes(seed: int, enrolled: int = 120, strangers: int = 120) -> Probes:
    draw = np.random.default_rng(seed)
    mate, stranger = draw.normal(0, 1, enrolled), draw.normal(2, 1, strangers)
    return Probes(mate, stranger, np.arange(enrolled * 1.0), 10_000.0 + np.arange(strangers))


def test_fnir_equals_a_count_by_hand() -> None:
    mate, stranger = np.array([1.0, 5.0, 2.0, np.inf]), np.array([3.0, 4.0, 6.0, 8.0])
    one = Probes(mate, stranger, np.arange(4.0), np.arange(4.0))
    assert [rate.value for rate in fnir([one], [0.25, 0.5, 0.0])] == [1 / 3, 0, 1 / 3]
    assert fnir([Probes(mate + 3, stranger, np.arange(4.0), np.arange(4.0))], [0.0])[0].value == 1.0


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.5])
def test_fnir_is_the_mean_of_the_misses(rate: float) -> None:
    one = probes(3)
    assert fnir([one], [rate])[0].value == pytest.approx(misses_at_fpir(one.mate, one.stranger, rate).mean())


def test_a_mate_far_down_the_list_is_missed_at_any_threshold() -> None:
    ranks = np.array([1, 2, 30, 1])
    one = Probes(np.zeros(4), np.ones(4), np.arange(4.0), np.arange(4.0), ranks)
    assert [fnir([one], [0.1], within=n)[0].value for n in (1, 2, 30)] == [0.5, 0.25, 0.0]
    assert fnir([one], [0.1])[0].value == 0.0


def test_each_part_has_its_own_threshold() -> None:
    one = probes(4)
    scaled = Probes(100 * one.mate, 100 * one.stranger, one.mate_people, one.stranger_people)
    assert fnir([one, scaled], [0.1])[0].value == pytest.approx(fnir([one], [0.1])[0].value)


def test_fnir_falls_as_the_allowed_fpir_rises() -> None:
    rates = [one.value for one in fnir([probes(5)], [0.01, 0.05, 0.1, 0.3])]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[-1]


def test_the_interval_covers_and_one_with_the_threshold_held_still_does_not() -> None:
    """60 strangers say little of the threshold at 10 %, which 600 mated searches make nothing of."""
    truth, worlds = norm.sf(2 + norm.ppf(0.1)), 200
    covered = np.zeros(2)
    for seed in range(worlds):
        one = probes(100 + seed, enrolled=600, strangers=60)
        interval = fnir([one], [0.1], resamples=300)[0]
        still = misses_at_fpir(one.mate, one.stranger.repeat(10), 0.1)
        half = 1.96 * still.std() / len(still) ** 0.5
        covered += [interval.low <= truth <= interval.high, abs(still.mean() - truth) <= half]
    assert 0.88 <= covered[0] / worlds <= 0.99
    assert covered[1] / worlds < 0.7


def test_probes_of_both_kinds_are_needed() -> None:
    with pytest.raises(WrongShape, match="some enrolled and some strangers"):
        fnir([Probes(np.array([np.inf]), np.ones(1), np.zeros(1), np.zeros(1))], [0.1])
    with pytest.raises(WrongShape, match="some enrolled and some strangers"):
        fnir([Probes(np.ones(1), np.empty(0), np.zeros(1), np.empty(0))], [0.1])

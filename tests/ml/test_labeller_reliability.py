"""How far labellers are believed, on drawn labels whose truth is known."""

import numpy as np
import pytest

from ml.labeller_reliability import Agreement, compare_with_others, estimate_reliability

Drawn = dict[tuple[int, int], dict[str, bool]]
PAIRS = 1000
HONEST = ("ana", "ben", "eva")


def draw_votes(seed: int, error: float = 0.05) -> Drawn:
    """Three honest labellers judge half of the pairs each, one answers at random, one always "same", one is new."""
    rng = np.random.default_rng(seed)
    truth, votes = rng.random(PAIRS) < 0.5, Drawn()

    def add(by: str, pairs: int, answers: np.ndarray) -> None:
        for pair in rng.permutation(PAIRS)[:pairs].tolist():
            votes.setdefault((pair, pair + PAIRS), {})[by] = bool(answers[pair])

    for by in HONEST:
        add(by, PAIRS // 2, truth ^ (rng.random(PAIRS) < error))
    add("random", PAIRS, rng.random(PAIRS) < 0.5)
    add("always same", 400, np.ones(PAIRS, np.bool_))
    add("new", 5, truth)
    return votes


@pytest.mark.parametrize("seed", range(10))
def test_who_answers_at_random_or_always_the_same_weighs_nothing(seed: int) -> None:
    weights = estimate_reliability(draw_votes(seed)).weight_of
    assert (weights["random"], weights["always same"]) == (0, 0)
    assert all(weights[by] > 1.2 for by in HONEST)
    assert 0.8 < weights["new"] < 1.25


def test_the_estimated_rates_are_those_of_the_draw() -> None:
    reliability = estimate_reliability(draw_votes(3, error=0.1))
    of = {by: i for i, by in enumerate(reliability.labellers)}
    for by in HONEST:
        assert reliability.same_rate[of[by]] == pytest.approx(0.9, abs=0.05)
        assert reliability.different_rate[of[by]] == pytest.approx(0.9, abs=0.05)
    assert reliability.same_rate[of["always same"]] > 0.95
    assert reliability.different_rate[of["always same"]] < 0.1


def test_pairs_that_nobody_else_judged_teach_nothing() -> None:
    votes = {(i, PAIRS + i): {"ana": i % 2 == 0} for i in range(100)}
    reliability = estimate_reliability(votes)
    assert reliability.weight_of == {"ana": pytest.approx(1)}
    assert reliability.judged.tolist() == [0]
    assert compare_with_others(votes) == {}


def test_who_contradicts_two_others_always_weighs_nothing() -> None:
    votes = {(i, PAIRS + i): {"ana": i % 2 == 0, "ben": i % 2 == 0, "liar": i % 2 == 1} for i in range(60)}
    weights = estimate_reliability(votes).weight_of
    assert weights["liar"] == 0
    assert weights["ana"] > 1


def test_agreement_is_counted_against_the_majority_of_the_others_without_ties() -> None:
    votes = {
        (1, 2): {"ana": True, "ben": True, "eva": False},
        (3, 4): {"ana": True, "ben": True},
        (5, 6): {"eva": False},
    }
    assert compare_with_others(votes) == {
        "ana": Agreement(1, 1), "ben": Agreement(1, 1), "eva": Agreement(1, 0),
    }  # fmt: skip


def test_no_votes_have_no_labellers() -> None:
    assert estimate_reliability({}).weight_of == {}

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.metrics import det_curve, roc_auc_score

from ml.errors import WrongShape
from ml.evaluation.separation import Scored, Separation, separation
from ml.evaluation.verification import det, fnmr_at

PEOPLE, NEAR, FAR, APART = 80, 0.5, 0.3, 2.0


def world(seed: int, friends: int = 6, foes: int = 40) -> tuple[Scored, Scored]:
    """Draw genuine distances about 0 and impostor distances about 2, with an offset for each person."""
    draw = np.random.default_rng(seed)
    sides = []
    for each, middle, own in ((friends, 0.0, NEAR), (foes, APART, FAR)):
        who = np.repeat(np.arange(PEOPLE), each)
        sides.append(Scored(middle + draw.normal(size=len(who)) + own * draw.normal(size=PEOPLE)[who], who))
    return sides[0], sides[1]


def truths() -> dict[str, float]:
    near, far = np.hypot(1, NEAR), np.hypot(1, FAR)
    at = brentq(lambda t: norm.cdf((t - APART) / far) - norm.sf(t / near), -3, 5)
    return {
        "eer": norm.cdf((at - APART) / far),
        "auc": norm.cdf(APART / np.hypot(near, far)),
        "fnmr": norm.sf((APART + far * norm.ppf(0.01)) / near),
        "friends": 0.0,
        "friends_sd": near,
        "d_prime": APART / np.sqrt((near**2 + far**2) / 2),
    }


def intervals_of(result: Separation) -> dict[str, tuple[float, float, float]]:
    spread = result.dispersion
    parts = {"eer": result.eer, "auc": result.auc, "fnmr": result.fnmr["0.01"], "d_prime": spread.d_prime}
    parts |= {"friends": spread.friends, "friends_sd": spread.friends_sd}
    return {name: (one.value, one.low, one.high) for name, one in parts.items()}


def test_the_figures_are_those_of_the_whole_curve_and_of_scikit_learn() -> None:
    genuine, impostor = world(1)
    result = separation([genuine], [impostor], resamples=50)
    scores = -np.concatenate([genuine.distances, impostor.distances])
    truth = np.repeat([1, 0], [len(genuine.distances), len(impostor.distances)])
    assert result.auc.value == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    fmr, fnmr, _ = det_curve(truth, scores)
    assert result.eer.value == pytest.approx(fnmr[np.argmin(np.abs(fmr - fnmr))], abs=0.002)
    assert result.fnmr["0.01"].value == pytest.approx(fnmr[fmr <= 0.01].min(), abs=1e-12)
    near, far = genuine.distances, impostor.distances
    assert result.dispersion.d_prime.value == pytest.approx(
        (far.mean() - near.mean()) / np.sqrt((near.var() + far.var()) / 2)
    )


def test_every_interval_covers() -> None:
    truth, worlds = truths(), 200
    covered = dict.fromkeys(truth, 0)
    for seed in range(worlds):
        genuine, impostor = world(1000 + seed)
        for name, (_, low, high) in intervals_of(separation([genuine], [impostor], resamples=300)).items():
            covered[name] += low <= truth[name] <= high
    assert {name: n / worlds for name, n in covered.items() if not 0.88 <= n / worlds <= 0.99} == {}


def test_resampling_pairs_one_by_one_would_be_too_sure() -> None:
    genuine, impostor = world(2)
    alone = [Scored(side.distances, np.arange(len(side.distances)) + 1_000_000 * i) for i, side in enumerate(world(2))]
    people, pairs = separation([genuine], [impostor]), separation([alone[0]], [alone[1]])
    assert people.auc.high - people.auc.low > 1.2 * (pairs.auc.high - pairs.auc.low)


def test_pairs_of_two_people_count_as_often_as_both_are_drawn() -> None:
    """Against the slow way: the pairs repeated, and the curve made of them."""
    draw = np.random.default_rng(3)
    ends = draw.integers(0, 25, (400, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    genuine, impostor = Scored(draw.normal(0, 1, 100), np.repeat(np.arange(25), 4)), Scored(
        draw.normal(1.5, 1, len(ends)), ends
    )  # fmt: skip
    slow, rng = [], np.random.default_rng(0)
    for _ in range(400):
        times = np.bincount(rng.integers(0, 25, 25), minlength=25)
        near = np.repeat(genuine.distances, times[genuine.people])
        far = np.repeat(impostor.distances, times[ends[:, 0]] * times[ends[:, 1]])
        slow.append([det(near, far).auc, far.mean()])
    fast = separation([genuine], [impostor], resamples=400)
    low, high = np.quantile(slow, [0.025, 0.975], axis=0)
    assert (fast.auc.low, fast.auc.high) == pytest.approx((low[0], high[0]), abs=0.003)
    assert (fast.dispersion.foes.low, fast.dispersion.foes.high) == pytest.approx((low[1], high[1]), abs=1e-9)


def test_several_sets_are_averaged_whatever_their_scales() -> None:
    sets = [world(seed) for seed in (5, 6)]
    alone = [separation([g], [i], resamples=50).auc.value for g, i in sets]
    scaled = [(g, i) if n else (Scored(100 * g.distances, g.people), Scored(100 * i.distances, i.people))
              for n, (g, i) in enumerate(sets)]  # fmt: skip
    result = separation(*zip(*scaled, strict=True), resamples=50)
    assert result.auc.value == pytest.approx(np.mean(alone))


def test_perfect_and_reversed_distances() -> None:
    near, far = Scored(np.zeros(10), np.arange(10)), Scored(np.arange(1.0, 11), np.arange(10))
    perfect, worst = separation([near], [far]), separation([far], [near])
    assert (perfect.eer.value, perfect.auc.value, perfect.auc.low) == (0, 1, 1)
    assert (worst.auc.value, worst.auc.high, worst.fnmr["0.01"].value) == (0, 0, 1)
    assert worst.dispersion.d_prime.value == -perfect.dispersion.d_prime.value


def test_fnmr_at_a_rate_that_no_threshold_keeps_is_one() -> None:
    curve = det(np.array([2.0, 3]), np.array([1.0, 4]))
    assert fnmr_at(curve, [0.1, 0.5, 1.0]) == [1.0, 0.0, 0.0]


def test_both_kinds_are_needed() -> None:
    empty, some = Scored(np.empty(0), np.empty(0, np.int64)), Scored(np.ones(3), np.arange(3))
    with pytest.raises(WrongShape, match="not empty"):
        separation([empty], [some])

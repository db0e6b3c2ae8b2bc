import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from ml.errors import NotFinite, NotFitted, TooFewPairs, WrongShape
from ml.fusion.normalise import Kind, Normalise
from ml.fusion.svm import Svm
from ml.registry import build, names

KINDS: tuple[Kind, ...] = ("platt", "z", "min-max", "identity")


def scores_of_systems(seed: int, pairs: int = 400, systems: int = 3) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores on scales of their own; every system knows something that the others do not."""
    draw = np.random.default_rng(seed)
    same = draw.random(pairs) < draw.uniform(0.3, 0.7)
    scale, middle = 10.0 ** draw.uniform(-3, 3, systems), draw.normal(size=systems) * 50
    return (same[:, None] * 1.2 + draw.normal(size=(pairs, systems))) * scale + middle, same


def right(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    return float(((scores > 0) == same).mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_no_normalisation_changes_a_roc(kind: Kind, seed: int) -> None:
    scores, same = scores_of_systems(seed, systems=1)
    normal = Normalise(kind).fit(scores[:200], same[:200])(scores)
    before, after = (roc_curve(same, s[:, 0], drop_intermediate=False)[:2] for s in (scores, normal))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_fusion_of_one_system_keeps_its_roc_exactly(kind: Kind, seed: int) -> None:
    scores, same = scores_of_systems(seed, systems=1)
    scores = scores / 1000 if kind == "identity" else scores
    normal = Normalise(kind).fit(scores[:200], same[:200])
    fused = Svm().fit(normal(scores[:200]), same[:200])(normal(scores))
    before, after = (roc_curve(same, s, drop_intermediate=False)[:2] for s in (scores[:, 0], fused))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("kind", ["platt", "z", "min-max"])
def test_the_fusion_of_three_is_better_than_any_of_them(kind: Kind) -> None:
    scores, same = scores_of_systems(7, pairs=4000)
    normal = Normalise(kind).fit(scores[:1000], same[:1000])
    fused = right(Svm().fit(normal(scores[:1000]), same[:1000])(normal(scores[1000:])), same[1000:])
    alone = [
        right(Svm().fit(normal(scores[:1000])[:, [s]], same[:1000])(normal(scores[1000:])[:, [s]]), same[1000:])
        for s in range(3)
    ]
    assert fused > max(alone) + 0.05


def test_each_normalisation_gives_its_defined_scores() -> None:
    scores, same = scores_of_systems(3, pairs=20_000)
    z = Normalise("z").fit(scores, same)(scores)
    np.testing.assert_allclose([z.mean(0), z.std(0)], [[0.0] * 3, [1.0] * 3], atol=1e-9)
    span = Normalise("min-max").fit(scores, same)(scores)
    np.testing.assert_allclose([span.min(0), span.max(0)], [[0.0] * 3, [1.0] * 3], atol=1e-9)
    odds = Normalise().fit(scores, same)(scores)[:, 0]
    likely = odds > 1
    share = same[likely].mean() / same.mean()
    weighed = share / (share + (~same[likely]).mean() / (~same).mean())
    assert weighed == pytest.approx((1 / (1 + np.exp(-odds[likely]))).mean(), abs=0.02), "log-odds at even classes"


def test_fusion_does_not_use_the_labels_of_the_test_pairs() -> None:
    scores, same = scores_of_systems(1)
    normal = Normalise().fit(scores[:300], same[:300])
    fused = Svm().fit(normal(scores[:300]), same[:300])
    np.testing.assert_allclose(fused(normal(scores[300:]))[5], fused(normal(scores[305:306]))[0], rtol=1e-12)


def test_a_system_with_constant_scores_has_no_influence() -> None:
    scores, same = scores_of_systems(2)
    scores[:, 1] = 4.0
    for kind in KINDS:
        normal = Normalise(kind).fit(scores, same)
        assert np.isfinite(Svm().fit(normal(scores), same)(normal(scores))).all()


def test_invalid_scores_are_refused() -> None:
    scores, same = scores_of_systems(0)
    with pytest.raises(NotFitted):
        Normalise()(scores)
    with pytest.raises(NotFitted):
        Svm()(scores)
    with pytest.raises(WrongShape, match=r"\(P, 3\)"):
        Normalise().fit(scores, same)(scores[:, :2])
    with pytest.raises(WrongShape, match=r"\(400,\)"):
        Svm().fit(scores, same[1:])
    with pytest.raises(NotFinite):
        Normalise("z").fit(np.where(scores > scores.mean(), np.inf, scores), same)
    with pytest.raises(TooFewPairs, match="5 more to label"):
        Normalise().fit(scores[~same], same[~same])
    with pytest.raises(TooFewPairs, match="1 more to label"):
        Svm().fit(scores[same], same[same])
    with pytest.raises(WrongShape, match="platt"):
        Normalise("bnorm").fit(scores, same)  # type: ignore[arg-type]


def test_the_parts_of_a_fusion_are_components() -> None:
    assert names("fusion") == ("normalise", "svm")
    assert build("fusion", "svm", cost=0.5).cost == 0.5

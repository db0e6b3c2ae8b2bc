import json
import math

import numpy as np
import pytest

from ml import registry
from ml.distances import EUCLIDEAN, INNER_PRODUCT, Distance, load_distance
from ml.distances.averaged import Averaged
from ml.distances.signed import Signed
from ml.errors import WrongShape

AVERAGE = Averaged(blocks=(3, 4), shares=(0.3, 0.7), biases=(0.5, -1.0))
EACH = [EUCLIDEAN, INNER_PRODUCT, Signed(2), AVERAGE]


def rows(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 7)).astype(np.float32)


@pytest.mark.parametrize("metric", EACH, ids=str)
def test_every_pair_is_as_far_as_that_pair_alone_and_either_way_round(metric: Distance) -> None:
    a, b = rows(6, 1), rows(5, 2)
    every = metric.distances(a, b)
    np.testing.assert_allclose(every, metric.distances(b, a).T, rtol=1e-6)
    for i, j in np.ndindex(6, 5):
        assert metric.paired_distances(a[i : i + 1], b[j : j + 1])[0] == pytest.approx(every[i, j], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("metric", EACH, ids=str)
def test_a_distance_survives_json(metric: Distance) -> None:
    assert load_distance(json.loads(json.dumps(metric.to_dict()))) == metric


def test_the_last_numbers_may_count_negative() -> None:
    a, b = rows(1, 3), rows(1, 4)
    wanted = -(a[0, :5] @ b[0, :5]) + a[0, 5:] @ b[0, 5:]
    assert Signed(2).paired_distances(a, b)[0] == pytest.approx(wanted, rel=1e-5)


def test_an_average_is_the_log_odds_of_its_score() -> None:
    a, b = rows(1, 5), rows(1, 6)
    logits = [float(a[0, :3] @ b[0, :3]) + 0.5, float(a[0, 3:] @ b[0, 3:]) - 1.0]
    g = sum(share / (1 + math.exp(-z)) for share, z in zip((0.3, 0.7), logits, strict=True))
    assert AVERAGE.paired_distances(a, b)[0] == pytest.approx(math.log(1 - g) - math.log(g), rel=1e-5)


@pytest.mark.parametrize("far", [1000.0, -1000.0])
def test_an_average_of_extreme_scores_is_finite(far: float) -> None:
    a = np.zeros((1, 7), np.float32)
    a[0, 0] = a[0, 3] = abs(far) ** 0.5
    b = a * np.sign(far)
    assert AVERAGE.paired_distances(a, b)[0] == pytest.approx(-far, abs=3)


def test_a_share_of_zero_leaves_its_descriptor_out() -> None:
    a, b = rows(4, 7), rows(4, 8)
    one = Averaged(blocks=(3, 4), shares=(0.0, 1.0), biases=(9.0, 0.0))
    np.testing.assert_allclose(one.paired_distances(a, b), -(a[:, 3:] * b[:, 3:]).sum(1), rtol=1e-5)


@pytest.mark.parametrize(
    ("stored", "distance"),
    [
        ({"kind": "l2", "negative": 0, "blocks": [], "shares": [], "biases": []}, EUCLIDEAN),
        ({"kind": "ip", "negative": 0, "blocks": [], "shares": [], "biases": []}, INNER_PRODUCT),
        ({"kind": "ip", "negative": 2, "blocks": [], "shares": [], "biases": []}, Signed(2)),
        ({"kind": "average", "negative": 0, "blocks": [3, 4], "shares": [0.3, 0.7], "biases": [0.5, -1.0]}, AVERAGE),
    ],
    ids=["l2", "ip", "signed", "average"],
)
def test_the_format_of_earlier_versions_is_still_read(stored: dict[str, object], distance: Distance) -> None:
    assert load_distance(stored) == distance


def test_an_inner_product_without_negative_numbers_is_not_signed() -> None:
    with pytest.raises(WrongShape, match="1 or more"):
        Signed(0)


def test_every_distance_is_a_component() -> None:
    assert {registry.name_of(type(distance)) for distance in EACH} == set(registry.names("distances"))


def test_tables_show_euclidean_distances_and_not_their_squares() -> None:
    assert EUCLIDEAN.display_distance(np.array([4.0])).tolist() == [2.0]
    assert INNER_PRODUCT.display_distance(np.array([4.0])).tolist() == [4.0]

from dataclasses import replace

import numpy as np
import pytest

from ml.embedders.base import TrainingSet
from ml.embedders.cosine import Cosine
from ml.embedders.wccn import Wccn
from tests.ml.synthetic_people import labels_alone, nearest_is_alike, people


def covariance_within(z: np.ndarray, person: np.ndarray) -> np.ndarray:
    means = np.stack([z[person == p].mean(0) for p in np.unique(person)])
    deviations = z - means[person]
    return deviations.T @ deviations / (len(z) - len(means))


def square(z: np.ndarray) -> np.ndarray:
    return ((z[:, None] - z[None]) ** 2).sum(2)


def test_without_shrinkage_the_covariance_within_people_becomes_the_identity() -> None:
    data = people(80, 5)
    z = Wccn(shrinkage=0.0, unit=False).fit(data).embed(data.rows)
    within = covariance_within(z, data.tasks[0].people)
    np.testing.assert_allclose(within / within.trace() * len(within), np.eye(len(within)), atol=1e-4)


def test_it_equals_the_inverse_root_of_the_shrunken_covariance() -> None:
    data = people(80, 5)
    within = covariance_within(data.rows.astype(np.float64), data.tasks[0].people)
    within = 0.4 * within / within.trace() * len(within) + 0.6 * np.eye(len(within))
    oracle = data.rows @ np.linalg.cholesky(np.linalg.inv(within))
    z = Wccn(shrinkage=0.6, unit=False).fit(data).embed(data.rows)
    np.testing.assert_allclose(square(z[:40]), square(oracle[:40]), rtol=2e-3, atol=1e-2)


def test_full_shrinkage_changes_nothing() -> None:
    data = people()
    z, cosine = (e.fit(data).embed(data.rows) for e in (Wccn(shrinkage=1.0), Cosine()))
    np.testing.assert_allclose(z, cosine, atol=1e-5)
    z = Wccn(shrinkage=1.0, unit=False).fit(data).embed(data.rows)
    np.testing.assert_allclose(z, data.rows, atol=1e-4)


def test_without_shrinkage_a_linear_change_of_the_descriptor_changes_no_distance() -> None:
    data = people(80, 5)
    mixing = np.random.default_rng(0).normal(size=(30, 30)) + 3 * np.eye(30)
    mixed = replace(data, rows=(data.rows @ mixing).astype(np.float32))
    z, other = (Wccn(shrinkage=0.0, unit=False).fit(d).embed(d.rows)[:50] for d in (data, mixed))
    ratio = square(other)[0, 1:] / square(z)[0, 1:]
    np.testing.assert_allclose(ratio, ratio[0], rtol=2e-2)


def test_the_scale_of_the_descriptor_does_not_matter() -> None:
    data = people()
    z, other = (Wccn().fit(d).embed(d.rows) for d in (data, replace(data, rows=100 * data.rows)))
    np.testing.assert_allclose(z, other, atol=1e-5)


@pytest.mark.parametrize("from_labels", [False, True])
def test_people_never_seen_are_told_apart_better(from_labels: bool) -> None:
    data, new = people(), people(seed=2)
    learned = Wccn(shrinkage=0.1).fit(labels_alone(data) if from_labels else data)
    shares = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (learned, Cosine())]
    assert shares[0] > shares[1] + 0.15


def test_pairs_of_different_people_are_not_needed() -> None:
    data = labels_alone(people())
    [task] = data.tasks
    kept = task.same
    alone = replace(task, pairs=task.pairs[kept], same=task.same[kept], weights=task.weights[kept])
    z, other = (Wccn().fit(d).embed(d.rows) for d in (data, TrainingSet(data.rows, (alone,))))
    np.testing.assert_array_equal(z, other)


def test_a_wide_descriptor_is_projected_onto_its_leading_directions() -> None:
    rng = np.random.default_rng(0)
    data = people()
    basis = np.linalg.qr(rng.normal(size=(200, 30)))[0]
    wide = replace(data, rows=(data.rows @ basis.T).astype(np.float32))
    narrow, z = Wccn(shrinkage=0.5).fit(data).embed(data.rows), Wccn(shrinkage=0.5, axes=30).fit(wide).embed(wide.rows)
    assert z.shape == (300, 30)
    np.testing.assert_allclose(z @ z.T, narrow @ narrow.T, atol=0.05)

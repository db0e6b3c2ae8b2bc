import numpy as np
import pytest
import torch

from ml.embedders.base import TrainingSet
from ml.embedders.cosine import Cosine
from ml.embedders.low_rank import LowRank
from ml.metric_learning.logistic.low_rank_map import LowRankMap
from tests.ml.synthetic_people import labels_alone, nearest_is_alike, people


def test_the_gradients_equal_those_of_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, weights = (torch.randn(20, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    model = LowRankMap(1.7, torch.randn(3, 7, generator=generator, dtype=torch.float64), 0.3)
    model.left.copy_(torch.randn(7, 3, generator=generator, dtype=torch.float64))
    left, right = (p.clone().requires_grad_() for p in model.parameters)
    z = 1.7 * (rows + rows @ right.T @ left.T)
    ((z * weights).sum() + 0.3 * (1.7 * left @ right).square().sum()).backward()
    faces = np.arange(20)
    np.testing.assert_allclose(model.project(rows, faces), z.detach(), rtol=1e-12)
    np.testing.assert_allclose(rows @ model.projection.T, z.detach(), rtol=1e-12)
    for gradient, parameter in zip(model.gradients(rows, faces, weights), (left, right), strict=True):
        np.testing.assert_allclose(gradient, parameter.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{"steps": 0}, {"proximal_weight": 1e4}])
def test_nothing_changes_at_the_limit_of_its_options(options: dict[str, float]) -> None:
    data = people()
    z, cosine = LowRank.from_options(**options).fit(data).embed(data.rows), Cosine().embed(data.rows)
    np.testing.assert_allclose(z @ z.T, cosine @ cosine.T, atol=0.02)


def test_the_correction_has_the_rank_that_was_asked_for() -> None:
    learned = LowRank(rank=3, steps=30, proximal_weight=0.0).fit(people()).learned["projection"]
    scale = np.median(np.linalg.eigvals(learned).real)
    change = np.linalg.svd(learned / scale - np.eye(30), compute_uv=False)
    assert change[2] > 0.01
    assert change[3] < 1e-4


@pytest.mark.parametrize("from_labels", [False, True])
def test_people_never_seen_are_told_apart_better(from_labels: bool) -> None:
    data, new = people(), people(seed=2)
    learned = LowRank(proximal_weight=0.0).fit(labels_alone(data) if from_labels else data)
    shares = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (learned, Cosine())]
    assert shares[0] > shares[1] + 0.1


def test_the_pull_towards_the_start_is_felt() -> None:
    data = people()
    cosine = Cosine().embed(data.rows)
    moved = [
        float(
            np.abs((z := LowRank(proximal_weight=weight).fit(data).embed(data.rows)) @ z.T - cosine @ cosine.T).mean()
        )
        for weight in (0.0, 0.1, 10.0)
    ]
    assert moved[0] > moved[1] > moved[2]


def test_a_descriptor_that_is_wide_for_the_faces_is_projected_onto_fewer_axes() -> None:
    data = people(8, 3)
    wide = np.concatenate([data.rows] * 10, axis=1)
    z = LowRank(steps=5).fit(TrainingSet(wide, data.tasks)).embed(wide)
    assert z.shape == (24, 23)
    assert np.isfinite(z).all()

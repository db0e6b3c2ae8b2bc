import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from ml.embedders.base import TaskData, TrainingSet
from ml.embedders.clml import Clml
from ml.embedders.cosine import Cosine
from ml.embedders.ldml import Ldml
from ml.embedders.wpca import Wpca
from ml.errors import CannotGoOn, NotFitted, TooFewPairs
from ml.metric_learning.held_out_score import mean_average_precision
from ml.metric_learning.holdout import split_training_set
from ml.metric_learning.initial_maps import fit_discriminant
from ml.metric_learning.logistic.loss import logistic_loss, spherical_loss
from ml.metric_learning.logistic.maps import LinearMap
from ml.metric_learning.logistic.operating_point import OperatingLoss, find_threshold
from ml.metric_learning.logistic.pair_batches import PairBatch, PairBatches
from ml.metric_learning.subspace import fit_subspace
from ml.metric_learning.tensors import squared_distances
from ml.sampling.balanced import Balanced
from ml.sampling.uniform import Uniform
from tests.ml.synthetic_people import (
    contradicted,
    corrected,
    identity,
    labels_alone,
    nearest_is_alike,
    people,
    relative,
)

SMALL = {"dim": 6, "steps": 60}


def batch_of(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw z, bias, sign and weight of random size, in float64."""
    draw = torch.Generator().manual_seed(seed)
    n, d = (int(torch.randint(3, 20, (), generator=draw)) for _ in range(2))
    z = torch.randn(n, d, generator=draw, dtype=torch.float64)
    upper = torch.rand(2, n, n, generator=draw, dtype=torch.float64).triu(1)
    sign, weight = torch.where(upper[0] + upper[0].T > 0.5, 1.0, -1.0).double(), upper[1] + upper[1].T
    return z, torch.randn((), generator=draw, dtype=torch.float64), sign, weight


def slow_loss(z: torch.Tensor, bias: torch.Tensor, sign: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Equation 5, pair by pair."""
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(z)):
        for j in range(len(z)):
            margin = sign[i, j] * (bias - ((z[i] - z[j]) ** 2).sum())
            total = total + weight[i, j] * torch.log1p(torch.exp(-margin))
    return total


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_and_its_gradient_are_those_of_the_equation(seed: int) -> None:
    z, bias, sign, weight = batch_of(seed)
    loss, by_z, by_bias = logistic_loss(z, bias, sign, weight)
    z.requires_grad_(True)
    bias.requires_grad_(True)
    slow = slow_loss(z, bias, sign, weight)
    slow.backward()
    assert loss == pytest.approx(slow.item(), rel=1e-9)
    assert float((by_z - z.grad).norm() / z.grad.norm()) < 1e-9
    assert float(by_bias) == pytest.approx(float(bias.grad), rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_on_the_sphere_is_that_of_autograd(seed: int) -> None:
    z, bias, sign, weight = batch_of(seed)
    loss, by_z, by_bias = spherical_loss(z, bias, PairBatch(np.arange(len(z)), sign, weight), 1.7)
    z.requires_grad_(True)
    bias.requires_grad_(True)
    slow = slow_loss(1.7 * z / z.norm(dim=1, keepdim=True), bias, sign, weight)
    slow.backward()
    assert loss == pytest.approx(slow.item(), rel=1e-9)
    assert float((by_z - z.grad).norm() / z.grad.norm()) < 1e-9
    assert float(by_bias) == pytest.approx(float(bias.grad), rel=1e-9)
    assert float((by_z * z).sum(1).detach().abs().max()) < 1e-9, "how long z is changes nothing"


def make_random_batch(count: int = 24) -> tuple[torch.Tensor, PairBatch]:
    rng = np.random.default_rng(0)
    person = rng.integers(0, 6, count)
    sign = torch.from_numpy(np.where(person[:, None] == person, 1.0, -1.0))
    weight = torch.rand(count, count, dtype=torch.float64) * (1 - torch.eye(count, dtype=torch.float64))
    return torch.from_numpy(rng.normal(size=(count, 4))), PairBatch(np.arange(count), sign, weight + weight.T)


@pytest.mark.parametrize("radius", [0.0, 1.7])
def test_the_gradient_at_the_operating_point_equals_that_of_autograd(radius: float) -> None:
    z, batch = make_random_batch()
    bias, point = torch.tensor(2.0, dtype=torch.float64), OperatingLoss(0.7, 1.5)
    _, with_point, _ = spherical_loss(z, bias, batch, radius, point)
    _, without, _ = spherical_loss(z, bias, batch, radius)
    variable = z.clone().requires_grad_()
    scaled = radius * torch.nn.functional.normalize(variable) if radius else variable
    distances = (scaled[:, None] - scaled[None]).square().sum(2)
    known = batch.weight > 0
    positives, negatives = known & (batch.sign > 0), known & (batch.sign < 0)
    nearest = torch.where(negatives, distances, torch.inf).min(1).values
    missed = torch.nn.functional.softplus(10 / 1.5 * (distances - 1.5))[positives].mean()
    accepted = torch.nn.functional.softplus(10 / 1.5 * (1.5 - nearest)).mean()
    (0.7 * (missed + accepted) / 2).backward()
    np.testing.assert_allclose(with_point - without, variable.grad, rtol=1e-8, atol=1e-10)


def test_the_threshold_has_the_false_match_rate_of_the_operating_point() -> None:
    z, batch = make_random_batch(400)
    distances = (z[:, None] - z[None]).square().sum(2)
    negatives = distances[(batch.weight > 0) & (batch.sign < 0)]
    assert abs(float((negatives <= find_threshold(z, batch)).double().mean()) - 1e-3) < 2e-4


def test_the_loss_at_the_operating_point_keeps_more_strangers_out() -> None:
    data, shares = people(), {}
    for weight in (0.0, 20.0):
        learned = Ldml.from_options(**SMALL, operating_weight=weight, unit=False).fit(data)
        z, person = learned.embed(data.rows), data.tasks[0].people
        distances = ((z[:, None] - z[None]) ** 2).sum(2)
        same = (person[:, None] == person) & ~np.eye(len(z), dtype=bool)
        nearest = np.where(person[:, None] == person, np.inf, distances).min(1)
        shares[weight] = (distances[same] <= np.quantile(nearest, 0.01)).mean()
    assert shares[20.0] > shares[0.0]


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_by_the_map_is_that_of_autograd(seed: int) -> None:
    torch.manual_seed(seed)
    z, bias, sign, weight = batch_of(seed)
    rows = torch.randn(len(z), 11, dtype=torch.float64)
    model = LinearMap(torch.randn(4, 11, dtype=torch.float64), shrink=0.3, proximal_weight=0.2)
    model.start.normal_()
    _, by_z, _ = logistic_loss(model.project(rows, np.arange(len(z))), bias, sign, weight)
    [ours] = model.gradients(rows, np.arange(len(z)), by_z)
    free = model.projection.clone().requires_grad_(True)
    whole = slow_loss(rows @ free.T, bias, sign, weight)
    (whole + 0.3 * free.square().sum() + 0.2 * (free - model.start).square().sum()).backward()
    assert float((ours - free.grad).norm() / free.grad.norm()) < 1e-9


def test_the_few_best_axes_of_the_start_are_those_of_the_whole() -> None:
    data = people(80, seed=1)
    rows = torch.from_numpy(data.rows[:, :40] - data.rows[:, :40].mean(0))
    few, whole = (fit_discriminant(rows, data.tasks[0], dim, 1e-3) for dim in (4, 40))
    alike = (few * whole[:4]).sum(1) / (few.norm(dim=1) * whole[:4].norm(dim=1))
    assert float(alike.abs().min()) > 1 - 1e-4


def test_coordinates_in_principal_axes_are_learned_from_as_they_are() -> None:
    data = people(80, seed=1)
    space = fit_subspace(torch.from_numpy(data.rows), np.arange(len(data.rows)), 30, 0)
    inside = replace(data, rows=space.project(torch.from_numpy(data.rows)).numpy())
    whole = Ldml.from_options(**SMALL, axes=30).fit(data)
    same = Ldml.from_options(**SMALL, axes=0).fit(inside)
    np.testing.assert_allclose(same.embed(inside.rows), whole.embed(data.rows), atol=1e-3)


def test_coordinates_keep_their_origin_when_a_fit_goes_on() -> None:
    first, other = people(80, seed=1), people(60, seed=2)
    space = fit_subspace(torch.from_numpy(first.rows), np.arange(len(first.rows)), 30, 0)
    one, two = (replace(d, rows=space.project(torch.from_numpy(d.rows)).numpy()) for d in (first, other))
    before = Ldml.from_options(**SMALL, axes=0).fit(one)
    on = Ldml.from_options(**(SMALL | {"steps": 0}), axes=0).start_from(before).fit(two)
    np.testing.assert_allclose(on.embed(two.rows), before.embed(two.rows), atol=1e-4)


def test_full_rank_reaches_the_loss_of_logistic_regression() -> None:
    """LDML is convex in L^T L: without a pull it is logistic regression on -(u u^T) with a bias."""
    draw = np.random.default_rng(3)
    n, d = 70, 3
    rows = draw.normal(size=(n, d))
    truth = np.diag([1.5, 1.0, 0.7])
    first, second = np.triu_indices(n, 1)
    u = rows[first] - rows[second]
    chance = 1 / (1 + np.exp(-(2 - np.einsum("pi,ij,pj->p", u, truth, u))))
    same = draw.random(len(u)) < chance
    features = -np.einsum("pi,pj->pij", u, u).reshape(len(u), -1)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(features, same)
    theirs = np.logaddexp(0, -np.where(same, 1, -1) * oracle.decision_function(features)).sum()

    sign, weight = torch.zeros(2, n, n, dtype=torch.float64)
    sign[first, second] = sign[second, first] = torch.from_numpy(np.where(same, 1.0, -1.0))
    weight[first, second] = weight[second, first] = 0.5  # each pair stands there twice
    inputs = torch.from_numpy(rows)

    def ours(flat: np.ndarray) -> tuple[float, np.ndarray]:
        projection = torch.from_numpy(flat[:-1].reshape(d, d).copy())
        loss, by_z, by_bias = logistic_loss(inputs @ projection.T, torch.tensor(flat[-1]), sign, weight)
        return loss, np.append((by_z.T @ inputs).numpy().ravel(), float(by_bias))

    optimum = minimize(ours, np.append(np.eye(d).ravel(), 1.0), jac=True, options={"gtol": 1e-8})
    assert optimum.fun == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("spherical", [0.0, 0.7])
def test_what_was_learned_tells_new_people_apart_better_than_what_needs_no_labels(spherical: float) -> None:
    known, new = people(80, seed=1), people(60, seed=2)
    learned = Ldml.from_options(**SMALL, spherical=spherical).fit(known).embed(new.rows)
    start = Wpca(dim=6).fit(known).embed(new.rows)
    alike = [nearest_is_alike(z, new.tasks[0].people) for z in (learned, start)]
    assert alike[0] > alike[1] + 0.2


@pytest.mark.parametrize("start", ["lda", "wpca", "pca", "random"])
def test_shuffled_labels_teach_nothing(start: str) -> None:
    known, new = people(80, seed=1), people(60, seed=2)
    shuffled = np.random.default_rng(0).permutation(known.tasks[0].people)
    learned = Ldml.from_options(**SMALL, start=start).fit(TrainingSet(known.rows, (identity(shuffled),)))
    untrained = Wpca(dim=6).fit(known)
    alike = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (learned, untrained)]
    assert alike[0] < alike[1] + 0.1


def test_descriptors_of_another_scale_are_learned_as_well() -> None:
    data = people(seed=4)
    small, large = (
        Ldml.from_options(**SMALL).fit(data),
        Ldml.from_options(**SMALL).fit(TrainingSet(data.rows * 100, data.tasks)),
    )
    z, same_z = small.embed(data.rows), large.embed(data.rows * 100)
    assert np.abs(z - same_z).max() < 0.02 * np.abs(z).max()


@pytest.mark.parametrize("same", [True, False])
def test_thirty_explicit_labels_override_what_the_values_say(same: bool) -> None:
    data = people(seed=5)
    otherwise, pairs = contradicted(data, same)
    before, after = (relative(Ldml.from_options(**SMALL).fit(d).embed(data.rows), pairs) for d in (data, otherwise))
    assert after < before - 0.1 if same else after > before + 0.1


def test_a_pair_with_an_explicit_label_counts_no_longer_as_derived() -> None:
    data = corrected(people(10, seed=6), np.array([[0, 1], [0, 7]]), True)
    batches = PairBatches(data.tasks[0], Uniform(50), np.random.default_rng(0), negatives=20, corrections=0.0)
    batch = batches.draw(torch.device("cpu"))
    row_of_face = {int(face): at for at, face in enumerate(batch.faces[:50])}
    for i, j in ((0, 1), (0, 7)):
        assert float(batch.weight[row_of_face[i], row_of_face[j]]) == 0
    assert float(batch.weight[row_of_face[0], row_of_face[2]]) > 0


def test_explicit_labels_alone_are_enough() -> None:
    known, new = people(120, seed=7), people(60, seed=8)
    learned = Ldml.from_options(**SMALL).fit(labels_alone(known))
    untrained = Wpca(dim=6).fit(known)
    alike = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (learned, untrained)]
    assert alike[0] > alike[1] + 0.1


def test_values_within_the_tolerance_are_the_same() -> None:
    draw = np.random.default_rng(9)
    age = draw.uniform(18, 80, 400)
    rows = draw.normal(size=(400, 12)).astype(np.float32)
    rows[:, 0] += 0.05 * age
    data = TrainingSet(rows, (TaskData("age", np.arange(400), age, np.arange(400), tolerance=5),))
    z = Ldml.from_options(dim=2, steps=100).fit(data).embed(rows, "age")
    d2 = ((z[:, None] - z[None]) ** 2).sum(2) + np.diag(np.full(400, np.inf))
    nearest = np.abs(age[np.argsort(d2, 1)[:, :5]] - age[:, None]).mean()
    assert nearest < 16  # by chance 21


def test_people_held_out_choose_the_number_of_steps_and_a_refit_repeats_it() -> None:
    data = people(seed=10)
    seen: list[dict[str, float]] = []
    judged = Ldml.from_options(**SMALL, held_out=0.3).fit(
        data, progress=lambda step, steps, values: seen.append(values)
    )
    assert 1 <= judged.notes["steps"] <= 60
    assert 0 < judged.notes["held_out"] <= 1
    assert "held_out" in seen[-1]
    again = Ldml.from_options(dim=6, steps=judged.notes["steps"]).fit(data)
    assert again.notes["steps"] == judged.notes["steps"]


def test_labels_of_people_held_out_do_not_reach_the_fit() -> None:
    data = people(seed=11)
    [task] = data.tasks
    _, held = split_training_set(data, 10, 0.3, seed=0)
    poisoned = task.values.copy()
    poisoned[held.faces] = np.random.default_rng(0).permutation(poisoned[held.faces])
    one = split_training_set(data, 10, 0.3, seed=0)[0]
    other = split_training_set(TrainingSet(data.rows, (replace(task, values=poisoned),)), 10, 0.3, seed=0)[0]
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_array_equal(one.faces, other.faces)


def test_learning_goes_on_from_what_was_learned() -> None:
    data = people(seed=12)
    first = Ldml.from_options(**SMALL).fit(data)
    before = first.embed(data.rows)
    first.start, first.steps, first.rate = "learned", 1, 1e-6
    after = first.fit(data).embed(data.rows)
    ratio = np.linalg.norm(after, axis=1) / np.linalg.norm(before, axis=1)
    assert ratio.std() < 1e-3 * ratio.mean()
    with pytest.raises(NotFitted):
        Ldml.from_options(**SMALL, start="learned").fit(data)


def test_a_strong_pull_to_the_start_keeps_the_start() -> None:
    data = people(seed=13)
    start = Ldml.from_options(**SMALL | {"rate": 1e-9}).fit(data).embed(data.rows)
    held, free = (Ldml.from_options(**SMALL, proximal_weight=stay).fit(data).embed(data.rows) for stay in (10.0, 0.0))
    assert np.abs(held - start).max() < 0.1 * np.abs(free - start).max()


def test_pairs_of_one_kind_alone_are_refused() -> None:
    data = people(1, 20)
    with pytest.raises(TooFewPairs, match="not the same"):
        Ldml.from_options(dim=2).fit(data)


def test_a_balanced_batch_has_each_person_as_often_whoever_has_most_photos() -> None:
    person = np.repeat(np.arange(40), [400] + [3] * 39) * 1.0
    draw = Balanced(groups=10, faces=3, others=1).over(person, 0.0, np.random.default_rng(0))
    met = np.concatenate([np.unique(person[draw()]) for _ in range(400)])
    often = np.bincount(met.astype(int), minlength=40)
    assert often[1:].std() < 0.2 * often[1:].mean()
    batch = draw()
    assert len(np.unique(batch)) == len(batch)


def test_nothing_warns_on_a_descriptor_without_variance() -> None:
    data = people(seed=14)
    rows = data.rows.copy()
    rows[:, 5:] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        z = Ldml.from_options(dim=8, steps=5).fit(TrainingSet(rows, data.tasks)).embed(rows)
    assert np.isfinite(z).all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_learns_what_the_cpu_learns() -> None:
    data = people(seed=15)
    there, here = (Ldml.from_options(**SMALL, device=d).fit(data).embed(data.rows) for d in ("cuda", "cpu"))
    assert abs(nearest_is_alike(there, data.tasks[0].people) - nearest_is_alike(here, data.tasks[0].people)) < 0.05


def test_squared_distances_are_never_negative() -> None:
    z = torch.randn(1, 5).repeat(50, 1) * 1e3
    assert float(squared_distances(z).min()) >= 0


def test_labels_of_a_few_people_help_to_tell_strangers_apart() -> None:
    """A fit to 30 pairs of ten people is never worse than no fit, as it would be if it only memorised them."""
    shots, axes, labelled = 4, 150, 10
    person, loud = np.repeat(np.arange(100), shots), np.arange(1, axes + 1) ** -0.5
    telling = np.arange(axes) % 3 == 0
    first = np.arange(0, shots * labelled, shots)
    pairs = np.concatenate([np.stack([first, first + 1 + i], 1) for i in range(3)])
    different_pairs = np.stack([first, np.roll(first, 1) + 1], 1)
    strangers = np.arange(shots * labelled, len(person))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        whose = rng.normal(size=(100, axes)) * np.where(telling, 3.0, 0.9)
        photo = rng.normal(size=(len(person), axes)) * np.where(telling, 1.5, 3.0)
        rows = ((whose[person] + photo) * loud).astype(np.float32)
        task = TaskData(
            "identity", np.arange(len(person)), np.full(len(person), np.nan), person, 0.0,
            np.concatenate([pairs, different_pairs]), np.repeat([True, False], [len(pairs), len(different_pairs)]),
            np.ones(len(pairs) + len(different_pairs), np.float32),
        )  # fmt: skip
        data = TrainingSet(rows, (task,))
        untaught, taught = (
            mean_average_precision(torch.from_numpy(e.fit(data).embed(rows)[strangers]), person[strangers] * 1.0, 0.0)
            for e in (Wpca(dim=24, unit=True), Ldml.from_options(dim=24))
        )
        assert taught > 1.1 * untaught


def test_it_goes_on_from_any_one_linear_map_and_from_no_other(tmp_path: Path) -> None:
    data = people(seed=12)
    whole = Wpca(dim=4).fit(data)
    whole.save(tmp_path)
    after = (
        Ldml.from_options(**SMALL | {"steps": 1, "rate": 1e-9, "unit": False}).start_from(Wpca.load(tmp_path)).fit(data)
    )
    scale = np.linalg.norm(after.embed(data.rows), axis=1) / np.linalg.norm(whole.embed(data.rows), axis=1)
    assert scale.std() < 1e-3 * scale.mean()
    for refused in (Cosine(), Clml.from_options(dim=4, k=2, steps=5, first_steps=5).fit(data)):
        with pytest.raises(CannotGoOn, match="linear"):
            Ldml.from_options(**SMALL).start_from(refused)
    with pytest.raises(NotFitted):
        Ldml.from_options(**SMALL).start_from(Wpca())
    with pytest.raises(CannotGoOn, match="anew"):
        Wpca().start_from(whole)

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from ml.embedders.base import TrainingSet
from ml.embedders.clml import Clml
from ml.embedders.ldml import Ldml
from ml.metric_learning.logistic.loss import logistic_loss
from ml.metric_learning.logistic.maps import LinearMap, LocalMaps
from tests.ml.synthetic_people import nearest_is_alike, people
from tests.ml.test_ldml import batch_of

SMALL = {"dim": 6, "steps": 60, "first_steps": 60, "k": 3}


def local_of(seed: int, n: int, k: int, *, shrink: float = 0.0, pull: float = 0.0, anchor: float = 0.0) -> LocalMaps:
    """Return LocalMaps with random float64 numbers."""
    torch.manual_seed(seed)
    q = torch.rand(n, k, dtype=torch.float64) * (torch.rand(n, k) > 0.4) + 1e-3
    model = LocalMaps(torch.randn(4, 9, dtype=torch.float64), q / q.sum(1, keepdim=True), shrink, pull, anchor, 1.0)
    model.deviations.normal_()
    model.offsets.normal_()
    return model


def batch_for(seed: int) -> tuple[torch.Tensor, np.ndarray, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return (n, 9) rows, their numbers, and bias, sign and weight of their pairs."""
    z, *pair_values = batch_of(seed)
    return (
        torch.randn(len(z), 9, dtype=torch.float64),
        np.arange(len(z)),
        (pair_values[0], pair_values[1], pair_values[2]),
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_sum_form_is_one_projection_of_the_expanded_descriptor(seed: int) -> None:
    """Equation 4: z = (L_1, b_1, ..., L_k, b_k) (q_1 (x, 1), ..., q_k (x, 1))."""
    rows, faces, _ = batch_for(seed)
    model = local_of(seed, len(rows), k=1 + seed)
    expanded = torch.cat([model.q[:, [s]] * torch.cat([rows, torch.ones(len(rows), 1)], 1) for s in range(1 + seed)], 1)
    joined = torch.cat([torch.cat([m, b[:, None]], 1) for m, b in zip(model.maps, model.offsets, strict=True)], 1)
    assert float((model.project(rows, faces) - expanded @ joined.T).abs().max()) < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_is_that_of_autograd(seed: int) -> None:
    rows, faces, pair_values = batch_for(seed)
    k = 2 + seed
    model = local_of(seed, len(rows), k, shrink=0.3, pull=0.2, anchor=0.1)
    loss, by_z, _ = logistic_loss(model.project(rows, faces), *pair_values)
    ours = model.gradients(rows, faces, by_z)
    free = [p.clone().requires_grad_(True) for p in model.parameters]
    common, deviations, offsets = free
    maps = common + deviations
    z = torch.einsum("ns,nsd->nd", model.q, torch.einsum("sdr,nr->nsd", maps, rows) + offsets)
    bias, sign, weight = pair_values
    d2 = (z[:, None] - z[None]).square().sum(2)
    whole = (weight * torch.nn.functional.softplus(-sign * (bias - d2))).sum()
    assert loss == pytest.approx(whole.item(), rel=1e-9)
    pulls = 0.3 * maps.square().sum() + 0.2 * (maps - maps.mean(0)).square().sum() + 0.4 * offsets.square().sum()
    (whole + pulls / k).backward()
    for gradient, parameter in zip(ours, free, strict=True):
        assert float((gradient - parameter.grad).norm() / parameter.grad.norm()) < 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_equal_local_maps_are_one_global_map_for_any_assignment(seed: int) -> None:
    rows, faces, _ = batch_for(seed)
    model = local_of(seed, len(rows), k=5)
    model.deviations[:] = model.deviations[0]
    model.offsets[:] = model.offsets[0]
    one = rows @ model.maps[0].T + model.offsets[0]
    assert float((model.project(rows, faces) - one).abs().max()) < 1e-12


def test_one_local_map_learns_what_the_global_one_learns() -> None:
    rows, faces, pair_values = batch_for(7)
    start = torch.randn(4, 9, dtype=torch.float64)
    local = LocalMaps(start, torch.ones(len(rows), 1, dtype=torch.float64), 0.3, 0.2, 0.0, 1.0)
    linear = LinearMap(start.clone(), shrink=0.3)
    for _ in range(20):
        for model in (local, linear):
            _, by_z, _ = logistic_loss(model.project(rows, faces), *pair_values)
            # the map's step alone: common part and deviation are the same freedom twice
            model.parameters[0] -= 1e-3 * model.gradients(rows, faces, by_z)[0]
    assert float((local.maps[0] - linear.projection).abs().max()) < 1e-12


def test_before_its_first_step_the_loss_is_that_of_the_global_map() -> None:
    rows, faces, pair_values = batch_for(8)
    start = torch.randn(4, 9, dtype=torch.float64)
    q = torch.rand(len(rows), 3, dtype=torch.float64)
    local = LocalMaps(start, q / q.sum(1, keepdim=True), 0.1, 0.1, 0.1, 1.0)
    losses = [logistic_loss(m.project(rows, faces), *pair_values)[0] for m in (local, LinearMap(start))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_common_shift_and_a_common_turn_leave_the_loss() -> None:
    rows, faces, pair_values = batch_for(9)
    model = local_of(9, len(rows), k=4)
    before = logistic_loss(model.project(rows, faces), *pair_values)[0]
    model.offsets += torch.randn(4, dtype=torch.float64)
    shifted = logistic_loss(model.project(rows, faces), *pair_values)[0]
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    model.common[:], model.deviations[:] = turn @ model.common, turn @ model.deviations
    model.offsets[:] = model.offsets @ turn.T
    turned = logistic_loss(model.project(rows, faces), *pair_values)[0]
    assert shifted == pytest.approx(before, rel=1e-12)
    assert turned == pytest.approx(before, rel=1e-12)


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    return people(80, seed=1)


@pytest.fixture(scope="module")
def fitted(data: TrainingSet) -> Clml:
    return Clml.from_options(**SMALL).fit(data)


def test_assignments_sum_to_one_and_are_sparse(fitted: Clml, data: TrainingSet) -> None:
    q = fitted.assignments(data.rows)
    assert q.shape == (400, 3)
    np.testing.assert_allclose(q.sum(1), 1, atol=1e-6)
    assert (q == 0).any()


def test_the_embedding_is_the_sum_of_local_maps(fitted: Clml, data: TrainingSet) -> None:
    learned = {n: v.astype(np.float64) for n, v in fitted.learned.items()}
    maps, offsets = learned["projection"].reshape(3, 6, -1), learned["offset"].reshape(3, 6)
    q = fitted.assignments(data.rows).astype(np.float64)
    slow = sum(q[:, [s]] * (data.rows @ maps[s].T - offsets[s]) for s in range(3))
    slow /= np.linalg.norm(slow, axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.embed(data.rows), slow, atol=1e-4)


def test_a_threshold_that_goes_to_zero_changes_nothing_in_the_end(fitted: Clml, data: TrainingSet) -> None:
    loose = fitted.with_options(threshold=0.0)
    loose.learned, loose.tasks = fitted.learned, fitted.tasks
    whole = loose.embed(data.rows)
    errors = []
    for threshold in (1e-1, 1e-2, 1e-3, 1e-5):
        loose.threshold = threshold
        errors.append(np.abs(loose.embed(data.rows) - whole).max())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3


def test_without_a_second_stage_it_is_ldml_at_a_scale_of_its_own(data: TrainingSet) -> None:
    still = Clml.from_options(**SMALL | {"steps": 1}, rate=1e-8, local_rate=1e-8).fit(data)
    linear = Ldml.from_options(dim=6, steps=60, rate=1e-8).fit(data)
    z, same = still.embed(data.rows), linear.embed(data.rows)
    np.testing.assert_allclose(z / z.std(), same / same.std(), atol=1e-3)


def test_unless_it_is_rescaled_it_begins_where_the_first_map_ended(data: TrainingSet) -> None:
    first = Ldml.from_options(dim=6, steps=60).fit(data)
    still = SMALL | {"steps": 1, "local_rate": 1e-8}
    kept, anew = (Clml.from_options(**still, rescale=rescale).fit(data) for rescale in (False, True))
    z = first.embed(data.rows)
    np.testing.assert_allclose(kept.embed(data.rows), z, atol=1e-4 * z.std())
    assert float(kept.learned["bias"]) == pytest.approx(float(first.learned["bias"]), rel=0.02)
    maps = [float(np.linalg.norm(e.learned["projection"])) for e in (kept, anew)]
    assert maps[1] / maps[0] == pytest.approx((anew.learned["bias"] / kept.learned["bias"]) ** 0.5, rel=0.3)
    assert maps[1] / maps[0] != pytest.approx(1.0, rel=1e-2)


def test_a_first_map_learned_on_the_sphere_is_given_a_scale_in_any_case(data: TrainingSet) -> None:
    still = SMALL | {"steps": 1, "local_rate": 1e-8, "spherical": 0.7}
    kept, anew = (Clml.from_options(**still, rescale=rescale).fit(data) for rescale in (False, True))
    np.testing.assert_array_equal(kept.learned["projection"], anew.learned["projection"])


@pytest.mark.parametrize("gate", ["ldml", "descriptor"])
def test_pulling_the_maps_together_is_no_worse_on_known_and_on_new_people(gate: str, data: TrainingSet) -> None:
    new = people(80, seed=2)
    local, linear = (
        Clml.from_options(**SMALL, gate=gate, pull=1e-2).fit(data),
        Ldml.from_options(dim=6, steps=60).fit(data),
    )
    seen = [nearest_is_alike(e.embed(data.rows), data.tasks[0].people) for e in (local, linear)]
    unseen = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (local, linear)]
    assert seen[0] > seen[1] - 0.02
    assert unseen[0] > unseen[1] - 0.05


def test_shuffled_labels_teach_nothing(data: TrainingSet) -> None:
    new = people(80, seed=2)
    person = np.random.default_rng(0).permutation(data.tasks[0].people)
    shuffled = replace(data.tasks[0], values=person * 1.0, people=person)
    learned = Clml.from_options(**SMALL).fit(TrainingSet(data.rows, (shuffled,)))
    assert nearest_is_alike(learned.embed(new.rows), new.tasks[0].people) < 0.3


def test_people_held_out_choose_the_number_of_steps(data: TrainingSet) -> None:
    judged = Clml.from_options(**SMALL, held_out=0.3).fit(data)
    assert 0 <= judged.notes["steps"] <= 60
    assert 0 < judged.notes["held_out"] <= 1


def test_one_face_touches_only_the_maps_it_belongs_to(data: TrainingSet) -> None:
    """A wide descriptor: 128 maps must not cost 128 times one map."""
    draw = np.random.default_rng(0)
    wide = Clml.from_options(dim=32, k=128, threshold=1e-3)
    width = 4000
    wide.learned = {
        "projection": draw.normal(size=(128 * 32, width)).astype(np.float32),
        "offset": np.zeros(128 * 32, np.float32),
        "gate": draw.normal(size=(32, width)).astype(np.float32),
        "gate_offset": np.zeros(32, np.float32),
        "means": 50 * draw.normal(size=(128, 32)).astype(np.float32),
        "variances": np.ones((128, 32), np.float32),
        "log_weights": np.full(128, -np.log(128), np.float32),
    }
    row = draw.normal(size=(1, width)).astype(np.float32)
    assert (wide.assignments(row) > 0).sum() <= 2
    every = np.random.default_rng(1).normal(size=(1, width)).astype(np.float32)
    sparse = min(_timed(lambda: wide.embed(every)) for _ in range(20))
    dense = min(_timed(lambda: wide.learned["projection"] @ every[0]) for _ in range(20))
    assert sparse < dense


def _timed(call: object) -> float:
    """Return CPU seconds over all threads, because the wall clock depends on how many a library uses."""
    start = time.process_time()
    call()  # type: ignore[operator]
    return time.process_time() - start


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_people_held_out_choose_the_number_of_maps(data: TrainingSet, held_out: float) -> None:
    chosen = Clml.from_options(**SMALL, ks=(1, 2, 5), held_out=held_out).fit(data)
    held_out_by_k = chosen.notes["held_out_by_k"]
    k = chosen.notes["k"]
    assert held_out_by_k[str(k)] == max(held_out_by_k.values())
    assert len(chosen.learned["log_weights"]) == k
    again = Clml.from_options(**SMALL | chosen.refit_options()).fit(data)
    assert len(again.learned["log_weights"]) == k
    if held_out == 0:
        np.testing.assert_array_equal(again.embed(data.rows), chosen.embed(data.rows))


def test_a_fit_continues_from_one_map_and_from_the_common_map_of_several(fitted: Clml, data: TrainingSet) -> None:
    still = SMALL | {"dim": 4, "steps": 1, "first_steps": 1, "rate": 1e-9, "local_rate": 1e-9, "unit": False}
    linear = Ldml.from_options(dim=6, steps=60).fit(data)
    common = fitted.learned["projection"].reshape(3, 6, -1).mean(0)
    for before, projection in ((linear, linear.learned["projection"]), (fitted, common)):
        made = Clml.from_options(**still).start_from(before).fit(data)
        scale = np.linalg.norm(made.embed(data.rows), axis=1) / np.linalg.norm(
            (data.rows - data.rows.mean(0)) @ projection.T, axis=1
        )
        assert made.dim == 6
        assert scale.std() < 0.02 * scale.mean()

import numpy as np
import pytest
import torch

from ml.embedders.base import TrainingSet
from ml.embedders.l2 import L2
from ml.embedders.scml import Scml
from ml.errors import TooFewPairs, WrongShape
from ml.metric_learning.initial_maps import fit_regional_discriminants
from ml.metric_learning.sparse_weights import LocalWeights, SparseWeights
from ml.metric_learning.triplets import TripletBatches
from tests.ml.synthetic_people import identity, nearest_is_alike, people

SMALL = {
    "dim": 30,
    "bases": 60,
    "regions": 6,
    "around": 120,
    "steps": 150,
    "batch": 200,
    "pace": 0.05,
    "local_steps": 40,
}
DATA = people(80, seed=1)
NEW = people(80, seed=2)


def draw_triplets(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """p (N, bases) and triplets (T, 4) of random size, in float64."""
    draw = torch.Generator().manual_seed(seed)
    bases, count = (int(n) for n in torch.randint(3, 20, (2,), generator=draw))
    triplets = torch.stack([torch.randperm(25, generator=draw)[:4] for _ in range(count)])
    return torch.randn(25, bases, generator=draw, dtype=torch.float64), triplets


def slow_loss(z: torch.Tensor, triplets: torch.Tensor) -> torch.Tensor:
    """mean [1 + |z_i - z_j|^2 - |z_k - z_l|^2]_+, one by one."""
    each = [
        torch.relu(1 + (z[i] - z[j]).square().sum() - (z[k] - z[l]).square().sum()) for i, j, k, l in triplets.tolist()
    ]
    return torch.stack(each).mean()


@pytest.mark.parametrize("seed", range(4))
def test_dual_averaging_equals_its_equation(seed: int) -> None:
    p, triplets = draw_triplets(seed)
    weights = SparseWeights(torch.rand(p.shape[1], dtype=torch.float64), sparsity=0.03, pace=0.2)
    gradients = []
    for t in range(1, 6):
        free = weights.w.clone().requires_grad_()
        loss = slow_loss(p * free.sqrt(), triplets)
        [gradient] = torch.autograd.grad(loss, free) if t == 1 or bool((weights.w > 0).all()) else [None]
        loss_of_step = weights.step(p, triplets)
        assert loss_of_step == pytest.approx(float(loss.detach()), rel=1e-9)
        if gradient is None:
            break
        gradients.append(gradient)
        mean = torch.stack(gradients).mean(0)
        # w = argmin <mean, w> + sparsity |w|_1 + |w|^2 / (2 pace sqrt(t)), w >= 0
        expected = (-(mean + 0.03) * 0.2 * t**0.5).clamp_min(0)
        assert float((weights.w - expected).abs().max()) < 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_of_the_local_form_is_that_of_autograd(seed: int) -> None:
    p, triplets = draw_triplets(seed)
    draw = torch.Generator().manual_seed(seed + 50)
    q = torch.rand(25, 3, generator=draw, dtype=torch.float64)
    local = LocalWeights(torch.rand(3, p.shape[1], generator=draw, dtype=torch.float64), q / q.sum(1, keepdim=True), 0)
    free = local.scales.clone().requires_grad_()
    loss = slow_loss(p * (local.q @ free), triplets)
    loss.backward()
    mean_loss, ours = local.gradient(p, triplets)
    assert mean_loss == pytest.approx(float(loss.detach()), rel=1e-9)
    assert float((ours - free.grad).norm() / free.grad.norm().clamp_min(1e-12)) < 1e-9


def test_a_proximal_step_takes_a_whole_base_away_or_leaves_all_its_scales() -> None:
    p, triplets = draw_triplets(3)
    q = torch.full((25, 2), 0.5, dtype=torch.float64)
    start = torch.rand(2, p.shape[1], dtype=torch.float64) * torch.linspace(0.01, 1, p.shape[1])
    local = LocalWeights(start.clone(), q, sparsity=0.5)
    _, gradient = local.gradient(p, triplets)
    local.step(p, triplets, 0.1)
    moved = (start - 0.1 * gradient).clamp_min(0)
    gone = moved.norm(dim=0) <= 0.05
    assert bool(gone.any())
    assert not bool(gone.all())
    assert not local.scales[:, gone].any()
    left = moved[:, ~gone]
    np.testing.assert_allclose(local.scales[:, ~gone], left * (1 - 0.05 / left.norm(dim=0)), rtol=1e-12)


def test_equal_scales_are_the_global_form() -> None:
    p, _ = draw_triplets(2)
    w = torch.rand(p.shape[1], dtype=torch.float64)
    q = torch.rand(25, 4, dtype=torch.float64)
    local = LocalWeights(w.sqrt().repeat(4, 1), q / q.sum(1, keepdim=True), 0.0)
    assert float((local.transform(p) - p * w.sqrt()).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("option", "k", "tried"), [("sparsity", 1, (0.0, 0.1, 0.3, 0.5)), ("local_sparsity", 3, (0.0, 0.08, 0.12, 0.16))]
)
def test_more_sparsity_leaves_fewer_bases_and_no_weight_below_zero(option: str, k: int, tried: tuple[float]) -> None:
    left = []
    for sparsity in tried:
        fitted = Scml(**SMALL, k=k, **{option: sparsity}).fit(DATA)
        scales = fitted.learned["scales"]
        assert (scales >= 0).all()
        assert fitted.notes["bases"] == (scales > 0).any(0).sum()
        left.append(fitted.notes["bases"])
    assert left == sorted(left, reverse=True)
    assert 0 < left[-1] < left[0] / 2


@pytest.mark.parametrize(("option", "k"), [("sparsity", 1), ("local_sparsity", 3)])
def test_too_much_sparsity_is_refused(option: str, k: int) -> None:
    with pytest.raises(WrongShape, match=f"{option} must be so small that at least one base is used, not 50"):
        Scml(**SMALL, k=k, **{option: 50.0}).fit(DATA)


def test_the_squared_distance_is_the_weighted_sum_over_the_bases() -> None:
    fitted = Scml(**SMALL, unit=False).fit(DATA)
    basis, w = fitted.learned["basis"].astype(np.float64), fitted.learned["scales"][0].astype(np.float64) ** 2
    u = (NEW.rows[:50] - NEW.rows[50:100]).astype(np.float64)
    z = fitted.embed(NEW.rows)
    d2 = ((z[:50] - z[50:100]).astype(np.float64) ** 2).sum(1)
    # the descriptor has 30 numbers, so 30 principal axes of z lose nothing
    np.testing.assert_allclose(d2, (u @ basis.T) ** 2 @ w, rtol=1e-3)


def test_a_smaller_dimension_keeps_the_best_bases() -> None:
    wide, narrow = (Scml(**SMALL | {"dim": dim}, unit=False).fit(DATA).embed(DATA.rows) for dim in (30, 4))
    centred = wide.astype(np.float64) - wide.mean(0)
    strength = np.linalg.svd(centred, compute_uv=False) ** 2
    assert narrow.shape[1] == 4
    kept = ((narrow - narrow.mean(0)).astype(np.float64) ** 2).sum()
    assert kept == pytest.approx(strength[:4].sum(), rel=1e-2)


@pytest.mark.parametrize("k", [1, 3])
def test_new_people_are_distinguished(k: int) -> None:
    learned = Scml(**SMALL, k=k).fit(DATA)
    shares_right = [nearest_is_alike(e.embed(NEW.rows), NEW.tasks[0].people) for e in (learned, L2())]
    assert shares_right[0] > shares_right[1] + 0.2


@pytest.mark.parametrize("k", [1, 3])
def test_shuffled_labels_teach_nothing(k: int) -> None:
    person = np.random.default_rng(0).permutation(DATA.tasks[0].people)
    learned = Scml(**SMALL, k=k, sparsity=0.0).fit(TrainingSet(DATA.rows, (identity(person),)))
    shares_right = [nearest_is_alike(e.embed(NEW.rows), NEW.tasks[0].people) for e in (learned, L2())]
    assert shares_right[0] < shares_right[1] + 0.15


def test_the_local_form_goes_on_from_the_global_one() -> None:
    one, still = Scml(**SMALL, unit=False).fit(DATA), Scml(**SMALL | {"local_steps": 0}, k=3, unit=False).fit(DATA)
    # distances, for the axes of z may be turned where they are about equally strong
    d2 = [((z[:200] - z[200:]).astype(np.float64) ** 2).sum(1) for z in (still.embed(NEW.rows), one.embed(NEW.rows))]
    np.testing.assert_allclose(d2[0], d2[1], rtol=1e-3)
    moved = Scml(**SMALL, k=3, unit=False).fit(DATA)
    assert np.abs(moved.learned["scales"] - moved.learned["scales"][0]).max() > 0.01


def test_people_held_out_choose_the_number_of_steps() -> None:
    reports: list[dict[str, float]] = []
    fitted = Scml(**SMALL, held_out=0.3).fit(DATA, progress=lambda step, steps, values: reports.append(values))
    assert 0 < fitted.notes["steps"] <= 150
    assert fitted.notes["held_out"] == max(v["held_out"] for v in reports if "held_out" in v)


def test_bases_are_the_discriminants_of_regions() -> None:
    x = torch.from_numpy(DATA.rows - DATA.rows.mean(0))
    order = x.std(0).argsort(descending=True)
    bases = fit_regional_discriminants(x[:, order], DATA.tasks[0], 40, 4, 150, 2e-4, 0.0, 0)
    assert bases.shape == (40, 30)
    np.testing.assert_allclose((x[:, order] @ bases.T).var(0), 0.5, rtol=1e-3)
    telling = torch.zeros(30).index_fill_(0, torch.arange(8), 1)[order]
    share = (bases.square() @ telling) / bases.square().sum(1)
    first = share.view(4, 10)[:, 0]  # the first axis of each region
    assert float(first.min()) > 0.7


def test_triplets_join_a_pair_of_one_person_and_a_pair_of_two() -> None:
    draws = TripletBatches(DATA.tasks[0], np.random.default_rng(0), 2000, 0.2)
    i, j, k, l = draws.draw(3000).T
    person = DATA.tasks[0].people
    assert (i != j).all()
    np.testing.assert_array_equal(person[i], person[j])
    assert (person[k] != person[l]).all()
    assert (k == i).mean() > 0.95


def test_explicit_labels_override_people_and_reach_the_triplets() -> None:
    person = DATA.tasks[0].people
    wrong = np.array([[a, a + 1] for a in range(0, 400, 5)])  # told to be different though values say the same
    task = identity(person, pairs=wrong, same=np.zeros(80, np.bool_), weights=np.ones(80, np.float32))
    i, j, k, l = TripletBatches(task, np.random.default_rng(0), 4000, 0.2).draw(5000).T
    labelled = {tuple(p) for p in wrong.tolist()}
    assert not any(tuple(sorted(p)) in labelled for p in zip(i.tolist(), j.tolist(), strict=True))
    heard = np.mean([tuple(sorted(p)) in labelled for p in zip(k.tolist(), l.tolist(), strict=True)])
    assert 0.07 < heard < 0.2  # 0.2 * 80 / (80 + 50)


def test_it_learns_from_explicit_labels_alone() -> None:
    person, draw = DATA.tasks[0].people, np.random.default_rng(3)
    mates = np.stack([np.arange(400), np.arange(400) // 5 * 5 + draw.integers(0, 5, 400)], 1)
    pairs = np.concatenate([mates, draw.integers(0, 400, (400, 2))])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    task = identity(
        person,
        pairs=pairs,
        same=person[pairs[:, 0]] == person[pairs[:, 1]],
        weights=np.ones(len(pairs), np.float32),
    )
    task.values[:] = np.nan
    learned = Scml(**SMALL).fit(TrainingSet(DATA.rows, (task,)))
    shares_right = [nearest_is_alike(e.embed(NEW.rows), NEW.tasks[0].people) for e in (learned, L2())]
    assert shares_right[0] > shares_right[1] + 0.1


def test_fewer_faces_than_components_are_refused() -> None:
    with pytest.raises(TooFewPairs, match="500 faces needed, 400 found"):
        Scml(**SMALL, k=500).fit(DATA)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("k", [1, 3])
def test_a_gpu_learns_what_the_cpu_learns(k: int) -> None:
    here, there = (Scml(**SMALL, k=k, unit=False, device=d).fit(DATA).embed(NEW.rows) for d in ("cpu", "cuda"))
    d2 = [((z[:100] - z[100:200]) ** 2).sum(1) for z in (here, there)]
    np.testing.assert_allclose(d2[0], d2[1], rtol=0.02)

import numpy as np
import pytest
import torch

from ml.embedders.base import TrainingSet
from ml.embedders.pcca import Pcca
from ml.embedders.wpca import Wpca
from ml.metric_learning.hinge.losses import SoftHingeLoss
from ml.metric_learning.hinge.projections import Projections, Rates
from tests.ml.synthetic_people import identity, nearest_is_alike, people

SMALL = {"dim": 6, "steps": 400, "batch": 64, "pairs": 4000, "averaging": 0.9, "held_out": 0.0}
FREE = Rates(own=1e-3, common=0.0, bias=0.0)


def draw_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """rows, L, pairs, sign, weight of random size, in float64."""
    draw = torch.Generator().manual_seed(seed)
    width, d, count = (int(n) for n in torch.randint(3, 14, (3,), generator=draw))
    rows = torch.randn(30, width, generator=draw, dtype=torch.float64)
    pairs = torch.stack([torch.randperm(30, generator=draw)[:2] for _ in range(count)])
    sign = torch.where(torch.rand(count, generator=draw) > 0.5, 1.0, -1.0).double()
    weight = torch.rand(count, generator=draw, dtype=torch.float64)
    return rows, torch.randn(d, width, generator=draw, dtype=torch.float64) / 3, pairs, sign, weight


def slow_loss(
    rows: torch.Tensor, at: torch.Tensor, pairs: torch.Tensor, sign: torch.Tensor, beta: float
) -> torch.Tensor:
    """Equation 2, pair by pair: l_beta(y (D^2 - 1))."""
    losses = []
    for (i, j), y in zip(pairs.tolist(), sign.tolist(), strict=True):
        d2 = ((at @ (rows[i] - rows[j])) ** 2).sum()
        losses.append(torch.log1p(torch.exp(beta * y * (d2 - 1))) / beta)
    return torch.stack(losses)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("beta", [1.0, 3.0])
def test_a_step_is_half_the_gradient_of_the_generalised_logistic_loss(seed: int, beta: float) -> None:
    rows, start, pairs, sign, weight = draw_batch(seed)
    free = start.clone().requires_grad_()
    losses = weight * slow_loss(rows, free, pairs, sign, beta)
    losses.sum().backward()
    at = Projections(None, [start.clone()], [1.0], SoftHingeLoss(beta))
    mean_loss = at.step(0, rows, pairs, sign, weight, FREE)
    ours = (start - at.own[0]) / FREE.own * 2
    assert mean_loss == pytest.approx(float(losses.mean().detach()), rel=1e-9)
    assert float((ours - free.grad).norm() / free.grad.norm()) < 1e-9
    assert at.bias == [1.0]


def test_as_beta_grows_the_loss_becomes_a_hinge_without_margin() -> None:
    margin = torch.linspace(-2, 2, 41, dtype=torch.float64)
    gaps = []
    for beta in (1.0, 10.0, 1000.0):
        loss, slope = SoftHingeLoss(beta)(margin)
        gaps.append(float((loss - (-margin).clamp_min(0)).abs().max()))
        assert bool((slope >= 0).all() and (slope <= 1).all())
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-3


def test_full_batches_descend() -> None:
    """The paper's plain gradient descent: every pair at each step."""
    data, losses = people(), []
    learner = Pcca.from_options(dim=6, steps=40, batch=500, pairs=500, rate=0.02, averaging=0.0, held_out=0.0)
    learner.fit(data, progress=lambda step, steps, values: losses.append(values["loss"]))
    assert len(losses) == 40
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]


def test_the_threshold_is_not_learned() -> None:
    assert Pcca.from_options(**SMALL).fit(people()).learned["bias"].tolist() == [1.0]


def test_new_people_are_told_apart_better_than_by_its_start() -> None:
    known, new = people(80, seed=1), people(60, seed=2)
    shares_right = [
        nearest_is_alike(e.fit(known).embed(new.rows), new.tasks[0].people)
        for e in (Pcca.from_options(**SMALL), Wpca(dim=6))
    ]
    assert shares_right[0] > shares_right[1] + 0.1


def test_shuffled_labels_teach_nothing() -> None:
    known, new = people(80, seed=1), people(60, seed=2)
    shuffled = TrainingSet(known.rows, (identity(np.random.default_rng(0).permutation(known.tasks[0].people)),))
    learned, start = Pcca.from_options(**SMALL).fit(shuffled), Wpca(dim=6).fit(known)
    shares_right = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (learned, start)]
    assert shares_right[0] < shares_right[1] + 0.1


def test_given_pairs_alone_are_enough() -> None:
    known, new = people(80, seed=1), people(60, seed=2)
    person, draw = known.tasks[0].people, np.random.default_rng(3)
    pairs = draw.integers(0, 400, (4000, 2))
    near = (np.arange(800) // 2, (np.arange(800) // 2) // 5 * 5 + draw.integers(0, 5, 800))
    pairs = np.concatenate([pairs, np.stack(near, 1)])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    same = person[pairs[:, 0]] == person[pairs[:, 1]]
    task = identity(person, pairs=pairs, same=same, weights=np.ones(len(pairs), np.float32))
    task.values[:] = np.nan
    learned = Pcca.from_options(**SMALL).fit(TrainingSet(known.rows, (task,)))
    start = Wpca(dim=6).fit(known)
    shares_right = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (learned, start)]
    assert shares_right[0] > shares_right[1]

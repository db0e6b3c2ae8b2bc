"""Sub-SML (000, equations 21 to 23): a convex program, its certificate, and the distance that it ends in."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ml.embedders.base import TaskData, ignore_progress
from ml.embedders.subsml import Subsml
from ml.metric_learning.held_out_score import compute_auc
from ml.metric_learning.similarity_program import SimilarityProgram
from tests.ml.synthetic_people import people


def program(seed: int, pull: float = 0.05) -> SimilarityProgram:
    torch.manual_seed(seed)
    pairs, r = 60, 2 + seed
    x, sign = torch.randn(pairs, r, dtype=torch.float64), torch.sign(torch.randn(pairs, dtype=torch.float64))
    noise = torch.randn(pairs, r, dtype=torch.float64)
    y = torch.where(sign[:, None] > 0, x + 0.8 * noise, noise)
    weight = torch.rand(pairs, dtype=torch.float64)
    return SimilarityProgram(x, y, sign, weight / weight.sum(), pull)


def printed(of: SimilarityProgram, alike: Tensor, apart: Tensor) -> float:
    """Equation 22, pair by pair."""
    total = 0.0
    for x, y, r, w in zip(of.x, of.y, of.sign, of.weight, strict=True):
        f = x @ alike @ y - (x - y) @ apart @ (x - y)
        total += float(w * max(0.0, 1 - float(r * f)))
    eye = torch.eye(of.x.shape[1], dtype=torch.float64)
    return total + of.pull / 2 * float(((alike - eye) ** 2).sum() + ((apart - eye) ** 2).sum())


def near(matrix: Tensor, far: float) -> Tensor:
    """Return another positive semidefinite matrix that is near."""
    moved = matrix + far * torch.randn_like(matrix)
    strength, turn = torch.linalg.eigh((moved + moved.T) / 2)
    similarity: Tensor = (turn * strength.clamp_min(0)) @ turn.T
    return similarity


@pytest.mark.parametrize("seed", range(4))
def test_the_solution_has_the_smallest_loss_of_its_neighbourhood(seed: int) -> None:
    of = program(seed)
    solution = of.solve(5000, 1e-7, ignore_progress)
    printed_loss = printed(of, solution.similarity, solution.distance)
    assert solution.loss == pytest.approx(printed_loss, rel=1e-9)
    assert 0 <= solution.gap <= 1e-7
    assert torch.linalg.eigvalsh(torch.stack([solution.similarity, solution.distance])).min() > -1e-9
    for far in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(10):
            assert printed(of, near(solution.similarity, far), near(solution.distance, far)) >= printed_loss * (
                1 - 1e-7
            )
    start = torch.eye(of.x.shape[1], dtype=torch.float64)
    assert printed_loss < printed(of, start, start) * 0.99


@pytest.mark.parametrize("seed", range(3))
def test_a_strong_pull_leaves_the_identity_and_more_steps_bring_the_gap_down(seed: int) -> None:
    held = program(seed, pull=1e6).solve(50, 1e-12, ignore_progress)
    eye = torch.eye(2 + seed, dtype=torch.float64)
    torch.testing.assert_close(held.similarity, eye, atol=1e-5, rtol=0)
    torch.testing.assert_close(held.distance, eye, atol=1e-5, rtol=0)
    gaps = [program(seed).solve(steps, 0.0, ignore_progress).gap for steps in (5, 50, 500)]
    assert gaps[0] > gaps[1] > gaps[2] >= -1e-12


@pytest.mark.parametrize("seed", range(3))
def test_the_inner_product_with_one_negative_number_is_the_similarity(seed: int) -> None:
    data = people(seed=seed)
    fitted = Subsml(steps=60, seed=seed).fit(data)
    z, learned = fitted.embed(data.rows), {name: a.astype(np.float64) for name, a in fitted.learned.items()}
    x = data.rows.astype(np.float64) @ learned["axes"].T - learned["offset"]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    apart = learned["apart"]
    alike = learned["projection"].T @ learned["projection"] - 2 * apart
    i, j = np.random.default_rng(seed).integers(0, len(x), (2, 50))
    f = [x[a] @ alike @ x[b] - (x[a] - x[b]) @ apart @ (x[a] - x[b]) for a, b in zip(i, j, strict=True)]
    np.testing.assert_allclose(fitted.metric.paired_distances(z[i], z[j]), -np.array(f), rtol=1e-4, atol=1e-4)
    assert np.linalg.eigvalsh(alike).min() > -1e-3 * np.linalg.eigvalsh(alike).max()
    np.testing.assert_allclose(fitted.metric.distances(z[:5], z[5:9]).T, fitted.metric.distances(z[5:9], z[:5]), 1e-5)


def test_new_people_are_distinguished_better_than_before_the_fit() -> None:
    data = people(120)
    who = data.tasks[0].people
    seen = np.flatnonzero(who < 80)
    known = TaskData("identity", seen, data.tasks[0].values[seen], who[seen])
    i, j = np.triu_indices(int((who >= 80).sum()), 1)
    sign = torch.from_numpy(np.where((who[who >= 80][i] == who[who >= 80][j]), 1.0, -1.0))
    auc = []
    for steps in (1, 300):
        fitted = Subsml(steps=steps, pull=1e-3 if steps > 1 else 1e6).fit(type(data)(data.rows, (known,)))
        z = fitted.embed(data.rows[who >= 80])
        auc.append(compute_auc(torch.from_numpy(-fitted.metric.distances(z, z)[i, j]), sign))
    assert auc[1] > auc[0] + 0.01
    assert auc[1] > 0.9

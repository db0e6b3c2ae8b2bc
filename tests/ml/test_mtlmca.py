import numpy as np
import pytest
import torch

from ml.embedders.mtlmca import Mtlmca
from ml.embedders.utml import Utml
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.hinge.turned_projections import TurnedProjections
from tests.ml.synthetic_people import two_tasks
from tests.ml.test_cpmtml import RATES, close, learn, made, mean_distance_ratio, pairs_of

QUICK = {"dim": 6, "steps": 200, "batch": 32, "pairs": 2000, "auxiliary_pairs": 2000, "averaging": 0.9, "held_out": 0}
DATA = two_tasks()


def turned(tasks: int, seed: int) -> tuple[torch.Tensor, TurnedProjections]:
    rows, at = made(tasks, seed)
    turns = [torch.eye(5, dtype=rows.dtype) + torch.randn(5, 5, dtype=rows.dtype) / 4 for _ in range(tasks)]
    return rows, TurnedProjections(at.common, turns, [1.0] * tasks)


@pytest.mark.parametrize("seed", range(4))
def test_a_step_is_half_the_gradient_of_the_hinge(seed: int) -> None:
    rows, at = turned(3, seed)
    draw = torch.Generator().manual_seed(seed)
    pairs = torch.stack([torch.randperm(40, generator=draw)[:2] for _ in range(9)])
    sign = torch.where(torch.rand(9, generator=draw) > 0.5, 1.0, -1.0).double()
    weight = torch.rand(9, generator=draw, dtype=torch.float64)
    common, turn, bias = (
        torch.as_tensor(p, dtype=torch.float64).clone().requires_grad_() for p in (at.common, at.own[1], at.bias[1])
    )
    d2 = ((rows[pairs[:, 0]] - rows[pairs[:, 1]]) @ common.T @ turn).square().sum(1)
    loss = (weight * (1 - sign * (bias - d2)).clamp_min(0)).sum()
    loss.backward()
    before = at.clone()
    mean_loss = at.step(1, rows, pairs, sign, weight, RATES)
    assert mean_loss == pytest.approx(float(loss.detach()) / 9)
    assert close((before.common - at.common) / RATES.common * 2, common.grad, 1e-9)
    assert close((before.own[1] - at.own[1]) / RATES.own * 2, turn.grad, 1e-9)
    assert before.bias[1] - at.bias[1] == pytest.approx(RATES.bias * float(bias.grad), rel=1e-9)


def test_a_tasks_pairs_never_move_another_tasks_turn() -> None:
    rows, at = turned(3, 0)
    before = at.clone()
    learn(at, rows, [(1, i, j, y) for _, i, j, y in pairs_of(1, 50)])
    assert not torch.equal(at.own[1], before.own[1])
    assert torch.equal(at.own[0], before.own[0])
    assert torch.equal(at.own[2], before.own[2])


def test_with_turns_held_at_the_identity_it_is_one_projection_for_all() -> None:
    rows, at = made(tasks=2)
    union = Projections(at.common.clone(), [p[:0] for p in at.own], [1.0, 1.0])
    eye = torch.eye(5, dtype=rows.dtype)
    held = TurnedProjections(at.common, [eye, eye.clone()], [1.0, 1.0])
    pairs = pairs_of(2, 200)
    learn(held, rows, pairs, Rates(0.0, RATES.common, RATES.bias))
    learn(union, rows, pairs)
    assert close(held.common, union.common)
    assert held.bias == pytest.approx(union.bias, rel=1e-12)


def test_without_turning_it_learns_what_utml_learns() -> None:
    held, union = Mtlmca.from_options(**QUICK, turning=0.0).fit(DATA), Utml.from_options(**QUICK).fit(DATA)
    np.testing.assert_allclose(held.embed(DATA.rows), union.embed(DATA.rows), atol=1e-4)


def test_orthogonal_turns_change_no_distance() -> None:
    rows, at = turned(1, 5)
    at.own = [torch.linalg.qr(at.own[0])[0]]
    u = rows[0] - rows[1]
    assert float((at.stack(0) @ u).square().sum()) == pytest.approx(float((at.common @ u).square().sum()), rel=1e-12)


def test_each_task_is_told_apart_better_in_its_own_space() -> None:
    fitted = Mtlmca.from_options(**QUICK | {"steps": 600}).fit(DATA)
    for task, other in (("identity", "mood"), ("mood", "identity")):
        values = DATA.task(task).values
        own, theirs = (mean_distance_ratio(fitted.embed(DATA.rows, t), values) for t in (task, other))
        assert own > theirs
        assert own > mean_distance_ratio(DATA.rows, values) + 0.1


def test_the_printed_start_is_the_first_numbers_of_the_descriptor() -> None:
    fitted = Mtlmca.from_options(**QUICK | {"steps": 1}, rate=1e-9, start="eye").fit(DATA)
    z = fitted.embed(DATA.rows)
    first = DATA.rows[:, :6] - DATA.rows[:, :6].mean(0)
    np.testing.assert_allclose(z / z.std(), first / first.std(), atol=1e-3)
    assert np.median(((z[:100] - z[100:200]) ** 2).sum(1)) == pytest.approx(2, rel=0.3)


def test_the_distances_of_all_tasks_use_one_common_projection() -> None:
    """L_t = R_t^T L_0: whatever the tasks, the rows of L_t lie in the d dimensions of L_0's."""
    fitted = Mtlmca.from_options(**QUICK).fit(DATA)
    stacks = fitted.learned["projections"]
    assert stacks.shape == (2, 6, DATA.rows.shape[1])
    strength = np.linalg.svd(np.concatenate(list(stacks.astype(np.float64))), compute_uv=False)
    assert strength[6] < 1e-5 * strength[0]

"""The two geometries of 001, against the paper's own conditions and the libraries that know one of them."""

import warnings
from typing import Any

import numpy as np
import pymanopt
import pytest
import torch
from scipy.linalg import solve_sylvester
from torch import Tensor

from ml.manifolds.common.rsgdm import Rsgdm
from ml.manifolds.flat import FlatManifold
from ml.manifolds.quotient import QuotientManifold
from ml.manifolds.stiefel import StiefelManifold, orthonormal

with warnings.catch_warnings():  # it compiles as it is imported, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import geoopt
    from geoopt.manifolds.stiefel import EuclideanStiefel

SEEDS = range(6)


def draw_tangent(seed: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """L and a vector of random shape (n, p), n >= p, in float64."""
    chance = torch.Generator().manual_seed(seed)
    p = int(torch.randint(2, 12, (), generator=chance))
    n = p + int(torch.randint(0, 20, (), generator=chance))
    point, vector = torch.randn(2, n, p, generator=chance, dtype=torch.float64)
    return point, vector, chance


def rotation(p: int, chance: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(p, p, generator=chance, dtype=torch.float64))[0]


def off_horizontal(at: Tensor, vector: Tensor) -> float:
    """Return the relative residual of Lemma 2."""
    gram = at.T @ at
    wanted = vector.T @ at @ gram
    return float((wanted - wanted.T).norm() / wanted.norm())


def quadratic(seed: int, n: int) -> tuple[Tensor, Tensor]:
    """J = <H, M> + |M|^2 / 2 of M = L L^T: H, and its gradient's other half is M."""
    wide = torch.randn(n, n, generator=torch.Generator().manual_seed(seed + 100), dtype=torch.float64)
    return wide + wide.T, wide


def gradient(at: Tensor, hessian: Tensor) -> Tensor:
    """Return the gradient by L of J = <H, L L^T> + |L L^T|^2 / 2."""
    return 2 * (hessian + at @ at.T) @ at


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_projected_is_horizontal_and_stays_so(seed: int) -> None:
    at, vector, _ = draw_tangent(seed)
    horizontal = QuotientManifold().project(at, vector)
    assert off_horizontal(at, horizontal) < 1e-10
    torch.testing.assert_close(QuotientManifold().project(at, horizontal), horizontal, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_projection_adds_turns_in_place_and_solves_equation_2(seed: int) -> None:
    at, vector, _ = draw_tangent(seed)
    added = QuotientManifold().project(at, vector) - vector
    turn = torch.linalg.lstsq(at, added).solution
    gram = at.T @ at
    square, wanted = gram @ gram, vector.T @ at @ gram - gram @ at.T @ vector
    theirs = torch.from_numpy(solve_sylvester(square.numpy(), square.numpy(), wanted.numpy()))
    assert float((turn + turn.T).norm()) < 1e-9 * float(turn.norm() + 1)
    torch.testing.assert_close(at @ theirs, added, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correction_of_the_other_sign_is_not_horizontal(seed: int) -> None:
    at, vector, _ = draw_tangent(seed)
    added = QuotientManifold().project(at, vector) - vector
    assert off_horizontal(at, vector - added) > 1e-3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_horizontal_vector_is_at_right_angles_to_every_turn_in_the_metric_of_equation_1(seed: int) -> None:
    at, vector, chance = draw_tangent(seed)
    skew = torch.randn(at.shape[1], at.shape[1], generator=chance, dtype=torch.float64)
    vertical = at @ (skew - skew.T)
    horizontal = QuotientManifold().project(at, vector)
    product = torch.trace(horizontal @ torch.linalg.solve(at.T @ at, vertical.T))
    assert abs(float(product)) < 1e-9 * float(horizontal.norm() * vertical.norm() / torch.linalg.svdvals(at)[-1] ** 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_of_the_metric_is_horizontal_and_the_printed_one_is_not(seed: int) -> None:
    at, _, _ = draw_tangent(seed)
    by = gradient(at, quadratic(seed, len(at))[0])
    assert off_horizontal(at, QuotientManifold(descends="metric").gradient(at, by)) < 1e-12
    assert off_horizontal(at, QuotientManifold().gradient(at, by)) > 1e-3


@pytest.mark.parametrize("descends", ["euclidean", "metric"])
@pytest.mark.parametrize("metric", ["scaled", "frobenius", "inverse"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rotated_map_takes_the_rotated_step(seed: int, metric: str, descends: str) -> None:
    at, _, chance = draw_tangent(seed)
    turn, hessian = rotation(at.shape[1], chance), quadratic(seed, len(at))[0]
    steps = []
    for begin in (at, at @ turn):
        point = begin.clone().requires_grad_(True)
        descent = Rsgdm([{"params": [point], "manifold": QuotientManifold(metric, descends)}], lr=1e-4, momentum=0.8)
        for _ in range(5):
            point.grad = gradient(point.detach(), hessian)
            descent.step()
        steps.append(point.detach())
    torch.testing.assert_close(steps[0] @ turn, steps[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_as_printed_it_leaves_plain_descent_at_second_order_of_the_step_only(seed: int) -> None:
    at, _, _ = draw_tangent(seed)
    by = gradient(at, quadratic(seed, len(at))[0])

    def apart(step: float) -> float:
        plain, ours = at - step * by, at - step * QuotientManifold().project(at, by)
        return float((plain @ plain.T - ours @ ours.T).norm())

    assert apart(1e-4) / apart(1e-5) == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_in_the_inverse_metric_too_what_is_projected_is_at_right_angles_to_every_turn(seed: int) -> None:
    at, vector, chance = draw_tangent(seed)
    gram, manifold = at.T @ at, QuotientManifold("inverse", "metric")
    skew = torch.randn(len(gram), len(gram), generator=chance, dtype=torch.float64)
    vertical, horizontal = at @ (skew - skew.T), manifold.project(at, vector)
    assert abs(float(torch.trace(horizontal @ gram @ vertical.T))) < 1e-9 * float(
        horizontal.norm() * vertical.norm() * gram.norm()
    )
    torch.testing.assert_close(manifold.project(at, horizontal), horizontal, rtol=1e-9, atol=1e-9)
    by = gradient(at, quadratic(seed, len(at))[0])
    own = manifold.gradient(at, by)
    torch.testing.assert_close(own @ gram, by, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(manifold.project(at, own), own, rtol=1e-8, atol=1e-8)


def test_without_geometry_rsgdm_is_gradient_descent_with_momentum() -> None:
    begin, _, _ = draw_tangent(0)
    hessian = quadratic(0, len(begin))[0]
    ours, theirs = begin.clone().requires_grad_(True), begin.clone().requires_grad_(True)
    both = (
        Rsgdm([{"params": [ours], "manifold": FlatManifold()}], lr=1e-3),
        torch.optim.SGD([theirs], lr=1e-3, momentum=0.9),
    )
    for _ in range(20):
        for point, descent in zip((ours, theirs), both, strict=True):
            point.grad = gradient(point.detach(), hessian)
            descent.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_plain_metric_agrees_with_pymanopt(seed: int) -> None:
    at, vector, _ = draw_tangent(seed)
    theirs = pymanopt.manifolds.PSDFixedRank(*at.shape).to_tangent_space(at.numpy(), vector.numpy())
    ours = QuotientManifold(metric="frobenius").project(at, vector)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("metric", ["scaled", "frobenius"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_kept_of_one_projection_changes_none_of_the_next(seed: int, dtype: torch.dtype, metric: str) -> None:
    """Along a path of short steps, a jump, and short steps again, to a map without a rank at last."""
    at, vector, chance = draw_tangent(seed)
    manifold, kept, known = QuotientManifold(metric=metric), dict[str, Any](), 0
    at = orthonormal(at) * torch.linspace(0.5, 2, at.shape[1], dtype=torch.float64)
    for step in range(40):
        length = 1.0 if step == 20 else 1e-8 if dtype == torch.float64 else 1e-5
        at = at + length * torch.randn(at.shape, generator=chance, dtype=torch.float64)
        at[:, -1] *= step < 38
        before = kept.get("turn")
        projected = manifold.project(at.to(dtype), vector.to(dtype), kept)
        known += kept["turn"] is before
        close = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3}
        torch.testing.assert_close(projected.double(), manifold.project(at, vector), **close)
        if metric == "scaled" and dtype == torch.float64 and step < 38:
            assert off_horizontal(at, projected) < 1e-10
    assert 20 < known < (39 if at.shape[1] > 2 else 40)  # two columns turn one way only, whatever G is


def test_a_map_that_lost_a_rank_is_still_projected() -> None:
    at, vector, _ = draw_tangent(3)
    at[:, -1] = 0
    for manifold in (QuotientManifold(), QuotientManifold("inverse", "metric")):
        for point, other in ((at, vector), (at.float(), vector.float())):
            assert torch.isfinite(manifold.project(point, other)).all()
            assert torch.isfinite(manifold.gradient(point, other)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tangent_of_orthonormal_columns_is_one_and_stays_so(seed: int) -> None:
    at, vector, _ = draw_tangent(seed)
    at = orthonormal(at)
    tangent = StiefelManifold().project(at, vector)
    inside = at.T @ tangent
    assert float((inside + inside.T).abs().max()) < 1e-13
    torch.testing.assert_close(StiefelManifold().project(at, tangent), tangent, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_retraction_is_the_q_of_a_qr_with_a_positive_diagonal(seed: int, length: float) -> None:
    at, vector, _ = draw_tangent(seed)
    at = orthonormal(at)
    there = StiefelManifold().retract(at, length * StiefelManifold().project(at, vector))
    q, r = torch.linalg.qr(at + length * StiefelManifold().project(at, vector))
    torch.testing.assert_close(there, q * r.diagonal().sign(), rtol=0, atol=1e-8)
    assert float((there.T @ there - torch.eye(at.shape[1])).abs().max()) < 1e-10


@pytest.mark.parametrize("seed", SEEDS)
def test_both_retractions_leave_in_the_direction_of_the_tangent(seed: int) -> None:
    at, vector, _ = draw_tangent(seed)
    at = orthonormal(at)
    tangent = 1e-5 * StiefelManifold().project(at, vector)
    for retraction in ("qr", "cayley"):
        there = StiefelManifold(retraction).retract(at, tangent)
        assert float((there - at - tangent).norm() / tangent.norm()) < 1e-4
        assert float((there.T @ there - torch.eye(at.shape[1])).abs().max()) < 1e-13


@pytest.mark.parametrize("retraction", ["qr", "cayley"])
def test_columns_stay_orthonormal_for_a_thousand_steps_of_single_precision(retraction: str) -> None:
    chance = torch.Generator().manual_seed(0)
    point = orthonormal(torch.randn(60, 12, generator=chance)).requires_grad_(True)
    descent = Rsgdm([{"params": [point], "manifold": StiefelManifold(retraction)}], lr=0.05)
    for _ in range(1000):
        point.grad = torch.randn(60, 12, generator=chance)
        descent.step()
    there = point.detach()
    assert float((there.T @ there - torch.eye(12)).abs().max()) < 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_the_momentum_on_stiefel_is_geoopts_with_a_buffer_that_starts_at_zero(seed: int) -> None:
    begin, _, _ = draw_tangent(seed)
    begin, hessian, rate = orthonormal(begin), quadratic(seed, len(begin))[0], 1e-2
    ours = begin.clone().requires_grad_(True)
    theirs = geoopt.ManifoldParameter(begin.clone(), manifold=EuclideanStiefel())
    our_descent = Rsgdm([{"params": [ours], "manifold": StiefelManifold()}], lr=rate, momentum=0.9)
    their_descent = geoopt.optim.RiemannianSGD([theirs], lr=rate, momentum=0.9)
    their_descent.state[theirs]["momentum_buffer"] = torch.zeros_like(begin)
    for _ in range(50):
        ours.grad, theirs.grad = (gradient(point.detach(), hessian) for point in (ours, theirs))
        our_descent.step()
        their_descent.step()
    assert float((ours - theirs).detach().abs().max()) < 1e-12


def test_the_momentum_remembers_the_rate_that_it_was_made_at() -> None:
    """eta stands inside m: torch's SGD, which keeps it outside, parts from ours once the rate falls, not before."""
    at, hessian, apart = torch.randn(6, 2, dtype=torch.float64), quadratic(0, 6)[0], []

    class FlatManifold(QuotientManifold):
        def project(self, at: Tensor, vector: Tensor, kept: dict[str, Any] | None = None) -> Tensor:
            return vector

    ours, theirs = (at.clone().requires_grad_(True) for _ in range(2))
    our_descent = Rsgdm([{"params": [ours], "manifold": FlatManifold()}], lr=1e-3, momentum=0.9)
    their_descent = torch.optim.SGD([theirs], lr=1e-3, momentum=0.9)
    for step in range(8):
        for descent in (our_descent, their_descent):
            descent.param_groups[0]["lr"] = 1e-3 if step < 4 else 1e-4
        ours.grad, theirs.grad = (gradient(point.detach(), hessian) for point in (ours, theirs))
        our_descent.step()
        their_descent.step()
        apart.append(float((ours - theirs).abs().max().detach()))
    assert max(apart[:4]) < 1e-13
    assert apart[4] > 1e-4


@pytest.mark.parametrize("seed", SEEDS)
def test_one_step_is_equations_10_and_11_to_the_letter(seed: int) -> None:
    at, vector, _ = draw_tangent(seed)
    for manifold, begin in ((QuotientManifold(), at), (StiefelManifold(), orthonormal(at))):
        point, momentum = begin.clone().requires_grad_(True), torch.zeros_like(begin)
        literal = begin
        descent = Rsgdm([{"params": [point], "manifold": manifold}], lr=1e-2, momentum=0.7)
        for step in range(4):
            by = vector * (step + 1)
            momentum = 0.7 * manifold.project(literal, momentum) + 1e-2 * manifold.project(literal, by)
            literal = manifold.retract(literal, manifold.project(literal, -momentum))
            point.grad = by
            descent.step()
        torch.testing.assert_close(point.detach(), literal, rtol=1e-11, atol=1e-11)

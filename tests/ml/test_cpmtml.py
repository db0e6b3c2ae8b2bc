from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from ml.embedders.base import TaskData, TrainingSet
from ml.embedders.cpmtml import Cpmtml
from ml.errors import TooFewPairs, WrongShape
from ml.metric_learning.hinge.projections import Projections, Rates

RATES = Rates(own=3e-3, common=2e-3, bias=3e-4)
Pair = tuple[int, int, int, int]  # task, i, j, sign


def made(tasks: int, seed: int = 0, common: bool = True) -> tuple[torch.Tensor, Projections]:
    torch.manual_seed(seed)
    rows = torch.randn(40, 12, dtype=torch.float64)
    draw = [torch.randn(5, 12, dtype=torch.float64) / 4 for _ in range(tasks + 1)]
    return rows, Projections(draw[0] if common else None, draw[1:], [1.0] * tasks)


def pairs_of(tasks: int, count: int, seed: int = 1) -> list[Pair]:
    draw = np.random.default_rng(seed)
    return [(k % tasks, *map(int, draw.choice(40, 2, replace=False)), int(draw.choice([-1, 1]))) for k in range(count)]


def learn(at: Projections, rows: torch.Tensor, pairs: list[Pair], rates: Rates = RATES) -> Projections:
    for task, i, j, sign in pairs:
        weight = torch.ones(1, dtype=rows.dtype)
        at.step(task, rows, torch.tensor([[i, j]]), torch.tensor([sign], dtype=rows.dtype), weight, rates)
    return at


def printed(rows: np.ndarray, at: Projections, pairs: list[Pair]) -> tuple[np.ndarray, list[np.ndarray], list[float]]:
    """Run algorithm 1 line by line (with its tasks numbered from 1, as the errata say)."""
    assert at.common is not None
    common, own, bias = at.common.numpy().copy(), [p.numpy().copy() for p in at.own], list(at.bias)
    for t, i, j, y in pairs:
        u = (rows[i] - rows[j])[:, None]
        d2 = ((common @ u) ** 2).sum() + ((own[t] @ u) ** 2).sum()
        if y * (bias[t] - d2) < 1:
            common = common - RATES.common * y * common @ u @ u.T
            own[t] = own[t] - RATES.own * y * own[t] @ u @ u.T
            bias[t] = bias[t] + 0.1 * RATES.own * y
    return common, own, bias


def close(a: torch.Tensor | None, b: object, limit: float = 1e-12) -> bool:
    other = torch.as_tensor(b)
    assert a is not None
    return float((a - other).norm() / other.norm().clamp_min(1e-300)) < limit


def test_a_batch_of_one_is_algorithm_1_to_the_letter() -> None:
    rows, at = made(tasks=3)
    pairs = pairs_of(3, 300)
    common, own, bias = printed(rows.numpy(), at, pairs)
    learn(at, rows, pairs)
    assert close(at.common, common)
    assert all(close(projection, theirs) for projection, theirs in zip(at.own, own, strict=True))
    assert np.allclose(at.bias, bias, rtol=1e-12)


def test_a_step_is_half_the_gradient_of_the_hinge() -> None:
    rows, at = made(tasks=2)
    pairs = torch.tensor([[0, 1], [2, 3], [0, 2], [4, 1]])
    sign = torch.tensor([1.0, -1, -1, 1], dtype=torch.float64)
    leaves = [p.clone().requires_grad_() for p in (at.common, at.own[1], torch.tensor(1.0, dtype=torch.float64))]
    differences = rows[pairs[:, 0]] - rows[pairs[:, 1]]
    d2 = (differences @ leaves[0].T).square().sum(1) + (differences @ leaves[1].T).square().sum(1)
    (1 - sign * (leaves[2] - d2)).clamp_min(0).sum().backward()
    before = at.clone()
    at.step(1, rows, pairs, sign, torch.ones_like(sign), RATES)
    assert before.common is not None
    assert at.common is not None
    assert close((before.common - at.common) / RATES.common * 2, leaves[0].grad, 1e-9)
    assert close((before.own[1] - at.own[1]) / RATES.own * 2, leaves[1].grad, 1e-9)
    assert before.bias[1] - at.bias[1] == pytest.approx(RATES.bias * float(leaves[2].grad), rel=1e-9)


def test_a_step_returns_the_mean_hinge() -> None:
    rows, at = made(tasks=1)
    u = rows[0] - rows[1]
    d2 = float((at.common @ u).square().sum() + (at.own[0] @ u).square().sum())
    ones = torch.ones(1, dtype=torch.float64)
    assert at.step(0, rows, torch.tensor([[0, 1]]), ones, ones, RATES) == pytest.approx(max(0, 1 - (1 - d2)))


def test_a_tasks_pairs_never_move_another_tasks_projection() -> None:
    rows, at = made(tasks=3)
    before = at.clone()
    learn(at, rows, [(1, i, j, y) for _, i, j, y in pairs_of(1, 50)])
    assert not torch.equal(at.own[1], before.own[1])
    assert torch.equal(at.own[0], before.own[0])
    assert torch.equal(at.own[2], before.own[2])
    assert at.bias[::2] == before.bias[::2]


def test_without_task_projections_it_is_one_metric_for_all_tasks() -> None:
    """utML but for a bias of each task's own; L_t = 0 stays 0."""
    rows, at = made(tasks=2)
    at.own = [torch.zeros_like(p) for p in at.own]
    pairs = pairs_of(2, 200)
    union = at.clone()
    for task, i, j, y in pairs:  # one metric, the task's pairs moving the task's bias alone
        alone = Projections(None, [union.common], [union.bias[task]])
        learn(alone, rows, [(0, i, j, y)], Rates(RATES.common, 0.0, RATES.bias))
        union.common, union.bias[task] = alone.own[0], alone.bias[0]
    learn(at, rows, pairs)
    assert close(at.common, union.common)
    assert at.bias == union.bias
    assert all(not p.any() for p in at.own)


def test_without_a_common_projection_the_tasks_are_learned_apart() -> None:
    rows, at = made(tasks=2)
    at.common = torch.zeros_like(at.own[0])
    alone = [Projections(None, [p.clone()], [1.0]) for p in at.own]
    pairs = pairs_of(2, 200)
    learn(at, rows, pairs, Rates(RATES.own, 0.0, RATES.bias))
    for task, single in enumerate(alone):
        learn(single, rows, [(0, i, j, y) for t, i, j, y in pairs if t == task])
        assert close(at.own[task], single.own[0])
        assert at.bias[task] == pytest.approx(single.bias[0], rel=1e-12)
    assert not at.common.any()


def test_a_batch_is_the_sum_of_its_pairs_and_weights_count() -> None:
    rows, at = made(tasks=1)
    pairs, sign = torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, -1], dtype=torch.float64)
    twice, weighted = at.clone(), at.clone()
    twice.step(0, rows, pairs.repeat(2, 1), sign.repeat(2), torch.ones(4, dtype=torch.float64), RATES)
    weighted.step(0, rows, pairs, sign, torch.full((2,), 2.0, dtype=torch.float64), RATES)
    assert close(twice.common, weighted.common)
    assert close(twice.own[0], weighted.own[0])


@pytest.fixture(scope="module")
def faces() -> TrainingSet:
    """60 people with 6 photos each, all with one of three expressions; both show in the same 40 numbers."""
    draw = np.random.default_rng(0)
    person, mood = np.repeat(np.arange(60), 6), draw.integers(0, 3, 360)
    rows = draw.normal(size=(60, 40))[person] + draw.normal(size=(3, 40))[mood] + 2.2 * draw.normal(size=(360, 40))
    every = np.arange(360)
    identity = TaskData("identity", every, person.astype(np.float64), person)
    return TrainingSet(rows.astype(np.float32), (identity, TaskData("expression", every, mood * 1.0, person)))


@pytest.fixture(scope="module")
def fitted(faces: TrainingSet) -> Cpmtml:
    return Cpmtml.from_options(
        dim=6, steps=400, batch=32, pairs=2000, auxiliary_pairs=2000, averaging=0.9, held_out=0
    ).fit(faces)


def mean_distance_ratio(z: np.ndarray, values: np.ndarray) -> float:
    d2 = cdist(z, z, "sqeuclidean")
    same = values[:, None] == values[None]
    np.fill_diagonal(same, False)
    return float(d2[values[:, None] != values[None]].mean() / d2[same].mean())


def test_each_task_draws_its_own_likes_together(fitted: Cpmtml, faces: TrainingSet) -> None:
    for task, other in (("identity", "expression"), ("expression", "identity")):
        z = fitted.embed(faces.rows, task)
        assert z.shape == (360, 12)
        values = faces.task(task).values
        assert mean_distance_ratio(z, values) > mean_distance_ratio(faces.rows, values) + 0.3
        assert mean_distance_ratio(z, values) > mean_distance_ratio(fitted.embed(faces.rows, other), values)


def test_the_distance_of_embeddings_is_the_sum_of_both_projections(fitted: Cpmtml, faces: TrainingSet) -> None:
    stack = fitted.learned["projections"].astype(np.float64)
    assert np.array_equal(stack[0, :6], stack[1, :6])  # L_0 is shared
    u = np.subtract(*faces.rows[:2].astype(np.float64))
    for number, task in enumerate(fitted.tasks):
        summed = ((stack[number, :6] @ u) ** 2).sum() + ((stack[number, 6:] @ u) ** 2).sum()
        exact = stack[number] @ faces.rows[:2].T.astype(np.float64)
        assert ((exact[:, 0] - exact[:, 1]) ** 2).sum() == pytest.approx(summed, rel=1e-10)
        z = fitted.embed(faces.rows[:2], task)
        assert ((z[0] - z[1]) ** 2).sum() == pytest.approx(summed, rel=1e-4)


def test_the_same_data_and_seed_give_the_same_result(fitted: Cpmtml, faces: TrainingSet) -> None:
    again = Cpmtml.from_options(
        dim=6, steps=400, batch=32, pairs=2000, auxiliary_pairs=2000, averaging=0.9, held_out=0
    ).fit(faces)
    assert np.array_equal(again.learned["projections"], fitted.learned["projections"])


def test_a_saved_embedder_is_loaded_bit_for_bit(fitted: Cpmtml, faces: TrainingSet, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    read = Cpmtml.load(tmp_path)
    assert (read, read.tasks, read.notes) == (fitted, fitted.tasks, fitted.notes)
    assert np.array_equal(read.embed(faces.rows, "expression"), fitted.embed(faces.rows, "expression"))


def test_people_held_out_choose_the_number_of_steps(faces: TrainingSet) -> None:
    reports: list[dict[str, float]] = []
    held = Cpmtml.from_options(
        dim=6, steps=200, batch=32, pairs=2000, auxiliary_pairs=2000, held_out=0.3, averaging=0.9
    )
    held.fit(faces, progress=lambda step, steps, values: reports.append(values))
    assert 0 < held.notes["steps"] <= 200
    assert held.notes["held_out"] == max(v["held_out"] for v in reports if "held_out" in v)


def test_a_descriptor_in_other_units_learns_the_same_metric(fitted: Cpmtml, faces: TrainingSet) -> None:
    scaled = replace(fitted).fit(TrainingSet(faces.rows * 1024, faces.tasks))
    z, other = fitted.embed(faces.rows), scaled.embed(faces.rows * 1024)
    a, b = (np.linalg.norm(e[:100] - e[100:200], axis=1) for e in (z, other))
    assert np.allclose(a, b, rtol=0.02)


def test_a_common_projection_may_start_where_the_first_ends(faces: TrainingSet) -> None:
    e = Cpmtml.from_options(dim=6, steps=0, pairs=500, auxiliary_pairs=500, held_out=0).fit(faces)
    common, own = e.learned["projections"][0, :6], e.learned["projections"][0, 6:]
    cosine = common @ own.T / np.linalg.norm(common, axis=1)[:, None] / np.linalg.norm(own, axis=1)
    assert np.abs(cosine).max() < 1e-4


def test_as_printed_the_common_projection_starts_at_the_first_tasks(faces: TrainingSet) -> None:
    e = Cpmtml.from_options(dim=6, steps=0, pairs=500, auxiliary_pairs=500, common="first", held_out=0).fit(faces)
    assert np.array_equal(e.learned["projections"][0, :6], e.learned["projections"][0, 6:])


def test_after_early_stopping_it_learns_from_everybody_with_so_many_steps(faces: TrainingSet) -> None:
    reports: list[tuple[int, int]] = []
    options = {"dim": 6, "batch": 32, "pairs": 2000, "auxiliary_pairs": 2000, "averaging": 0.9}
    fitted = Cpmtml.from_options(**options, steps=200, held_out=0.3)
    fitted.fit(faces, progress=lambda step, steps, values: reports.append((step, steps)))
    same = Cpmtml.from_options(**options, steps=fitted.notes["steps"], held_out=0).fit(faces)
    assert np.array_equal(fitted.learned["projections"], same.learned["projections"])
    assert reports == sorted(reports)
    assert reports[-1] == (400, 400)


def test_with_too_few_people_to_hold_out_it_takes_all_steps(faces: TrainingSet) -> None:
    few = [TaskData(t.task, t.faces[:24], t.values[:24], t.people[:24]) for t in faces.tasks]
    fitted = Cpmtml.from_options(dim=6, steps=20, pairs=100, auxiliary_pairs=100, held_out=0.01).fit(
        TrainingSet(faces.rows, tuple(few))
    )
    assert fitted.notes["steps"] == 20
    assert fitted.notes["held_out"] is None


def test_every_task_needs_pairs_of_both_kinds(faces: TrainingSet) -> None:
    identity, mood = faces.tasks
    alike = TaskData("expression", mood.faces, np.zeros(360), mood.people)
    with pytest.raises(TooFewPairs, match=r"pairs of not the same \(expression\)"):
        Cpmtml.from_options(dim=6).fit(TrainingSet(faces.rows, (identity, alike)))


def test_a_task_it_was_not_fitted_for_is_refused(fitted: Cpmtml, faces: TrainingSet) -> None:
    with pytest.raises(WrongShape, match="identity or expression"):
        fitted.embed(faces.rows, "age")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_learns_what_the_cpu_learns(faces: TrainingSet) -> None:
    options = {"dim": 6, "steps": 50, "batch": 32, "pairs": 2000, "auxiliary_pairs": 2000, "held_out": 0}
    first, again = (Cpmtml.from_options(**options, device="cuda").fit(faces).embed(faces.rows) for _ in range(2))
    assert np.array_equal(first, again)
    assert np.allclose(first, Cpmtml.from_options(**options, device="cpu").fit(faces).embed(faces.rows), atol=1e-2)


def test_one_task_alone_is_learned_too(faces: TrainingSet) -> None:
    alone = Cpmtml.from_options(dim=6, steps=100, batch=32, pairs=2000, held_out=0).fit(
        TrainingSet(faces.rows, faces.tasks[:1])
    )
    values = faces.tasks[0].values
    assert mean_distance_ratio(alone.embed(faces.rows), values) > mean_distance_ratio(faces.rows, values) + 0.2

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from ml.embedders.base import TaskData, TrainingSet
from ml.embedders.stml import Stml
from ml.errors import NotFinite, TooFewPairs, WrongShape
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.holdout import split_known_people
from ml.metric_learning.pairs import derive_pairs, draw_pair_set
from tests.ml.synthetic_people import people


@pytest.fixture(scope="module")
def faces() -> TrainingSet:
    """Draw 80 people with 5 photos: 10 of 40 numbers depend on the person, the other 30 are larger noise."""
    draw = np.random.default_rng(0)
    person = np.repeat(np.arange(80), 5)
    rows = draw.normal(size=(400, 40)) * np.repeat([0.6, 2.0], [10, 30])
    rows[:, :10] += draw.normal(size=(80, 10))[person]
    return TrainingSet(rows.astype(np.float32), (TaskData("identity", np.arange(400), person * 1.0, person),))


def nearest_is_alike(z: np.ndarray, values: np.ndarray) -> float:
    d2 = cdist(z, z, "sqeuclidean")
    np.fill_diagonal(d2, np.inf)
    return float((values[d2.argmin(1)] == values).mean())


def test_one_task_without_a_common_projection_is_the_hinge_of_one_projection() -> None:
    torch.manual_seed(0)
    rows = torch.randn(20, 6, dtype=torch.float64)
    at = Projections(None, [torch.randn(3, 6, dtype=torch.float64) / 3], [1.0])
    plain, bias, draw = at.own[0].clone(), 1.0, np.random.default_rng(0)
    one = torch.ones(1, dtype=torch.float64)
    for _ in range(200):
        i, j = draw.choice(20, 2, replace=False)
        y = float(draw.choice([-1, 1]))
        u = (rows[i] - rows[j])[:, None]
        if y * (bias - float((plain @ u).square().sum())) < 1:
            plain, bias = plain - 1e-3 * y * plain @ u @ u.T, bias + 1e-4 * y
        at.step(0, rows, torch.tensor([[i, j]]), y * one, one, Rates(1e-3, 0.0, 1e-4))
    assert float((at.own[0] - plain).norm() / plain.norm()) < 1e-12
    assert at.bias[0] == pytest.approx(bias, rel=1e-12)


def test_new_people_are_distinguished_better_than_before_the_fit(faces: TrainingSet) -> None:
    seen = np.arange(300)
    known = TaskData("identity", seen, faces.tasks[0].values[:300], faces.tasks[0].people[:300])
    learned = Stml.from_options(dim=10, steps=1500, batch=32, pairs=4000, held_out=0).fit(
        TrainingSet(faces.rows[:300], (known,))
    )
    new, values = faces.rows[300:], faces.tasks[0].values[300:]
    assert learned.embed(new).shape == (100, 10)
    assert nearest_is_alike(learned.embed(new), values) > nearest_is_alike(new, values) + 0.1


def test_it_learns_from_explicit_labels_alone(faces: TrainingSet) -> None:
    draw = np.random.default_rng(1)
    person = faces.tasks[0].people
    mates = np.stack([np.arange(400), (np.arange(400) // 5) * 5 + draw.integers(0, 5, 400)], 1)
    pairs = np.concatenate([mates[mates[:, 0] != mates[:, 1]], draw.integers(0, 400, (400, 2))])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    same = person[pairs[:, 0]] == person[pairs[:, 1]]
    labels = TaskData(
        "identity", np.arange(400), np.full(400, np.nan), person, 0.0, pairs, same, np.ones(len(pairs), np.float32)
    )
    learned = Stml.from_options(dim=10, steps=800, batch=32).fit(TrainingSet(faces.rows, (labels,)))
    z, values = learned.embed(faces.rows), faces.tasks[0].values
    assert nearest_is_alike(z, values) > nearest_is_alike(faces.rows, values) + 0.1


def test_labels_of_people_held_out_do_not_reach_what_is_learned(faces: TrainingSet) -> None:
    made, [task] = Stml.from_options(held_out=0.3), faces.tasks
    [kept], judges = split_known_people(faces.tasks, made.fitting.held_out, made.seed)
    held = np.isin(task.faces, judges.faces)
    poisoned = task.values.copy()
    poisoned[held] = np.random.default_rng(0).permutation(poisoned[held])
    [again], _ = split_known_people((replace(task, values=poisoned),), made.fitting.held_out, made.seed)
    assert 20 < held.sum() < 380
    for one, other in ((kept.faces, again.faces), (kept.values, again.values), (kept.pairs, again.pairs)):
        np.testing.assert_array_equal(one, other)
    assert not np.isin(kept.people, judges.people).any()


def test_a_saved_embedder_is_loaded_bit_for_bit(faces: TrainingSet, tmp_path: Path) -> None:
    learned = Stml.from_options(dim=4, steps=50, held_out=0).fit(faces)
    learned.save(tmp_path)
    assert np.array_equal(Stml.load(tmp_path).embed(faces.rows), learned.embed(faces.rows))


def test_it_learns_the_first_task_alone(faces: TrainingSet) -> None:
    other = TaskData("age", faces.tasks[0].faces, np.zeros(400), faces.tasks[0].people)
    assert Stml.from_options(dim=4, steps=10).fit(TrainingSet(faces.rows, (*faces.tasks, other))).tasks == ("identity",)


def test_too_few_labels_say_how_many_are_missing(faces: TrainingSet) -> None:
    alone = TaskData("identity", np.arange(400), np.arange(400.0), np.arange(400))
    with pytest.raises(TooFewPairs, match=r"10 pairs of the same \(identity\) needed, 0 found: 10 more to label"):
        Stml().fit(TrainingSet(faces.rows, (alone,)))
    few = TrainingSet(
        np.tile(faces.rows, (1, 2))[:20],
        (TaskData("identity", np.arange(20), np.arange(20) // 5 * 1.0, np.arange(20)),),
    )
    with pytest.raises(TooFewPairs, match="65 faces needed, 20 found"):
        Stml.from_options(dim=64).fit(few)


def test_derived_pairs_are_what_they_say_and_no_one_rules() -> None:
    values = np.concatenate([np.zeros(500), np.repeat(np.arange(1.0, 41), 3), [np.nan] * 9])
    task = TaskData("identity", 7 + np.arange(629), values, np.arange(629))
    pairs, same = derive_pairs(task, 2000, 2000, np.random.default_rng(0))
    a, b = values[pairs.T - 7]
    assert np.array_equal(a == b, same)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert (len(pairs), same.sum()) == (4000, 2000)
    assert (a[same] == 0).mean() < 0.06  # 500 of 620 faces are one person's


def test_a_tolerance_makes_near_ages_the_same() -> None:
    ages = np.random.default_rng(0).integers(18, 60, 300) * 1.0
    task = TaskData("age", np.arange(300), ages, np.arange(300), tolerance=3)
    pairs, same = derive_pairs(task, 500, 500, np.random.default_rng(0))
    gap = np.abs(np.subtract(*ages[pairs.T]))
    assert np.array_equal(gap <= 3, same)
    assert gap[same].max() == 3


def test_an_explicit_label_overrides_what_the_values_say() -> None:
    values = np.repeat(np.arange(3.0), 2)
    labelled = np.array([[1, 0], [2, 4]])
    task = TaskData(
        "identity",
        np.arange(6),
        values,
        np.arange(6),
        0.0,
        labelled,
        np.array([False, True]),
        np.ones(2, np.float32) * 5,
    )
    drawn_pairs = draw_pair_set(task, 200, np.random.default_rng(0), torch.device("cpu"))
    keys = {tuple(sorted(p)): [] for p in drawn_pairs.pairs.tolist()}
    for pair, sign, weight in zip(
        drawn_pairs.pairs.tolist(), drawn_pairs.sign.tolist(), drawn_pairs.weight.tolist(), strict=True
    ):
        keys[tuple(sorted(pair))].append((sign, weight))
    assert keys[(0, 1)] == [(-1.0, 5.0)]
    assert keys[(2, 4)] == [(1.0, 5.0)]
    assert len(keys) > 8


def test_a_descriptor_too_narrow_is_refused(faces: TrainingSet) -> None:
    with pytest.raises(WrongShape, match=r"\(N, 64 or more\)"):
        Stml.from_options(dim=64).fit(faces)


def test_steps_that_are_too_long_are_halved() -> None:
    data, reports = people(seed=3), list[tuple[int, int]]()
    wild = Stml.from_options(dim=6, steps=100, batch=64, pairs=2000, held_out=0, rate=20.0)
    wild.fit(data, progress=lambda step, steps, values: reports.append((step, steps)))
    assert np.isfinite(wild.embed(data.rows)).all()
    assert np.isfinite(wild.notes["loss"])
    assert reports == sorted(reports)
    with pytest.raises(NotFinite, match="rate"):
        Stml.from_options(dim=6, steps=100, batch=64, pairs=2000, held_out=0, rate=1e30).fit(data)

"""CoSiM's promises (000): its gradients, its special cases, and that nothing of the test is ever seen."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ml.embedders.base import TaskData, TrainingSet
from ml.embedders.cosim_average import CosimAverage
from ml.embedders.cosim_mass import CosimMass
from ml.embedders.sml import Sml
from ml.evaluation.restricted import RestrictedFold
from ml.evaluation.verification_pairs import VerificationPairs
from ml.metric_learning.cosim.branches import Branches, compute_log_odds, cross_entropy, draw_dropout_mask
from ml.metric_learning.cosim.embedder import SimilarityEmbedder
from ml.metric_learning.cosim.learner import BranchLearner, DecaySchedule, descend
from ml.metric_learning.held_out_score import compute_auc
from ml.metric_learning.holdout import shuffle_people
from ml.metric_learning.pairs import PairSet
from tests.ml.synthetic_people import identity, people

SEEDS = range(4)
JOINT = (CosimMass, CosimAverage)


class Case:
    """A random network and batch: n descriptors, F fits, B pairs of r numbers, float64."""

    def __init__(self, seed: int, summed: bool, n: int = 0, fits: int = 0) -> None:
        draw = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.n, self.fits = n or int(draw.integers(1, 5)), fits or int(draw.integers(1, 4))
        self.pairs, r = int(draw.integers(1, 9)), int(draw.integers(1, 7))
        m = 1 if summed else self.n
        raw = torch.rand(m, self.fits, dtype=torch.float64) + 0.1
        self.shares = raw / raw.sum(0)
        self.model = Branches(
            torch.randn(self.n, self.fits, r, r, dtype=torch.float64),
            torch.randn(m, self.fits, dtype=torch.float64),
            summed,
        )
        self.x = torch.randn(self.n, self.fits, 2 * self.pairs, r, dtype=torch.float64)
        self.sign = torch.sign(torch.randn(self.fits, self.pairs, dtype=torch.float64))
        self.weight = torch.rand(self.fits, self.pairs, dtype=torch.float64)

    def loss(self, weights: Tensor, bias: Tensor) -> Tensor:
        """Compute equations 1 to 4, 8 and 9 as printed, fit by fit and pair by pair."""
        total = torch.zeros((), dtype=torch.float64)
        for f in range(self.fits):
            for b in range(self.pairs):
                p, q = ([weights[i, f] @ self.x[i, f, at] for i in range(self.n)] for at in (b, b + self.pairs))
                s = torch.stack([one @ other for one, other in zip(p, q, strict=True)])
                z = (s.sum()[None] if self.model.summed else s) + bias[:, f]
                g = (self.shares[:, f] * torch.sigmoid(z)).sum()
                likelihood = g if self.sign[f, b] > 0 else 1 - g
                total = total - self.weight[f, b] * likelihood.log()
        return total


def close(actual: Tensor, wanted: Tensor) -> bool:
    return float((actual - wanted).norm() / wanted.norm().clamp_min(1e-12)) < 1e-9


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_is_that_of_the_equations(seed: int, summed: bool) -> None:
    case = Case(seed, summed)
    weights, bias = (p.clone().requires_grad_() for p in case.model.parameters)
    wanted = case.loss(weights, bias)
    wanted_weights, wanted_bias = torch.autograd.grad(wanted, [weights, bias])
    loss, (by_weights, by_bias) = case.model.gradients(case.x, case.sign, case.weight, case.shares)
    assert float(loss.sum()) == pytest.approx(float(wanted.detach()), rel=1e-9)
    assert close(by_weights, wanted_weights)
    assert close(by_bias, wanted_bias)


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_equations_5_6_12_and_13_are_minus_the_gradient(seed: int, summed: bool) -> None:
    case = Case(seed, summed, fits=1)
    _, (by_weights, by_bias) = case.model.gradients(case.x, case.sign, torch.ones_like(case.weight), case.shares)
    z, r = case.model.logits(case.x)[:, 0], (case.sign[0] > 0).double()
    f = torch.sigmoid(z)
    g = (case.shares * f).sum(0)
    step = r - f if summed else (r - g) / (g * (1 - g)) * case.shares * f * (1 - f)
    assert close(-by_bias[:, 0], step.sum(1))
    for i in range(case.n):
        x, y = case.x[i, 0].chunk(2)
        outer = x[:, :, None] * y[:, None] + y[:, :, None] * x[:, None]
        printed = case.model.weights[i, 0] @ (step[0 if summed else i][:, None, None] * outer).sum(0)
        assert close(-by_weights[i, 0], printed)


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_score_is_the_same_the_other_way_round_and_after_a_rotation(seed: int, summed: bool) -> None:
    case = Case(seed, summed)
    score = compute_log_odds(case.model.logits(case.x), case.shares)
    swapped = torch.cat(case.x.chunk(2, dim=2)[::-1], dim=2)
    assert close(compute_log_odds(case.model.logits(swapped), case.shares), score)
    r = case.x.shape[3]
    turn = torch.linalg.qr(torch.randn(case.n, case.fits, r, r, dtype=torch.float64))[0]
    turned = replace(case.model, weights=turn @ case.model.weights)
    assert close(compute_log_odds(turned.logits(case.x), case.shares), score)


@pytest.mark.parametrize("seed", SEEDS)
def test_mass_with_every_descriptor_but_one_zeroed_is_sml(seed: int) -> None:
    case = Case(seed, True, n=3)
    case.x[1:] = 0
    loss, (by_weights, by_bias) = case.model.gradients(case.x, case.sign, case.weight, case.shares)
    alone = Branches(case.model.weights[:1], case.model.bias, True)
    wanted, (weights, bias) = alone.gradients(case.x[:1], case.sign, case.weight, case.shares)
    assert close(loss, wanted)
    assert close(by_weights[:1], weights)
    assert close(by_bias, bias)
    assert not by_weights[1:].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_average_of_two_alike_has_half_the_gradient_in_each_branch(seed: int) -> None:
    one = Case(seed, False, n=1)
    twice = Branches(one.model.weights.repeat(2, 1, 1, 1), one.model.bias.repeat(2, 1), False)
    even = torch.full((2, one.fits), 0.5, dtype=torch.float64)
    loss, (weights, bias) = twice.gradients(one.x.repeat(2, 1, 1, 1), one.sign, one.weight, even)
    wanted, (by_weights, by_bias) = one.model.gradients(one.x, one.sign, one.weight, one.shares)
    assert close(loss, wanted)
    assert close(weights, by_weights.repeat(2, 1, 1, 1) / 2)
    assert close(bias, by_bias.repeat(2, 1) / 2)


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_a_thousand_are_finite(m: int, dtype: torch.dtype) -> None:
    z = torch.tensor([-1000.0, 1000.0, 0.0, 88.0], dtype=dtype).expand(m, 2, 4)
    sign = torch.tensor([[1.0] * 4, [-1.0] * 4], dtype=dtype)
    shares = torch.full((m, 2), 1 / m, dtype=dtype)
    loss, by_z = cross_entropy(z, sign, torch.ones_like(sign), shares)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(by_z).all()
    assert float(loss[0]) == pytest.approx(1000 + np.log(2), rel=1e-6)
    torch.testing.assert_close(compute_log_odds(z, shares), z[0])


def test_masks_differ_between_the_images_of_a_pair_and_between_descriptors() -> None:
    chance = torch.Generator().manual_seed(0)
    kept = draw_dropout_mask(torch.Size((2, 1, 2 * 128, 300)), 0.7, chance, torch.empty(0))
    assert float((kept > 0).float().mean()) == pytest.approx(0.3, abs=0.005)
    assert float(kept.mean()) == pytest.approx(1, abs=0.02)
    first, second = kept[:, 0].chunk(2, dim=1)
    for one, other in ((first[0], second[0]), (first[0], first[1]), (first[0, :64], first[0, 64:])):
        assert float(((one > 0) & (other > 0)).float().mean()) == pytest.approx(0.09, abs=0.01)


def test_every_weight_starts_at_the_identity() -> None:
    model = Branches.start(3, 5, torch.zeros(1, 2), summed=True)
    assert torch.equal(model.weights, torch.eye(5).expand(3, 2, 5, 5))


@pytest.mark.parametrize("kind", [Sml, *JOINT])
def test_without_a_step_z_is_the_whitened_descriptor(kind: type[SimilarityEmbedder]) -> None:
    data = replace(people(), blocks=(12, 18))
    fitted = kind.from_options(rate=1e-12, steps=1).fit(data)
    blocks = (30,) if kind is Sml else (12, 18)
    room = fitted.reach / (len(blocks) if kind is CosimMass else 1)
    for part in np.split(fitted.embed(data.rows), np.cumsum(blocks)[:-1], axis=1):
        np.testing.assert_allclose((part**2).sum(1), room, rtol=1e-3)
    printed = kind.from_options(rate=1e-12, steps=1, unit=False, reach=0.0, held_out=0.0, whitening="all").fit(data)
    raw = printed.embed(data.rows)
    np.testing.assert_allclose(raw.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(raw.std(0), 1, rtol=5e-3)


def test_whitened_within_people_a_face_varies_alike_in_all_directions() -> None:
    data = people(400, photos=6, informative=5, noise=6)
    start = Sml.from_options(rate=1e-12, steps=1, unit=False, held_out=0.0, prior=0.0).fit(data)
    z = start.embed(data.rows).reshape(400, 6, 11)
    within = np.cov((z - z.mean(1, keepdims=True)).reshape(-1, 11).T)
    np.testing.assert_allclose(within / within.trace() * 11, np.eye(11), atol=0.05)


def test_without_whitening_it_starts_at_the_cosine() -> None:
    data = people()
    z = Sml.from_options(rate=1e-12, steps=1, held_out=0.0, whitening="none").fit(data).embed(data.rows)
    unit = data.rows / np.linalg.norm(data.rows, axis=1, keepdims=True)
    np.testing.assert_allclose(z @ z.T, 4 * unit @ unit.T, atol=1e-4)


@pytest.mark.parametrize("kind", JOINT)
def test_the_distance_equals_the_output_of_the_network(kind: type[SimilarityEmbedder]) -> None:
    data = replace(people(seed=3), blocks=(7, 13, 10))
    fitted = kind.from_options(steps=60, seed=2).fit(data)
    z = fitted.embed(data.rows)
    distances = fitted.metric.distances(z[:40], z[40:])
    parts = np.split(z.astype(np.float64), [7, 20], axis=1)
    s = np.stack([p[:40] @ p[40:].T for p in parts])
    if kind is CosimMass:
        np.testing.assert_allclose(distances, -s.sum(0), atol=1e-5)
        return
    shares, bias = (fitted.learned[name][:, None, None].astype(np.float64) for name in ("shares", "bias"))
    g = (shares / (1 + np.exp(-s - bias))).sum(0)
    np.testing.assert_allclose(distances, np.log((1 - g) / g), atol=1e-4)


@pytest.mark.parametrize("kind", [Sml, *JOINT])
def test_new_people_are_distinguished_better_than_before_the_fit(kind: type[SimilarityEmbedder]) -> None:
    data = replace(people(120), blocks=(18, 12))
    seen = np.flatnonzero(data.tasks[0].people < 80)
    known = TaskData("identity", seen, data.tasks[0].values[seen], data.tasks[0].people[seen])
    start, learned = (
        kind.from_options(steps=steps, rate=rate, dropout=0.3, batch=256, whitening="all").fit(
            replace(data, tasks=(known,))
        )
        for steps, rate in ((1, 1e-12), (1500, 1e-3))
    )
    assert auc(learned, data, 80) > auc(start, data, 80) + 0.05


def auc(fitted: SimilarityEmbedder, data: TrainingSet, first: int) -> float:
    """Return the AUC of all pairs of the people from number `first` on."""
    who = data.tasks[0].people
    z = fitted.embed(data.rows[who >= first])
    i, j = np.triu_indices(len(z), 1)
    same = np.where((who[who >= first][i] == who[who >= first][j]), 1.0, -1.0)
    return compute_auc(torch.from_numpy(-fitted.metric.distances(z, z)[i, j]), torch.from_numpy(same))


def test_the_auc_is_the_share_of_pairs_in_order() -> None:
    draw = np.random.default_rng(0)
    scores, sign = draw.integers(0, 6, 60) * 1.0, draw.choice([-1.0, 1.0], 60)
    gap = scores[sign > 0][:, None] - scores[sign < 0]
    auc = compute_auc(torch.from_numpy(scores), torch.from_numpy(sign))
    assert auc == pytest.approx(np.mean((gap > 0) + 0.5 * (gap == 0)))


def test_the_auc_of_infinite_scores_counts_ties_half() -> None:
    scores, sign = torch.tensor([torch.inf, 1.0, torch.inf, -1.0]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert compute_auc(scores, sign) == (0.5 + 1 + 0 + 1) / 4


def view_two(seed: int, count: int = 90) -> tuple[TrainingSet, TaskData]:
    """Return pairs in ten parts with different people; `people` is the part of each face."""
    draw, data = np.random.default_rng(seed), replace(people(count, seed=seed), blocks=(18, 12))
    who = data.tasks[0].people
    part = who % 10
    pairs = draw.integers(0, len(who), (60_000, 2))
    pairs = np.unique(np.sort(pairs[(part[pairs[:, 0]] == part[pairs[:, 1]]) & (pairs[:, 0] != pairs[:, 1])]), axis=0)
    same = who[pairs[:, 0]] == who[pairs[:, 1]]
    pairs = np.concatenate([pairs[same], draw.permutation(pairs[~same])[: same.sum()]])
    same = np.arange(len(pairs)) < same.sum()
    ones = np.ones(len(pairs), np.float32)
    task = replace(identity(who), values=np.full(len(who), np.nan), people=part, pairs=pairs, same=same, weights=ones)
    return replace(data, tasks=(task,)), task


@pytest.mark.parametrize("kind", JOINT)
def test_given_pairs_alone_are_enough(kind: type[SimilarityEmbedder]) -> None:
    data, task = view_two(5)
    fitted = kind.from_options(steps=300, dropout=0.3, rate=1e-3, whitening="all").fit(data)
    start = kind.from_options(steps=1, rate=1e-12, whitening="all").fit(data)
    z, raw = fitted.embed(data.rows), start.embed(data.rows)
    first, second = task.pairs.T
    sign = torch.from_numpy(np.where(task.same, 1.0, -1.0))
    after, before = (
        compute_auc(torch.from_numpy(-e.metric.paired_distances(of[first], of[second])), sign)
        for e, of in ((fitted, z), (start, raw))
    )
    assert after > before + 0.05
    assert fitted.notes["held_out"] is not None, "people of some parts stopped it"


def test_held_out_people_do_not_reach_the_fit() -> None:
    data, task = view_two(6)
    plain = CosimMass.from_options(steps=40)
    order = shuffle_people(task, plain.seed)
    judged = np.isin(task.people[task.pairs[:, 0]], order[: round(plain.fitting.held_out * len(order))])
    assert 0 < judged.sum() < len(judged) / 4
    one, other = (
        CosimMass.from_options(steps=40).fit(replace(data, tasks=(t,)))
        for t in (task, replace(task, same=task.same ^ judged))
    )
    assert other.notes["held_out"] != one.notes["held_out"]
    assert other.notes["loss"] == one.notes["loss"], "the descent itself is the same to the bit"


def test_each_fit_keeps_its_best_validation_step() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 50, 4)
    draw = np.random.default_rng(0)

    def drawn(count: int) -> PairSet:
        sign = torch.from_numpy(draw.choice([-1.0, 1.0], count)).float()
        return PairSet(torch.from_numpy(draw.integers(0, 50, (count, 2))), sign, torch.ones(count))

    pools, held = [drawn(40), drawn(40)], [drawn(30), drawn(30)]
    shares = torch.ones(1, 2)
    model = Branches.start(1, 4, torch.zeros(1, 2), summed=True)
    fitted_branch = descend(
        BranchLearner(model, x, pools, held, shares, DecaySchedule(60, 8, 0.05, 0.0, 0.0), 0), lambda *_report: None
    )
    for f in range(2):
        alone = Branches.start(1, 4, torch.zeros(1, 2), summed=True)
        course = DecaySchedule(fitted_branch.steps[f], 8, 0.05, 0.0, 0.0)
        descend(BranchLearner(alone, x, pools, None, shares, course, 0), lambda *_report: None)
        torch.testing.assert_close(model.weights[:, f], alone.weights[:, f])


def test_the_step_falls_as_in_keras() -> None:
    x, one = torch.ones(1, 1, 2, 1), torch.ones(1)
    pool = PairSet(torch.tensor([[0, 1]]), one, one)
    model = Branches.start(1, 1, torch.full((1, 1), -40.0), summed=True)
    descend(
        BranchLearner(model, x, [pool], None, torch.ones(1, 1), DecaySchedule(50, 1, 0.01, 0.1, 0.0), 0),
        lambda *_report: None,
    )
    walked = sum(0.01 / (1 + 0.1 * t) for t in range(50))
    assert float(model.bias) + 40 == pytest.approx(walked, rel=1e-3), "Adam's steps under a steady gradient"


def test_shares_are_searched_among_people_held_out() -> None:
    data = replace(people(120, informative=16, noise=24), blocks=(16, 24))
    fitted = CosimAverage.from_options(steps=40, shares="search").fit(data)
    shares = fitted.metric.shares
    assert sum(shares) == pytest.approx(1)
    assert shares[0] > shares[1], "the second descriptor knows nothing"
    assert CosimAverage.from_options(steps=40).fit(data).metric.shares == (0.5, 0.5)


def test_one_descriptor_makes_sml_of_both() -> None:
    data = people()
    sml, mass, average = (kind.from_options(steps=50).fit(data).embed(data.rows) for kind in (Sml, *JOINT))
    np.testing.assert_array_equal(sml, mass)
    np.testing.assert_allclose(sml, average, atol=1e-4)


@pytest.mark.parametrize("kind", [Sml, *JOINT])
def test_the_fold_that_is_tested_is_never_touched(kind: type[SimilarityEmbedder]) -> None:
    """Its labels and its faces replaced by anything, what is learned stays the same to the bit."""
    data, task = view_two(7)
    parts = [
        VerificationPairs(task.pairs[in_fold], task.same[in_fold])
        for in_fold in (task.people[task.pairs[:, 0]] == f for f in range(10))
    ]
    draw = np.random.default_rng(0)
    poisoned = data.rows.copy()
    poisoned[task.people == 4] = draw.normal(size=(int((task.people == 4).sum()), 30)) * 100
    labels = VerificationPairs(parts[4].index, draw.random(len(parts[4].same)) < 0.5)
    changed = [*parts[:4], labels, *parts[5:]]
    learned = []
    for rows, given in ((data.rows, parts), (poisoned, changed)):
        played = RestrictedFold.of(np.split(rows, [18], axis=1), given, 4)
        learned.append(kind.from_options(steps=40, held_out=played.share).fit(played.data))
    assert learned[0].notes == learned[1].notes
    for name, array in learned[0].learned.items():
        np.testing.assert_array_equal(array, learned[1].learned[name])

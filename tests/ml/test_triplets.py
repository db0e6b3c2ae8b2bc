"""Equation 12 and the semi-hard miner, against pytorch-metric-learning and against loops."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor

from ml.embedders.base import TaskData
from ml.losses.triplet import Triplet
from ml.metric_learning.siamese.mining_batches import MiningBatches
from ml.metric_learning.tensors import squared_distances
from ml.mining.semihard import SemiHard
from ml.sampling.uniform import Uniform


def draw_batch(seed: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """z (B, d) in float64 and labels (B,), of random size."""
    chance = torch.Generator().manual_seed(seed)
    sizes = ((8, 40), (2, 9), (2, 6))
    count, width, kinds = (int(torch.randint(low, high, (), generator=chance)) for low, high in sizes)
    z = torch.randn(count, width, generator=chance, dtype=torch.float64)
    return z, torch.randint(0, kinds, (count,), generator=chance), chance


def relations(labels: Tensor) -> tuple[Tensor, Tensor]:
    alike = labels[:, None] == labels
    return alike & ~torch.eye(len(labels), dtype=torch.bool), ~alike


@pytest.mark.parametrize("seed", range(6))
def test_the_loss_is_that_of_pytorch_metric_learning_squared_unnormalised_and_mean(seed: int) -> None:
    z, labels, chance = draw_batch(seed)
    triplets = torch.randint(0, len(z), (50, 3), generator=chance)
    z.requires_grad_(True)
    ours = Triplet(0.7)(squared_distances(z), triplets)
    [by] = torch.autograd.grad(ours, z)
    distance = LpDistance(normalize_embeddings=False, p=2, power=2)
    theirs = TripletMarginLoss(margin=0.7, distance=distance, reducer=MeanReducer())
    loss = theirs(z, labels, tuple(triplets.T))
    loss.backward()
    assert ours.item() == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(by, z.grad, rtol=1e-9, atol=1e-11)


def test_the_loss_of_no_triplet_is_zero_and_can_be_differentiated() -> None:
    z = torch.randn(5, 3, requires_grad=True)
    loss = Triplet()(squared_distances(z), torch.empty(0, 3, dtype=torch.int64))
    loss.backward()
    assert float(loss.detach()) == 0
    assert float(z.grad.abs().max()) == 0


@pytest.mark.parametrize("seed", range(6))
def test_every_pair_has_the_nearest_negative_that_is_no_nearer_than_its_positive(seed: int) -> None:
    z, labels, chance = draw_batch(seed)
    d2 = squared_distances(z)
    alike, different = relations(labels)
    triplets = {tuple(t) for t in SemiHard(len(z))(d2, alike, different, chance).tolist()}
    wanted = set()
    for a in range(len(z)):
        for p in range(len(z)):
            far = [n for n in range(len(z)) if labels[n] != labels[a] and d2[a, n] >= d2[a, p]]
            if a != p and labels[a] == labels[p] and far:
                wanted.add((a, p, min(far, key=lambda n: float(d2[a, n]))))
    assert triplets == wanted


def test_an_anchor_has_so_many_triplets_and_each_positive_its_turn() -> None:
    z, labels = torch.randn(30, 4), torch.arange(30) // 10
    alike, different = relations(labels)
    d2 = squared_distances(z) + 50 * different  # whoever is apart is far: no pair is without a negative
    chance, seen = torch.Generator().manual_seed(0), set()
    for _ in range(40):
        triplets = SemiHard(5)(d2, alike, different, chance)
        assert torch.bincount(triplets[:, 0], minlength=30).tolist() == [5] * 30
        assert len({(a, p) for a, p, _ in triplets.tolist()}) == 150
        seen |= {(a, p) for a, p, _ in triplets.tolist()}
    assert len(seen) == 30 * 9


def test_a_preferred_negative_comes_first_while_it_breaks_the_constraint_also_nearer_than_the_positive() -> None:
    z = torch.tensor([[0.0], [2.0], [1.0], [2.1], [9.0]])
    d2 = squared_distances(z)
    alike = torch.zeros(5, 5, dtype=torch.bool)
    alike[0, 1] = True
    different = torch.zeros(5, 5, dtype=torch.bool)
    different[0, 2:] = True
    chance = torch.Generator()
    for liked, wanted in ((None, 3), (2, 2), (4, 3)):
        preferred = torch.zeros(5, 5, dtype=torch.bool)
        if liked is not None:
            preferred[0, liked] = True
        assert SemiHard()(d2, alike, different, chance, preferred, 0.5).tolist() == [[0, 1, wanted]]


def labelled_task(values: list[float], pairs: list[tuple[int, int]], same: list[bool]) -> TaskData:
    weights = np.arange(1, len(pairs) + 1, dtype=np.float32)
    count = len(values)
    return TaskData(
        "identity", np.arange(count), np.array(values), np.arange(count), 0.0, np.array(pairs, np.int64).reshape(-1, 2),
        np.array(same, np.bool_), weights,
    )  # fmt: skip


def batch_of(data: TaskData, corrections: float = 0.5):  # type: ignore[no-untyped-def]
    draw = MiningBatches(data, Uniform(100), np.random.default_rng(0), corrections)
    return draw.draw(torch.device("cpu"))


def test_labels_override_what_the_values_say() -> None:
    batch = batch_of(labelled_task([0, 0, 0, 1, 1, 1], [(0, 1), (2, 3)], [False, True]))
    assert batch.faces.tolist() == list(range(6))
    assert not batch.positives[0, 1]
    assert batch.negatives[1, 0]
    assert batch.labelled_negatives.nonzero().tolist() == [[0, 1], [1, 0]]
    assert batch.positives[2, 3]
    assert not batch.negatives[3, 2]
    assert batch.positives[0, 2]
    assert batch.negatives[0, 3]
    assert not batch.positives.diagonal().any()


def test_a_labelled_not_the_same_without_a_fellow_is_pushed_a_margin_away() -> None:
    nan = float("nan")
    batch = batch_of(labelled_task([nan, nan, 1, 1, 2, 2], [(0, 1)], [False]))
    assert batch.positives.diagonal().tolist() == [True, True, False, False, False, False]
    d2 = torch.full((6, 6), 0.3).fill_diagonal_(0)
    triplets = SemiHard()(
        d2, batch.positives, batch.negatives, torch.Generator(), batch.labelled_negatives, 0.5
    ).tolist()
    assert [0, 0, 1] in triplets
    assert [1, 1, 0] in triplets


def test_a_labelled_same_of_unknown_people_has_strangers_drawn_for_it() -> None:
    nan = float("nan")
    batch = batch_of(labelled_task([nan, nan, 1, 1, 2, 2], [(0, 1)], [True]))
    assert batch.positives[0, 1]
    assert batch.negatives[0].any()
    assert not batch.negatives[0, :2].any()


def test_explicit_triplets_carry_the_share_that_their_number_earns() -> None:
    batch = batch_of(labelled_task([0, 0, 0, 1, 1, 1], [(0, 1), (2, 3)], [False, True]), corrections=0.5)
    triplets = torch.tensor([[0, 2, 1], [2, 3, 4], [4, 5, 0], [5, 4, 0]])
    weight = batch.weigh(triplets)
    share = 0.5 * 2 / 52
    assert weight is not None
    np.testing.assert_allclose(weight.numpy(), [share / 3, share * 2 / 3, (1 - share) / 2, (1 - share) / 2], rtol=1e-6)
    plain = batch_of(labelled_task([0, 0, 1, 1], [], []))
    assert plain.weigh(triplets) is None


def test_partners_of_a_labelled_face_come_along() -> None:
    count = 300
    pairs = [(0, i) for i in range(1, count)]
    data = labelled_task([float("nan")] * count, pairs, [i % 2 == 0 for i in range(1, count)])
    batch = MiningBatches(data, Uniform(10), np.random.default_rng(0), 0.5, labels_per_batch=1).draw(
        torch.device("cpu")
    )
    assert 4 < len(batch.faces) < 40
    assert batch.positives[0].any()
    assert batch.labelled_negatives[0].any()

"""The layers of 001 behind a network, trained end to end."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ml import registry
from ml.errors import WrongShape
from ml.layers.base import Layer, optimisers, random_start
from ml.losses.triplet import Triplet
from ml.manifolds.common.rsgdm import Rsgdm
from ml.manifolds.flat import FlatManifold
from ml.metric_learning.tensors import squared_distances
from ml.mining.semihard import SemiHard

NAMES = registry.names("layers")


def layer(name: str, n: int = 12, p: int = 4) -> Layer:
    made: Layer = registry.build("layers", name, start=random_start(n, p, seed=1))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_begins_with_the_distances_of_its_start(name: str) -> None:
    features, start = torch.randn(9, 12), random_start(12, 4, seed=1)
    wanted = squared_distances(normalize(features) @ start)
    made = layer(name)
    torch.testing.assert_close(squared_distances(made(features)), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made(features), normalize(features) @ made.matrix)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_direction_of_a_feature_counts(name: str) -> None:
    features = torch.randn(9, 12)
    made = layer(name)
    torch.testing.assert_close(made(3 * features), made(features))
    made.unit = False
    torch.testing.assert_close(made(3 * features), 3 * made(features))


@pytest.mark.parametrize("name", NAMES)
def test_more_columns_than_rows_are_refused(name: str) -> None:
    with pytest.raises(WrongShape, match="n >= p"):
        registry.build("layers", name, start=torch.randn(3, 5))


def test_what_is_curved_goes_to_rsgdm_and_all_the_rest_to_rmsprop() -> None:
    backbone = nn.Linear(6, 12)
    for name, own in (("qconv", 0), ("stiefel", 1)):
        head = layer(name)
        curved, flat = optimisers(nn.Sequential(backbone, head), rate=0.1)
        assert isinstance(curved, Rsgdm)
        assert isinstance(flat, torch.optim.RMSprop)
        assert sum(len(g["params"]) for g in curved.param_groups) == 1
        assert sum(len(g["params"]) for g in flat.param_groups) == 2 + own
    [flat] = optimisers(nn.Sequential(backbone, layer("plain")), rate=0.1)
    assert isinstance(flat, torch.optim.RMSprop)
    stepped = registry.build("layers", "plain", start=random_start(12, 4), manifold=FlatManifold())
    assert [type(o) for o in optimisers(stepped, rate=0.1)] == [Rsgdm]


def photos(seed: int) -> tuple[Tensor, Tensor]:
    """(80, 1, 8, 8) of ten people, each a pattern under noise, and whose."""
    chance = torch.Generator().manual_seed(seed)
    person = torch.arange(80) // 8
    pattern = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(7))
    return pattern[person] + 1.5 * torch.randn(80, 1, 8, 8, generator=chance), person


def nearest_is_alike(z: Tensor, person: Tensor) -> float:
    nearest = squared_distances(z).fill_diagonal_(torch.inf).argmin(1)
    return float((person[nearest] == person).float().mean())


@pytest.mark.parametrize("name", ["qconv", "stiefel"])
def test_a_network_and_its_layer_learn_together_and_the_layer_stays_on_its_manifold(name: str) -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 24))
    network = nn.Sequential(backbone, layer(name, 24, 6))
    chance, miner, triplet = torch.Generator().manual_seed(0), SemiHard(5), Triplet(0.5)
    both = optimisers(network, rate=0.05, backbone_rate=1e-3)
    losses, other = [], photos(1000)
    first = nearest_is_alike(network(other[0]).detach(), other[1])
    before = backbone[0].weight.detach().clone()
    for step in range(60):
        pixels, person = photos(step)
        d2 = squared_distances(network(pixels))
        alike = person[:, None] == person
        triplets = miner(d2.detach(), alike & ~torch.eye(80, dtype=torch.bool), ~alike, chance)
        loss = triplet(d2, triplets)
        for optimiser in both:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in both:
            optimiser.step()
        losses.append(loss.item())
    assert nearest_is_alike(network(other[0]).detach(), other[1]) > first + 0.1
    assert not torch.equal(before, backbone[0].weight)
    assert sum(losses[-10:]) < sum(losses[:10])
    assert all(a == a and b == b for a, b in pairwise(losses))
    if name == "stiefel":
        u = network[1].u.detach()
        assert float((u.T @ u - torch.eye(6)).abs().max()) < 1e-6

"""Time the two geometries of 001 against the plain layer. For their accuracy, see `likeness reproduce manifolds`.

    python -m benchmarks.manifolds [--threads 1] [--rounds 15] [--batches 64,256] [--json FILE]

Times whole training steps (batch, network, mining, loss, both optimisers) of all layers in turn, a few per round. The
result is the median over rounds of each layer's CPU time over the plain layer's in the same round, on which other load
has little effect. "digits": 784 -> 20, batches of 100; "network": three convolutions on 64 x 64
grey crops, then 512 -> 100.
"""

import argparse
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import process_time

import torch
from torch import Tensor, nn

from ml.layers.base import Layer, optimisers, random_start
from ml.losses.triplet import Triplet
from ml.manifolds.quotient import QuotientManifold
from ml.metric_learning.tensors import squared_distances
from ml.mining.semihard import SemiHard
from ml.registry import build

LAYERS = ("plain", "qconv", "qconv metric", "stiefel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", default="64,100,128,256")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    figures = []
    for batch in map(int, args.batches.split(",")):
        alone = measure_cost(list, 784, 20, batch, (784,), 20, args.rounds)
        behind = measure_cost(build_convolutions, 512, 100, batch, (1, 64, 64), 1, args.rounds)
        figures += [{"of": "digits", "batch": batch, **alone}, {"of": "network", "batch": batch, **behind}]
        print(json.dumps(figures[-2]), json.dumps(figures[-1]), sep="\n", flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def build_head(name: str, n: int, p: int, seed: int = 0) -> Layer:
    kind, _, metric = name.partition(" ")
    options = {"manifold": QuotientManifold(descends="metric")} if metric else {}
    made: Layer = build("layers", kind, start=random_start(n, p, seed), **options)
    return made


def build_convolutions() -> list[nn.Module]:
    widths, modules = (1, 32, 64, 128), list[nn.Module]()
    for before, after in pairwise(widths):
        modules += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return [*modules, nn.AdaptiveAvgPool2d(2), nn.Flatten()]


def make_step(
    layer: Layer, before: list[nn.Module], rate: float, decay: float = 1.0
) -> Callable[[Tensor, Tensor], None]:
    """Return a function that takes a training step with a batch and its labels."""
    network = nn.Sequential(*before, layer)
    both, miner, triplet = optimisers(network, rate), SemiHard(5), Triplet(1.0)
    if not list(layer.curved()):
        flat = [p for m in before for p in m.parameters()]
        both = [torch.optim.SGD(layer.parameters(), lr=rate, momentum=0.9)]
        both += [torch.optim.RMSprop(flat, lr=1e-4)] if flat else []
    chance = torch.Generator().manual_seed(0)

    def step(pixels: Tensor, labels: Tensor) -> None:
        d2 = squared_distances(network(pixels))
        alike = labels[:, None] == labels
        different = ~alike
        triplets = miner(d2.detach(), alike.fill_diagonal_(False), different, chance)
        for optimiser in both:
            optimiser.zero_grad()
        triplet(d2, triplets).backward()
        for optimiser in both:
            optimiser.step()

    return step


def measure_cost(
    before: Callable[[], list[nn.Module]], n: int, p: int, batch: int, shape: tuple[int, ...], steps: int, rounds: int
) -> dict[str, float]:
    """Return the milliseconds of a plain step, and the additional time of each other layer in percent."""
    chance = torch.Generator().manual_seed(0)
    pixels = torch.rand(4 * batch, *shape, generator=chance)
    labels = torch.randint(0, 10, (4 * batch,), generator=chance)
    network = before()
    runs = {name: make_step(build_head(name, n, p), network, 1e-3) for name in LAYERS}
    seconds: dict[str, list[float]] = {name: [] for name in LAYERS}
    for _ in range(rounds + 1):
        for name, step in runs.items():
            start = process_time()
            for _ in range(steps):
                chosen = torch.randint(0, len(pixels), (batch,), generator=chance)
                step(pixels[chosen], labels[chosen])
            seconds[name].append((process_time() - start) / steps)
    plain = seconds["plain"][1:]
    over = {name: median(a / b for a, b in zip(seconds[name][1:], plain, strict=True)) for name in LAYERS[1:]}
    return {"plain_ms": round(1e3 * median(plain), 3)} | {k: round(100 * (v - 1), 2) for k, v in over.items()}


if __name__ == "__main__":
    main()

"""Time a step of CoSiM: ours, for one fit or ten batched fits, and a Keras-style network of autograd layers.

    python -m benchmarks.cosim [--descriptors 2] [--steps 200] [--json FILE]

Descriptors are 300 random numbers each, in batches of 128 pairs. For accuracy and time on the ten folds of LFW's view
2, see `likeness reproduce cosim`.
"""

import argparse
import json
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import nn

from ml.embedders.base import ignore_progress
from ml.metric_learning.cosim.branches import Branches
from ml.metric_learning.cosim.learner import BranchLearner, DecaySchedule, descend
from ml.metric_learning.pairs import PairSet


class Reference(nn.Module):
    """The networks of Tables 1 and 2 of 000, layer by layer."""

    def __init__(self, n: int, width: int, together: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(width, eps=1e-3, momentum=0.01) for _ in range(n))
        self.shared = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(n))
        for layer in self.shared:
            nn.init.eye_(layer.weight)
        self.drop, self.together = nn.Dropout(0.7), together
        self.bias = nn.Parameter(0.01 * torch.randn(1 if together else n))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dots = []
        for i, (norm, shared) in enumerate(zip(self.norms, self.shared, strict=True)):
            p, q = (shared(self.drop(norm(of[i]))) for of in (x, y))
            dots.append((p * q).sum(1))
        s = torch.stack(dots)
        return torch.sigmoid((s.sum(0, keepdim=True) if self.together else s) + self.bias[:, None]).mean(0)


def time_steps(n: int, pairs: int, steps: int, width: int = 300, batch: int = 128) -> dict[str, Any]:
    """Measure the milliseconds of a step: the reference, ours, and ours with ten batched fits, on random numbers."""
    torch.manual_seed(0)
    x, same = torch.randn(n, pairs, width), torch.rand(pairs) < 0.5
    ends = torch.randint(0, pairs, (pairs, 2))
    pair_set = PairSet(ends, torch.where(same, 1.0, -1.0), torch.ones(pairs))
    schedule = DecaySchedule(steps, batch, 1e-3, 1e-3, 0.7)
    milliseconds = {}
    for form, together in (("mass", True), ("average", False)):
        net = Reference(n, width, together)
        adam = torch.optim.Adam(net.parameters(), lr=1e-3)
        decay = torch.optim.lr_scheduler.LambdaLR(adam, lambda t: 1 / (1 + 1e-3 * t))
        start = process_time()
        for _ in range(steps):
            at = torch.randint(0, pairs, (batch,))
            g = net(x[:, ends[at, 0]], x[:, ends[at, 1]])
            adam.zero_grad()
            nn.functional.binary_cross_entropy(g, same[at].float()).backward()
            adam.step()
            decay.step()
        milliseconds[f"{form}: reference, ms a step"] = 1000 * (process_time() - start) / steps
        for fits in (1, 10):
            m = 1 if together else n
            shares = torch.full((m, fits), 1 / m)
            model = Branches.start(n, width, torch.zeros(m, fits), summed=together)
            start = process_time()
            descend(
                BranchLearner(model, 0.1 * x[:, None], [pair_set] * fits, None, shares, schedule, 0), ignore_progress
            )
            spent = 1000 * (process_time() - start) / steps / fits
            milliseconds[f"{form}: {fits} at once, ms a step and fit"] = spent
    return {name: round(value, 2) for name, value in milliseconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--descriptors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = time_steps(args.descriptors, 5400, args.steps)
    for name, milliseconds in report.items():
        print(f"{name:42} {milliseconds}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

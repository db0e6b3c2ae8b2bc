"""The training loop of 001's experiments: triplets, rSGD-M for parameters on a manifold, RMSProp for the rest."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ml.cnn_training.batches import draw_by_person, draw_evenly
from ml.cnn_training.heads import NetworkWithHead, TripletHead
from ml.embedders.base import Progress
from ml.layers.base import Layer, optimisers
from ml.types import Ids
from papers.manifolds.head_layers import HEADS, RATES, HeadTraining, describe_matrix

MOMENTUM = 0.9
FINAL_STEPS = 50
"""Steps at the end over which the loss is averaged."""
MakeInput = Callable[[Ids, torch.Generator], Tensor]
"""Called as look(positions, generator); returns the network's input for them."""
Step = Callable[[int], float]


@dataclass(frozen=True, eq=False)
class HeadTrainingData:
    """The training data. people: (N,) int64 person or digit of each example; look: makes the input"""

    people: Ids
    make_input: MakeInput


def make_step(data: HeadTrainingData, net: nn.Module, layer: Layer, plan: HeadTraining) -> Step:
    """Make a function step(number) that returns the loss. The number alone determines the batch."""
    network = NetworkWithHead(net, TripletHead(layer, plan.margin)).train()
    fine = plan.rate if plan.head == "rmsprop" else plan.fine
    both = optimisers(network, plan.rate, MOMENTUM, fine)
    draw, people = torch.Generator().manual_seed(plan.seed), torch.from_numpy(data.people)
    network.head.prepare_step(0.0, draw)

    def step(number: int) -> float:
        if plan.photos_per_person:
            batch = draw_by_person(data.people, plan.batch, plan.photos_per_person, seed=plan.seed, step=number)
        else:
            batch = draw_evenly(len(people), plan.batch, seed=plan.seed, step=number)
        loss: Tensor = network(data.make_input(batch, draw), people[batch])
        for optimiser in both:
            optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimiser in both:
            optimiser.step()
        return loss.item()

    return step


class Diverged(ArithmeticError):
    """The training diverged: its rate is too large."""


def train_head(
    data: HeadTrainingData, net: nn.Module, start: Tensor, plan: HeadTraining, progress: Progress
) -> tuple[Layer, dict[str, Any]]:
    """Train a network with a head, and return the head and its record.

    If the training diverges, at most FINAL_STEPS steps are undone, and `astray` in the record is the step.
    """
    layer = HEADS[plan.head].make(start)
    step, losses, astray = make_step(data, net, layer, plan), list[float](), dict[str, int]()
    both = (net, layer)
    for number in range(plan.steps + 1):
        if number % FINAL_STEPS == 0 or number == plan.steps:
            if not torch.isfinite(layer.matrix).all():
                astray = {"astray": number}
                break
            kept = [deepcopy(one.state_dict()) for one in both]
            progress(number, plan.steps, {"loss": losses[-1] if losses else float("nan")})
        if number < plan.steps:
            try:
                losses.append(step(number))
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                astray = {"astray": number}
                break
    if astray:
        for one, state in zip(both, kept, strict=True):
            one.load_state_dict(state)
    net.train(False)
    return layer, {"loss": float(np.mean(losses[-FINAL_STEPS:])), **describe_matrix(layer.matrix.detach()), **astray}


def check_converged(record: Mapping[str, Any]) -> None:
    """Raise Diverged if the record says that the training diverged."""
    if "astray" in record:
        raise Diverged(f"at step {record['astray']}")


def sweep_rates(head: str, error: Callable[[float], float]) -> dict[str, float | None]:
    """Return the error by rate; None if the training diverges."""
    errors: dict[str, float | None] = {}
    for rate in RATES[head]:
        try:
            errors[str(rate)] = error(rate)
        except Diverged:
            errors[str(rate)] = None
    return errors


def measure_overheads(
    steps: Mapping[str, Step], base: str, steps_per_round: int, rounds: int
) -> dict[str, list[float]]:
    """Measure the CPU time of each step function over that of `base`: one ratio per round.

    All are run in turn, so that other load on the machine slows all of them alike. The first round is discarded.
    """
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    for r in range(rounds + 1):
        took = {name: _timed(step, r * steps_per_round, steps_per_round) for name, step in steps.items()}
        for name, seconds in took.items():
            ratios[name] += [seconds / took[base]] * (r > 0)
    return ratios


def _timed(step: Step, first: int, many: int) -> float:
    started = process_time()
    for number in range(first, first + many):
        step(number)
    return process_time() - started

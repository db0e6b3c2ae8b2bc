"""Step a network and its head, validate it, and save it."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from ml.cnn_training.augmentation import augment
from ml.cnn_training.batches import draw_by_person, draw_evenly
from ml.cnn_training.checkpoint import save_checkpoint
from ml.cnn_training.crops import LabelledCrops
from ml.cnn_training.export import export_network, load_weights
from ml.cnn_training.heads import LAYERS, ContrastiveHead, MarginHead, NetworkWithHead, TripletHead
from ml.cnn_training.process_group import ProcessGroup
from ml.cnn_training.recipe import CnnRecipe
from ml.cnn_training.validation import RetrievalScore, evaluate_network, split_crops
from ml.descriptors.common.networks import NETS, Casia, Light, features, pictures
from ml.layers.base import optimisers
from ml.types import Ids

WARMUP_SHARE = 0.05
"""Share of the training after which the learning rates reach their peak."""
MAX_CROPS_FOR_AXES = 4096
"""Crops from which the principal axes are computed that a layer starts with."""
LOSS_WINDOW_STEPS = 50


@dataclass
class TrainingState:
    """Where a training stands.

    step: steps taken; seconds: time spent; loss: running mean; best: highest mean average precision of a validation
    stale: validations since the best one
    """

    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    best: float = -1.0
    stale: int = 0


class CnnTrainer:
    """Trains a network in one process of a group. Equal data, recipes and group sizes give equal steps."""

    def __init__(self, data: LabelledCrops, recipe: CnnRecipe, group: ProcessGroup, start: Path | None = None) -> None:
        torch.manual_seed(recipe.seed)
        self.data, self.recipe, self.group, self.state = data, recipe, group, TrainingState()
        self.split = split_crops(data, recipe.held_out, recipe.seed)
        net = NETS[recipe.net]().to(group.device)
        if start is not None:
            net.load_state_dict(load_weights(start, recipe.net))
        head = self._make_head(net, start is not None)
        model = NetworkWithHead(net, head)
        self.model = model.to(group.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._parallel_model = group.parallelise(self.model)
        if not isinstance(head, TripletHead):
            self.optimisers: list[Optimizer] = [AdamW(self.model.parameters(), recipe.rate, weight_decay=recipe.decay)]
        else:
            self.optimisers = optimisers(self.model, recipe.layer_rate, recipe.momentum, recipe.network_rate)
        self._peak_rates = [[group["lr"] for group in optimiser.param_groups] for optimiser in self.optimisers]

    def step(self, done: float) -> None:
        """Learn from one batch. done: share of the training so far, 0..1, which sets the learning rates."""
        indexes = self.draw_batch()
        generator = torch.Generator().manual_seed(_seed(self.recipe.seed, self.state.step, self.group.rank))
        crops = np.array(self.data.crops[self.split.training[indexes]])
        faces = pictures(torch.from_numpy(crops).to(self.group.device))
        people = torch.from_numpy(self.split.people[indexes]).to(self.group.device)
        self.model.head.prepare_step(done, generator)
        for optimiser, rates in zip(self.optimisers, self._peak_rates, strict=True):
            optimiser.zero_grad()
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * _rate_factor(done)
        with torch.autocast(self.group.device.type, torch.bfloat16, enabled=self.recipe.bf16):
            loss: Tensor = self._parallel_model(augment(faces, generator), people)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimiser in self.optimisers:
            optimiser.step()
        self.state.step += 1
        self.state.loss += (loss.item() - self.state.loss) / min(self.state.step, LOSS_WINDOW_STEPS)

    @property
    def photos_seen(self) -> int:
        """Photos seen so far by all processes, repetitions included."""
        return self.state.step * self.recipe.batch * self.group.size

    def validate_and_save(self, out: Path, licence: str, trained: str) -> RetrievalScore:
        """Score the network on held-out people, write a checkpoint, and export the network if it is the best so far."""
        net, projection = self.model.net, self.model.head.projection
        score = evaluate_network(net, self.data, self.split.held_out, projection)
        improved = score.map > self.state.best
        self.state.best, self.state.stale = max(score.map, self.state.best), 0 if improved else self.state.stale + 1
        if improved:
            weights = net.state_dict() | ({} if projection is None else {"projection": projection})
            dim = net.dim if projection is None else projection.shape[1]
            note = f"{trained}; {self.recipe.net}, {self.recipe.head}, {self.photos_seen:,} photos seen"
            export_network(self.recipe.net, weights, out, dim=dim, licence=licence, trained=note)
        save_checkpoint(self.state_dict(), self.recipe, out)
        return score

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the parameters, the optimisers' state and the training state."""
        states = [optimiser.state_dict()["state"] for optimiser in self.optimisers]
        return {"model": self.model.state_dict(), "optimisers": states, "state": asdict(self.state)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(optimiser.state_dict() | {"state": saved})
        self.state = TrainingState(**state["state"])

    def draw_batch(self) -> Ids:
        """Draw this process's photos of the current step: (batch,) indexes into the training crops."""
        recipe, group = self.recipe, self.group
        position = {"seed": recipe.seed, "step": self.state.step, "rank": group.rank, "size": group.size}
        if recipe.head == "softmax":
            return draw_evenly(len(self.split.training), recipe.batch, **position)
        return draw_by_person(self.split.people, recipe.batch, recipe.photos_per_person, **position)

    def _compute_features(self, net: Casia | Light, indexes: Ids) -> Tensor:
        rows = features(net.train(False), self.data.crops[indexes])
        net.train()
        return rows.cpu().clone()

    def _make_head(self, net: Casia | Light, is_trained: bool) -> MarginHead | ContrastiveHead | TripletHead:
        """Make the head of the recipe. Behind a trained network, a softmax and a layer start from its features."""
        recipe = self.recipe
        if recipe.head == "pairs":
            return ContrastiveHead(recipe.pair_scale)
        if recipe.head == "softmax":
            head = MarginHead(net.dim, int(self.split.people.max()) + 1, recipe.margin, recipe.scale)
            if is_trained:
                rows = self._compute_features(net, self.split.training)
                head.start_from_features(rows, torch.from_numpy(self.split.people))
            return head
        rows = self._compute_features(net, self.split.training[:MAX_CROPS_FOR_AXES])
        axes = torch.linalg.eigh(rows.T.cov()).eigenvectors.flip(1)
        start = axes[:, : recipe.width or net.dim].contiguous()
        return TripletHead(LAYERS[recipe.head](start), recipe.triplet_margin)


def _rate_factor(done: float) -> float:
    """Return the factor of the learning rates: a linear rise, then half a cosine wave down to 0."""
    if done < WARMUP_SHARE:
        return done / WARMUP_SHARE + 1e-3
    return 0.5 + 0.5 * math.cos(math.pi * (done - WARMUP_SHARE) / (1 - WARMUP_SHARE))


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])

"""A network that is being taught: one step after another, judged and kept."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from ml.cnn_training import checkpoint
from ml.cnn_training.augmentation import augmented
from ml.cnn_training.batches import evenly, grouped
from ml.cnn_training.crops import LabelledCrops
from ml.cnn_training.export import export, read
from ml.cnn_training.heads import LAYERS, ContrastiveHead, MarginHead, NetworkWithHead, TripletHead
from ml.cnn_training.process_group import ProcessGroup
from ml.cnn_training.recipe import CnnRecipe
from ml.cnn_training.validation import RetrievalScore, judged, split
from ml.descriptors.common.networks import NETS, Casia, Light, features, pictures
from ml.layers.base import optimisers
from ml.types import Ids

WARM = 0.05
"""Part of the training after which the rates are at their highest."""
MOST = 4096
"""Photos from which the axes are taken that a layer begins with."""


@dataclass
class TrainingState:
    """step: steps taken; seconds: spent; loss: of late; best: mean average precision of the best judgement, and since
    when there was no better one."""

    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    best: float = -1.0
    stale: int = 0


class CnnTrainer:
    """A network being taught by one process of a crew. The same lesson, recipe and crew size: the same steps."""

    def __init__(self, lesson: LabelledCrops, recipe: CnnRecipe, us: ProcessGroup, start: Path | None = None) -> None:
        torch.manual_seed(recipe.seed)
        self.lesson, self.recipe, self.us, self.stand = lesson, recipe, us, TrainingState()
        self.split = split(lesson, recipe.held_out, recipe.seed)
        net = NETS[recipe.net]().to(us.device)
        if start is not None:
            net.load_state_dict(read(start, recipe.net))
        head = self._head(net, start is not None)
        self.taught = NetworkWithHead(net, head).to(us.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.alike = us.together(self.taught)
        if not isinstance(head, TripletHead):
            self.optimisers: list[Optimizer] = [AdamW(self.taught.parameters(), recipe.rate, weight_decay=recipe.decay)]
        else:
            self.optimisers = optimisers(self.taught, recipe.curved, recipe.momentum, recipe.fine)
        self.highest = [[group["lr"] for group in optimiser.param_groups] for optimiser in self.optimisers]

    def learn(self, done: float) -> None:
        """One step, `done` of the way to the end."""
        photos = self.mine()
        draw = torch.Generator().manual_seed(_seed(self.recipe.seed, self.stand.step, self.us.rank))
        faces = pictures(torch.from_numpy(np.array(self.lesson.crops[self.split.taught[photos]])).to(self.us.device))
        people = torch.from_numpy(self.split.people[photos]).to(self.us.device)
        self.taught.head.ready(done, draw)
        for optimiser, rates in zip(self.optimisers, self.highest, strict=True):
            optimiser.zero_grad()
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * _rate(done)
        with torch.autocast(self.us.device.type, torch.bfloat16, enabled=self.recipe.bf16):
            loss: Tensor = self.alike(augmented(faces, draw), people)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimiser in self.optimisers:
            optimiser.step()
        self.stand.step += 1
        self.stand.loss += (loss.item() - self.stand.loss) / min(self.stand.step, 50)

    @property
    def photos(self) -> int:
        """Seen so far, by all processes."""
        return self.stand.step * self.recipe.batch * self.us.size

    def keep(self, out: Path, licence: str, trained: str) -> RetrievalScore:
        """Judges; writes a checkpoint, and the network where it never was better."""
        net, projection = self.taught.net, self.taught.head.projection
        score = judged(net, self.lesson, self.split.held, projection)
        better = score.map > self.stand.best
        self.stand.best, self.stand.stale = max(score.map, self.stand.best), 0 if better else self.stand.stale + 1
        if better:
            weights = net.state_dict() | ({} if projection is None else {"projection": projection})
            dim = net.dim if projection is None else projection.shape[1]
            words = f"{trained}; {self.recipe.net}, {self.recipe.head}, {self.photos:,} photos seen"
            export(self.recipe.net, weights, out, dim=dim, licence=licence, trained=words)
        checkpoint.save(self.state(), self.recipe, out)
        return score

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: parameters, optimisers and the training state."""
        state = {"taught": self.taught.state_dict(), "optimisers": [o.state_dict()["state"] for o in self.optimisers]}
        return state | {"stand": asdict(self.stand)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.taught.load_state_dict(state["taught"])
        for optimiser, known in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(optimiser.state_dict() | {"state": known})
        self.stand = TrainingState(**state["stand"])

    def mine(self) -> Ids:
        """This process's photos of the step. (batch,) numbers of photos."""
        at = {"seed": self.recipe.seed, "step": self.stand.step, "rank": self.us.rank, "size": self.us.size}
        if self.recipe.head == "softmax":
            return evenly(len(self.split.taught), self.recipe.batch, **at)
        return grouped(self.split.people, self.recipe.batch, self.recipe.each, **at)

    def _features(self, net: Casia | Light, photos: Ids) -> Tensor:
        rows = features(net.train(False), self.lesson.crops[photos])
        net.train()
        return rows.cpu().clone()

    def _head(self, net: Casia | Light, learned: bool) -> MarginHead | ContrastiveHead | TripletHead:
        """The softmax behind a net that has learned begins with its features, and so do the layers of 001."""
        recipe = self.recipe
        if recipe.head == "pairs":
            return ContrastiveHead(recipe.sharp)
        if recipe.head == "softmax":
            head = MarginHead(net.dim, int(self.split.people.max()) + 1, recipe.margin, recipe.scale)
            if learned:
                head.imprint(self._features(net, self.split.taught), torch.from_numpy(self.split.people))
            return head
        rows = self._features(net, self.split.taught[:MOST])
        axes = torch.linalg.eigh(rows.T.cov()).eigenvectors.flip(1)
        return TripletHead(LAYERS[recipe.head](axes[:, : recipe.width or net.dim].contiguous()), recipe.apart)


def _rate(done: float) -> float:
    """Up in a line, down in a half wave."""
    return done / WARM + 1e-3 if done < WARM else 0.5 + 0.5 * math.cos(math.pi * (done - WARM) / (1 - WARM))


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])

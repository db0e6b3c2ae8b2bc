"""001, Tables 3 to 5 end to end: a small network that has learned a little goes on with a head behind it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ml.cnn_training.augmentation import augmented
from ml.cnn_training.crops import LabelledCrops
from ml.cnn_training.export import MANIFEST, read
from ml.cnn_training.process_group import ProcessGroup
from ml.cnn_training.recipe import CnnRecipe
from ml.cnn_training.train import train
from ml.descriptors.common.networks import NETS, features, pictures
from ml.embedders.base import Progress
from ml.types import Crops, Ids
from papers.harness.lab import Lab
from papers.harness.plan import Found, Work
from papers.manifolds.descent import Lesson, teach
from papers.manifolds.faces import start
from papers.manifolds.heads import Plan
from papers.manifolds.people import Sides, sides, told_apart

NET, DIM = "light", 64
MARGIN, BATCH, EACH, FINE = 0.5, 64, 2, 1e-4
SEEN = 1000
"""Photos whose features' axes a head starts with."""


def plan(head: str, rate: float, steps: int, seed: int = 0) -> Plan:
    return Plan(head, rate, steps, MARGIN, FINE, BATCH, EACH, seed)


def begun(lab: Lab, steps: int, least: int) -> Work:
    """A light net taught by pairs: where all heads start end to end. Its folder holds the net; judged as it is."""

    def run(folder: Path, progress: Progress) -> Found:
        asked = sides(lab.photos, least)
        photographs = LabelledCrops(lab.photos.crops("celeba", "colour")[asked.taught], asked.people)
        recipe = CnnRecipe(NET, "pairs", hours=0, steps=steps, batch=BATCH, every=1e6)
        us = ProcessGroup(0, 1, torch.device("cpu"))
        train(
            photographs, recipe, folder, us, licence="CelebA: non-commercial research", trained="for measuring alone",
            tell=lambda report: progress(report.stand.step, steps, {"loss": report.stand.loss}),
        )  # fmt: skip
        return told_apart(features(_net(folder), _asked(lab, asked)).numpy(), asked)

    key = {**_key("begun", least), "net": NET, "head": "pairs", "steps": steps}
    return Work("a light net begins", key, 40 + 0.8 * steps, run)


def end_to_end(lab: Lab, first: Work, asked: Plan, least: int) -> Work:
    """The net of `begun` goes on with a head behind it."""

    def run(folder: Path, progress: Progress) -> Found:
        told, net = sides(lab.photos, least), _net(lab.result(first).folder)
        crops = lab.photos.crops("celeba", "colour")

        def look(places: Ids, draw: torch.Generator) -> Tensor:
            return augmented(pictures(torch.from_numpy(np.array(crops[told.taught[places]]))), draw)

        axes = start(features(net, crops[told.taught[:: max(1, len(told.taught) // SEEN)]]), DIM)
        layer, like = teach(Lesson(told.people, look), net, axes, asked, progress)
        rows = features(net, _asked(lab, told)) @ layer.matrix.detach()
        facts, arrays = told_apart(rows.numpy(), told)
        return facts | like, arrays

    key = {**_key("end to end", least), "first": dict(first.key), "dim": DIM, "plan": asdict(asked)}
    return Work(f"end to end, {asked.head}, seed {asked.seed}", key, 60 + 0.9 * asked.steps, run)


def _key(what: str, least: int) -> dict[str, Any]:
    return {"paper": "001", "what": f"faces, {what}", "least": least}


def _net(folder: Path) -> nn.Module:
    net = NETS[NET]()
    net.load_state_dict(read(folder / MANIFEST, NET))
    return net.train(False)


def _asked(lab: Lab, asked: Sides) -> Crops:
    return np.asarray(lab.photos.crops("lfw", "colour")[asked.asked])

"""001, Tables 3 to 5 end to end: a small, briefly trained network is trained further with a head."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ml.cnn_training.augmentation import augment
from ml.cnn_training.crops import LabelledCrops
from ml.cnn_training.export import MANIFEST_FILE, load_weights
from ml.cnn_training.process_group import ProcessGroup
from ml.cnn_training.recipe import CnnRecipe
from ml.cnn_training.train import train
from ml.descriptors.common.networks import NETS, features, pictures
from ml.embedders.base import Progress
from ml.types import Crops, Ids
from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, ComputationOutput
from papers.manifolds.frozen_network import find_principal_axes
from papers.manifolds.head_layers import HeadTraining
from papers.manifolds.head_training import HeadTrainingData, train_head
from papers.manifolds.people_split import PeopleSplit, measure_separation, split_people

NET, DIM = "light", 64
MARGIN, BATCH, PHOTOS_PER_PERSON, FINE_RATE = 0.5, 64, 2, 1e-4
MAX_AXES_PHOTOS = 1000
"""Photos from whose features the initial axes of a head are computed."""


def plan_training(head: str, rate: float, steps: int, seed: int = 0) -> HeadTraining:
    return HeadTraining(head, rate, steps, MARGIN, FINE_RATE, BATCH, PHOTOS_PER_PERSON, seed)


def make_start_computation(context: RunContext, steps: int, min_photos: int) -> Computation:
    """Train a light network by pairs, from which all heads start; it is stored in the result's folder."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        split = split_people(context.photos, min_photos)
        photographs = LabelledCrops(context.photos.crops("celeba", "colour")[split.taught], split.people)
        recipe = CnnRecipe(NET, "pairs", hours=0, steps=steps, batch=BATCH, every=1e6)
        group = ProcessGroup(0, 1, torch.device("cpu"))
        train(
            photographs, recipe, folder, group, licence="CelebA: non-commercial research",
            trained="for measuring alone",
            report=lambda training: progress(training.state.step, steps, {"loss": training.state.loss}),
        )  # fmt: skip
        return measure_separation(features(_net(folder), _load_query_crops(context, split)).numpy(), split)

    key = {**_key("begun", min_photos), "net": NET, "head": "pairs", "steps": steps}
    return Computation("a light net begins", key, 40 + 0.8 * steps, run)


def make_head_computation(
    context: RunContext, first: Computation, training: HeadTraining, min_photos: int
) -> Computation:
    """Train the network of `make_start_computation` further, with a head."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        split, net = split_people(context.photos, min_photos), _net(context.result(first).folder)
        crops = context.photos.crops("celeba", "colour")

        def make_input(indices: Ids, draw: torch.Generator) -> Tensor:
            return augment(pictures(torch.from_numpy(np.array(crops[split.taught[indices]]))), draw)

        axes = find_principal_axes(
            features(net, crops[split.taught[:: max(1, len(split.taught) // MAX_AXES_PHOTOS)]]), DIM
        )
        layer, like = train_head(HeadTrainingData(split.people, make_input), net, axes, training, progress)
        rows = features(net, _load_query_crops(context, split)) @ layer.matrix.detach()
        record, arrays = measure_separation(rows.numpy(), split)
        return record | like, arrays

    key = {**_key("end to end", min_photos), "first": dict(first.key), "dim": DIM, "plan": training.key}
    return Computation(f"end to end, {training.head}, seed {training.seed}", key, 60 + 0.9 * training.steps, run)


def _key(what: str, min_photos: int) -> dict[str, Any]:
    return {"paper": "001", "what": f"faces, {what}", "least": min_photos}


def _net(folder: Path) -> nn.Module:
    net = NETS[NET]()
    net.load_state_dict(load_weights(folder / MANIFEST_FILE, NET))
    return net.train(False)


def _load_query_crops(context: RunContext, split: PeopleSplit) -> Crops:
    return np.asarray(context.photos.crops("lfw", "colour")[split.queries])

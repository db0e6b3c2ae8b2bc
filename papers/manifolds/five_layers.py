"""001's STL10 experiment with people as classes: a network of five layers, trained as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from ml.embedders.base import Progress
from ml.evaluation.protocols import number_people
from ml.layers.base import random_start
from ml.types import Ids
from papers.harness.photos import Photos
from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, ComputationOutput
from papers.manifolds.head_layers import HEADS, RATES, HeadTraining, flatten_matrix
from papers.manifolds.head_training import (
    HeadTrainingData,
    check_converged,
    make_step,
    measure_overheads,
    sweep_rates,
    train_head,
)

SIDE, WIDTH, DIM = 32, 1600, 32
MARGIN, BATCH, PHOTOS_PER_PERSON, FINE_RATE = 1.0, 100, 5, 1e-3


@dataclass(frozen=True, eq=False)
class PersonClasses:
    """People with enough photos. pictures: (N, 3, SIDE, SIDE) from -1 to 1; people: (N,) from 0"""

    pictures: Tensor
    people: Ids

    def sides(self, seed: int) -> tuple[Ids, Ids]:
        """Split each person's photos into training and test halves; the test half is the smaller one."""
        draw, test_parts = np.random.default_rng(seed), []
        for person in range(int(self.people.max()) + 1):
            own = draw.permutation(np.flatnonzero(self.people == person))
            test_parts.append(own[: len(own) // 2])
        tested = np.sort(np.concatenate(test_parts))
        return np.setdiff1d(np.arange(len(self.people)), tested), tested

    def of(self, indices: Ids) -> "PersonClasses":
        return PersonClasses(self.pictures[torch.from_numpy(indices)], self.people[indices])


@lru_cache(maxsize=2)
def classes(photos: Photos, photo_set: str, min_photos: int) -> PersonClasses:
    """Load the people of a photo set with `min_photos` photos or more."""
    people = number_people(photos.names(photo_set))
    kept = np.flatnonzero(np.bincount(people)[people] >= min_photos)
    crops = photos.crops(photo_set, "colour")
    small = [cv2.resize(np.asarray(crops[i]), (SIDE, SIDE), interpolation=cv2.INTER_AREA) for i in kept]
    pixels = torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
    numbers = np.unique(people[kept], return_inverse=True)[1].astype(np.int64)
    return PersonClasses(pixels, numbers)


def five_layers(seed: int) -> nn.Sequential:
    """Build the network without its head, fc5.

    conv1 5x5, max-pool, relu, conv2 5x5, relu, avg-pool, conv3 5x5, relu, conv4 4x4, relu
    (n, 3, 32, 32) -> (n, 1600). The paper prints no widths; 32, 32, 64, 64 are usual for small pictures.
    """
    torch.manual_seed(seed)
    first = [nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 32, 5, padding=2), nn.ReLU()]
    last = [nn.AvgPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.Conv2d(64, 64, 4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*first, *last)


def plan_training(head: str, rate: float, steps: int, seed: int = 0) -> HeadTraining:
    return HeadTraining(head, rate, steps, MARGIN, FINE_RATE, BATCH, PHOTOS_PER_PERSON, seed)


def make_choice_computation(context: RunContext, photo_set: str, min_photos: int, head: str, steps: int) -> Computation:
    """Choose the rate. Record: `errors` by rate, on half of the training side of split 0."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        classes_of_set = classes(context.photos, photo_set, min_photos)
        inner = classes_of_set.of(classes_of_set.sides(0)[0])

        def error(rate: float) -> float:
            record, arrays = _learned(inner, plan_training(head, rate, steps), progress)
            check_converged(record)
            return float(arrays["wrong"].mean())

        return {"errors": sweep_rates(head, error)}, {}

    key = _key(photo_set, min_photos, "inner") | {"head": head, "rates": list(RATES[head]), "steps": steps}
    return Computation(f"five layers, {photo_set}, the rate of {head}", key, 0.1 * steps * len(RATES[head]), run)


def make_head_computation(context: RunContext, photo_set: str, min_photos: int, training: HeadTraining) -> Computation:
    """Train a head. Record: see `train_head`.

    Arrays: `wrong` (Q,), `wrong_flat` (Q,) with all axes weighted equally, `asked` (Q,) positions, `whose` (Q,) people
    """

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        return _learned(classes(context.photos, photo_set, min_photos), training, progress)

    key = _key(photo_set, min_photos, "whole") | {"plan": training.key}
    return Computation(
        f"five layers, {photo_set}, {training.head}, split {training.seed}", key, 0.1 * training.steps + 10, run
    )


def make_timing_computation(
    context: RunContext, photo_set: str, min_photos: int, rates: Mapping[str, float], rounds: int
) -> Computation:
    """Time steps. Record: `ratios`, the CPU time of three steps over that of the plain layer, by round."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        data = classes(context.photos, photo_set, min_photos)
        start = random_start(WIDTH, DIM)
        steps = {
            name: make_step(
                _make_training_data(data), five_layers(0), HEADS[name].make(start), plan_training(name, rate, 1)
            )
            for name, rate in rates.items()
        }
        return {"ratios": measure_overheads(steps, "plain", 3, rounds)}, {}

    key = _key(photo_set, min_photos, "times") | {"rates": dict(rates), "rounds": rounds}
    return Computation("five layers, epochs' times", key, 0.3 * len(rates) * (rounds + 1), run)


def _key(photo_set: str, min_photos: int, what: str) -> dict[str, object]:
    return {"paper": "001", "what": f"five layers, {what}", "photos": photo_set, "least": min_photos}


def _make_training_data(taught: PersonClasses) -> HeadTrainingData:
    return HeadTrainingData(taught.people, lambda indices, _: taught.pictures[torch.from_numpy(indices)])


def _learned(data: PersonClasses, training: HeadTraining, progress: Progress) -> ComputationOutput:
    taught, tested = data.sides(training.seed)
    net = five_layers(training.seed)
    layer, record = train_head(
        _make_training_data(data.of(taught)), net, random_start(WIDTH, DIM, training.seed), training, progress
    )
    with torch.inference_mode():
        rows = normalize(torch.cat([net(part) for part in torch.split(data.pictures, 256)]))
    matrix = layer.matrix.detach()

    def wrong(z: Tensor) -> NDArray[np.bool_]:
        nearest = torch.cdist(z[torch.from_numpy(tested)], z[torch.from_numpy(taught)]).argmin(1).numpy()
        return np.asarray(data.people[taught[nearest]] != data.people[tested])

    arrays = {"wrong": wrong(rows @ matrix), "wrong_flat": wrong(rows @ flatten_matrix(matrix))}
    return record, arrays | {"asked": tested, "whose": data.people[tested], "matrix": matrix.numpy()}

"""001's STL10 experiment with people in place of its ten classes: a network of five layers, taught whole."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from ml.embedders.base import Progress
from ml.evaluation.protocols import people_of
from ml.layers.base import random_start
from ml.types import Ids
from papers.harness.lab import Lab
from papers.harness.photos import Photos
from papers.harness.plan import Found, Work
from papers.manifolds.descent import Lesson, overheads, sound, stepper, swept, teach
from papers.manifolds.heads import HEADS, RATES, Plan, flattened

SIDE, WIDTH, DIM = 32, 1600, 32
MARGIN, BATCH, EACH, FINE = 1.0, 100, 5, 1e-3


@dataclass(frozen=True, eq=False)
class Classes:
    """pictures: (N, 3, SIDE, SIDE) from -1 to 1 of people with enough photos; people: (N,) whose each is, from 0."""

    pictures: Tensor
    people: Ids

    def sides(self, seed: int) -> tuple[Ids, Ids]:
        """Of each person's photos half are tested, the smaller half; the others teach."""
        draw, asked = np.random.default_rng(seed), []
        for person in range(int(self.people.max()) + 1):
            own = draw.permutation(np.flatnonzero(self.people == person))
            asked.append(own[: len(own) // 2])
        tested = np.sort(np.concatenate(asked))
        return np.setdiff1d(np.arange(len(self.people)), tested), tested

    def of(self, places: Ids) -> "Classes":
        return Classes(self.pictures[torch.from_numpy(places)], self.people[places])


@lru_cache(maxsize=2)
def classes(photos: Photos, photo_set: str, least: int) -> Classes:
    """The people of a photo set with `least` photos or more."""
    people = people_of(photos.names(photo_set))
    kept = np.flatnonzero(np.bincount(people)[people] >= least)
    crops = photos.crops(photo_set, "colour")
    small = [cv2.resize(np.asarray(crops[i]), (SIDE, SIDE), interpolation=cv2.INTER_AREA) for i in kept]
    pixels = torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
    numbers = np.unique(people[kept], return_inverse=True)[1].astype(np.int64)
    return Classes(pixels, numbers)


def five_layers(seed: int) -> nn.Sequential:
    """conv1 5x5, max-pool, relu, conv2 5x5, relu, avg-pool, conv3 5x5, relu, conv4 4x4, relu; fc5 is the head.

    (n, 3, 32, 32) -> (n, 1600). The paper prints no widths: 32, 32, 64, 64, as such networks have for small pictures.
    """
    torch.manual_seed(seed)
    first = [nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 32, 5, padding=2), nn.ReLU()]
    then = [nn.AvgPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.Conv2d(64, 64, 4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*first, *then)


def plan(head: str, rate: float, steps: int, seed: int = 0) -> Plan:
    return Plan(head, rate, steps, MARGIN, FINE, BATCH, EACH, seed)


def choice(lab: Lab, photo_set: str, least: int, head: str, steps: int) -> Work:
    """Facts: `errors` by rate, of a half of what teaches split 0."""

    def run(folder: Path, progress: Progress) -> Found:
        told = classes(lab.photos, photo_set, least)
        inner = told.of(told.sides(0)[0])

        def error(rate: float) -> float:
            facts, arrays = _learned(inner, plan(head, rate, steps), progress)
            sound(facts)
            return float(arrays["wrong"].mean())

        return {"errors": swept(head, error)}, {}

    key = _key(photo_set, least, "inner") | {"head": head, "rates": list(RATES[head]), "steps": steps}
    return Work(f"five layers, {photo_set}, the rate of {head}", key, 0.1 * steps * len(RATES[head]), run)


def learned(lab: Lab, photo_set: str, least: int, asked: Plan) -> Work:
    """Facts: what `teach` says. Arrays: `wrong` (Q,), `wrong_flat` with all axes of one weight, `asked` (Q,) places,
    `whose` (Q,)."""

    def run(folder: Path, progress: Progress) -> Found:
        return _learned(classes(lab.photos, photo_set, least), asked, progress)

    key = _key(photo_set, least, "whole") | {"plan": asdict(asked)}
    return Work(f"five layers, {photo_set}, {asked.head}, split {asked.seed}", key, 0.1 * asked.steps + 10, run)


def epoch_times(lab: Lab, photo_set: str, least: int, rates: Mapping[str, float], rounds: int) -> Work:
    """Facts: `ratios`, of the CPU time of three steps over that of the plain layer, one a round."""

    def run(folder: Path, progress: Progress) -> Found:
        told = classes(lab.photos, photo_set, least)
        start = random_start(WIDTH, DIM)
        steps = {
            name: stepper(_lesson(told), five_layers(0), HEADS[name].make(start), plan(name, rate, 1))
            for name, rate in rates.items()
        }
        return {"ratios": overheads(steps, "plain", 3, rounds)}, {}

    key = _key(photo_set, least, "times") | {"rates": dict(rates), "rounds": rounds}
    return Work("five layers, epochs' times", key, 0.3 * len(rates) * (rounds + 1), run)


def _key(photo_set: str, least: int, what: str) -> dict[str, object]:
    return {"paper": "001", "what": f"five layers, {what}", "photos": photo_set, "least": least}


def _lesson(taught: Classes) -> Lesson:
    return Lesson(taught.people, lambda places, _: taught.pictures[torch.from_numpy(places)])


def _learned(told: Classes, asked: Plan, progress: Progress) -> Found:
    taught, tested = told.sides(asked.seed)
    net = five_layers(asked.seed)
    layer, facts = teach(_lesson(told.of(taught)), net, random_start(WIDTH, DIM, asked.seed), asked, progress)
    with torch.inference_mode():
        rows = normalize(torch.cat([net(part) for part in torch.split(told.pictures, 256)]))
    matrix = layer.matrix.detach()

    def wrong(z: Tensor) -> NDArray[np.bool_]:
        nearest = torch.cdist(z[torch.from_numpy(tested)], z[torch.from_numpy(taught)]).argmin(1).numpy()
        return np.asarray(told.people[taught[nearest]] != told.people[tested])

    arrays = {"wrong": wrong(rows @ matrix), "wrong_flat": wrong(rows @ flattened(matrix))}
    return facts, arrays | {"asked": tested, "whose": told.people[tested], "matrix": matrix.numpy()}

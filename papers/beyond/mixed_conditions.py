"""LFW with degraded searches, a clean gallery, and labels of pairs drawn from the same mixture of photos."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.evaluation import protocols
from ml.evaluation.protocols import Protocol
from ml.files import atomic_write
from ml.metric_learning.selection.validation import FALSE_MATCH_RATE, score_precisions
from ml.sampling.value_pairs import draw_pairs
from ml.types import Ids, Rows
from papers.beyond.degradations import CLEAN, degrade_crops
from papers.harness.photos import Photos

CROPS_PER_BLOCK = 256
DEGRADED_SHARE = 0.5
"""Of the photos that are learned from and whose person has another photo."""


@dataclass(frozen=True, eq=False)
class SearchScores:
    """What an embedder reaches in each of Q searches.

    precision: (Q,) average precision; accepted: (Q,) share of the person's photos found at a false-match rate of 0.1 %
    """

    precision: NDArray[np.float64]
    accepted: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MixedSplit:
    """One split of LFW: half of the people are learned from, and one photo of each other person searches.

    clean, degraded: (N, D) descriptors of all photos; several: (N,) whether the photo's person has another photo
    """

    protocol: Protocol
    clean: Rows
    degraded: Rows
    several: NDArray[np.bool_]
    number: int

    def draw_training_set(self, labels: int) -> TrainingSet:
        """Draw photos to learn from, half of them degraded, with labels for pairs of them and no names."""
        training, draw = self.protocol.training, np.random.default_rng((self.number, labels))
        is_degraded = self.several[training] & (draw.random(len(training)) < DEGRADED_SHARE)
        rows = np.where(is_degraded[:, None], self.degraded[training], self.clean[training])
        people = self.protocol.people[training].astype(np.float64)
        pairs, same = draw_pairs(people, 0, labels, draw)
        unknown, faces = np.full(len(training), -1), np.arange(len(training))
        weights = np.ones(len(pairs), np.float32)
        task = TaskData("identity", faces, unknown * np.nan, unknown, 0.0, pairs, same, weights)
        return TrainingSet(rows.astype(np.float32), (task,))

    def draw_named_set(self, impostors: int) -> TrainingSet:
        """Return the clean photos to learn from with their names, and the nearest impostors as labelled pairs."""
        training = self.protocol.training
        rows, people = self.clean[training], self.protocol.people[training]
        pairs = find_worst_impostors(rows, people, impostors)
        same, weights = np.zeros(len(pairs), np.bool_), np.ones(len(pairs), np.float32)
        faces = np.arange(len(training))
        task = TaskData("identity", faces, people.astype(np.float64), people, 0.0, pairs, same, weights)
        return TrainingSet(rows, (task,))

    def search(self, embedder: Embedder) -> SearchScores:
        """Search with the degraded queries in the clean gallery."""
        queries, gallery = self.protocol.queries, self.protocol.gallery
        distances = embedder.metric.distances(
            embedder.embed(self.degraded[queries]), embedder.embed(self.clean[gallery])
        )
        relevant = self.protocol.people[queries][:, None] == self.protocol.people[gallery]
        impostors = distances[~relevant]
        allowed = int(FALSE_MATCH_RATE * len(impostors))
        limit = np.partition(impostors, allowed)[allowed]
        accepted = ((distances <= limit) & relevant).sum(1) / relevant.sum(1)
        return SearchScores(score_precisions(distances, relevant), accepted)


def load_split(photos: Photos, features: str, condition: str, number: int) -> MixedSplit:
    """Load the split `disjoint-NUMBER` with one feature of all photos, clean and in one condition."""
    names = photos.names("lfw")
    several = np.bincount(people := protocols.number_people(names))[people] > 1
    clean = describe_condition(photos, features, CLEAN, several)
    degraded = clean if condition == CLEAN else clean.copy()
    if condition != CLEAN:
        degraded[several] = describe_condition(photos, features, condition, several)
    split = protocols.read(f"disjoint-{number}.txt", photos.lfw.protocol, names)
    in_gallery = np.setdiff1d(np.arange(len(names)), np.concatenate([split.training, split.queries]))
    assert np.array_equal(np.sort(split.gallery), in_gallery), "the gallery is everybody who is not learned from"
    return MixedSplit(split, clean, degraded, several, number)


def describe_condition(photos: Photos, features: str, condition: str, several: NDArray[np.bool_]) -> Rows:
    """Describe LFW in a condition, once: all N photos if it is clean, else those with `several`, (n, D)."""
    path = photos.cache / "conditions" / f"{features}-{condition.replace(' ', '-').lower()}.npy"
    if path.exists():
        rows: Rows = np.load(path)
        return rows
    [descriptor] = photos.recipe(features).built
    crops = photos.crops("lfw", descriptor.crop)
    chosen = np.arange(len(crops)) if condition == CLEAN else np.flatnonzero(several)
    blocks = np.split(chosen, range(CROPS_PER_BLOCK, len(chosen), CROPS_PER_BLOCK))
    described = [descriptor.describe(degrade_crops(np.ascontiguousarray(crops[b]), condition)) for b in blocks]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(Path(path)) as file:
        np.save(file, np.concatenate(described))
    return np.concatenate(described)


def find_worst_impostors(rows: Rows, people: Ids, count: int) -> Ids:
    """Return the `count` pairs of photos of different people with the largest cosine: (count, 2)."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    similarity = np.triu(unit @ unit.T, 1)
    similarity[people[:, None] == people] = 0
    nearest = np.argpartition(-similarity.ravel(), count)[:count]
    return np.stack(np.unravel_index(nearest, similarity.shape), axis=1)

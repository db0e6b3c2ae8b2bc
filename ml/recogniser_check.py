"""Check on synthetic faces that a descriptor tells people apart: random numbers and wrong preprocessing are noticed."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from ml.aligners.similarity import Similarity
from ml.descriptors.base import Descriptor
from ml.synthetic_faces import person, photograph
from ml.types import CropKind, Crops, Rows

PEOPLE, PHOTOS_A_PERSON = 24, 3
FIRST_PERSON = 9000
PHOTO_PIXELS = 160
MIN_AUC = 0.88
"""Face recognisers reach 0.97 to 0.99 here, bare pixels and untrained networks up to 0.83 (docs/use/recognisers.md)."""
TOLERANCE = 1e-2


@dataclass(frozen=True)
class SyntheticCheck:
    """How well a descriptor tells the people of `PEOPLE` x `PHOTOS_A_PERSON` synthetic photos apart, by the cosine.

    auc: how often two photos of one person are more alike than photos of two people, 0..1; chance is 0.5
    pixels_auc: the same by the crops' bare pixels
    right_first: for how many photos the most alike of all others shows the same person, 0..1
    same, other: median cosine of two photos of one person, and of two people
    repeatable: whether the same photo gives the same numbers twice
    """

    auc: float
    pixels_auc: float
    right_first: float
    same: float
    other: float
    repeatable: bool

    @property
    def passed(self) -> bool:
        return self.repeatable and self.auc >= MIN_AUC


def check_recogniser(descriptor: Descriptor) -> SyntheticCheck:
    """Describe the synthetic photos and compare all pairs. Takes about two seconds and the time of 72 faces.

    Raises WrongShape, NotFinite (what it gives for a face cannot be used).
    """
    crops = synthetic_crops()[descriptor.crop]
    rows, again = descriptor.describe(crops), descriptor.describe(crops[:PHOTOS_A_PERSON])
    people = np.repeat(np.arange(PEOPLE), PHOTOS_A_PERSON)
    cosines = _cosines(rows)
    first, second = np.triu_indices(len(rows), 1)
    genuine, values = people[first] == people[second], cosines[first, second]
    nearest = np.where(np.eye(len(rows), dtype=bool), -np.inf, cosines).argmax(1)
    pixels = crops.reshape(len(crops), -1).astype(np.float32)
    return SyntheticCheck(
        auc=float(roc_auc_score(genuine, values)),
        pixels_auc=float(roc_auc_score(genuine, _cosines(pixels - pixels.mean(0))[first, second])),
        right_first=float((people[nearest] == people).mean()),
        same=float(np.median(values[genuine])),
        other=float(np.median(values[~genuine])),
        repeatable=bool(np.abs(rows[: len(again)] - again).max() <= TOLERANCE * max(1.0, float(np.abs(rows).max()))),
    )


@lru_cache(maxsize=1)
def synthetic_crops() -> dict[CropKind, Crops]:
    """(PEOPLE x PHOTOS_A_PERSON, ...) of each kind, one person after the other; aligned by the true points."""
    aligner = Similarity()
    cut = [
        aligner.crops(*photograph(person(FIRST_PERSON + who), shot, PHOTO_PIXELS))
        for who in range(PEOPLE)
        for shot in range(PHOTOS_A_PERSON)
    ]
    return {kind: np.stack([crops[kind] for crops in cut]) for kind in cut[0]}


def _cosines(rows: Rows) -> NDArray[np.float64]:
    unit = rows.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True).clip(1e-12)
    return unit @ unit.T

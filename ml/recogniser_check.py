"""Check on synthetic faces that a descriptor tells people apart. This detects wrong preprocessing."""

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
"""Face recognisers reach 0.97 to 0.99 here, raw pixels and untrained networks up to 0.83 (docs/use/recognisers.md)."""
TOLERANCE = 1e-2


@dataclass(frozen=True)
class SyntheticCheck:
    """The result of comparing `PEOPLE` x `PHOTOS_A_PERSON` synthetic photos by the cosine of their descriptors.

    auc: AUC of pairs of one person against pairs of two people, 0..1; chance is 0.5
    pixels_auc: the same, computed from the pixels of the crops
    right_first: share of the photos whose nearest other photo shows the same person, 0..1
    same, other: median cosine of two photos of one person, and of two people
    repeatable: whether the same photo has the same descriptor twice
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
    """Describe the synthetic photos and compare all pairs. Takes two seconds, plus the time to describe 72 faces.

    Raises WrongShape or NotFinite if the descriptor's output cannot be used.
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
    """Draw the synthetic photos, person by person, and align them by their true landmarks.

    Returns (PEOPLE x PHOTOS_A_PERSON, ...) crops of each kind.
    """
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

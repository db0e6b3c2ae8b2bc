"""Measure how well a model agrees with labels: are faces labelled the same nearer than others?"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import DamagedFace, Face
from app.errors import Invalid
from app.galleries import label_consensus
from app.galleries.label_consensus import LabelConsensus
from app.serving.calibration.gallery_faces import read_refused_faces
from ml.evaluation.intervals import bootstrap_pairs
from ml.evaluation.separation import Scored, separation
from ml.evaluation.verification import best_threshold
from ml.model import Model
from ml.types import Rows

FACES_PER_QUERY = 5000
SAME_PROBABILITY = 0.5
"""Pairs of at least this probability are accepted as the same."""


def read_collection_consensus(session: Session, collection: str, task: str) -> LabelConsensus:
    """Return the consensus on pairs within the collection, without damaged faces and those that may not be found.

    Raises Invalid if one of the two kinds is missing.
    """
    consensus = label_consensus.decide_collection(session, collection, task)
    damaged = list(session.scalars(select(DamagedFace.face_pk).where(DamagedFace.collection_id == collection)))
    left_out = [*damaged, *read_refused_faces(session, collection)]
    kept = ~np.isin(consensus.pairs, left_out).any(axis=1)
    consensus = replace(
        consensus, pairs=consensus.pairs[kept], same=consensus.same[kept], weights=consensus.weights[kept]
    )
    if not consensus.same.any() or consensus.same.all():
        same = int(consensus.same.sum())
        raise Invalid(
            f"{same} pairs of {collection!r} are labelled the same and {len(consensus) - same} not; both are needed",
            code="TooFewLabels",
        )
    return consensus


def list_faces(session: Session, consensus: LabelConsensus) -> list[Face]:
    """List the faces of these pairs, by pk."""
    pks = np.unique(consensus.pairs).tolist()
    parts = (pks[i : i + FACES_PER_QUERY] for i in range(0, len(pks), FACES_PER_QUERY))
    return [f for part in parts for f in session.scalars(select(Face).where(Face.pk.in_(part)).order_by(Face.pk))]


def measure_label_agreement(
    consensus: LabelConsensus, faces: Sequence[Face], rows: Rows, model: Model, task: str
) -> dict[str, Any]:
    """Return the report: accuracy, and auc, eer, ... of `ml.evaluation.separation`.

    Accuracy is measured at probability 1/2 of the model's own calibration, or without one at the best threshold of
    these pairs. Intervals resample the people whose faces were labelled.
    faces: of the pairs, by pk; rows: (N, d) their embeddings
    """
    at = np.searchsorted([f.pk for f in faces], consensus.pairs)
    distances = model.metric.pair_distances(rows, at)
    people = np.array([-f.pk if f.subject_pk is None else f.subject_pk for f in faces], np.int64)[at]
    calibration = model.calibrations.get(task)
    if calibration is not None:
        accepted = calibration.probability(distances) >= SAME_PROBABILITY
    else:
        accepted = distances <= best_threshold(distances, consensus.same)
    right = bootstrap_pairs([accepted == consensus.same], [people])
    sides = (
        [Scored(model.metric.display_distance(distances[consensus.same == same]), people[consensus.same == same])]
        for same in (True, False)
    )
    figures = asdict(separation(*sides))
    return {
        "pairs": len(consensus),
        "same": int(consensus.same.sum()),
        "unsettled": consensus.unsettled,
        "threshold": "calibration" if calibration is not None else "best on these pairs",
        "accuracy": asdict(right),
        **figures,
        "mean": {"accuracy": right.value, "auc": figures["auc"]["value"], "eer": figures["eer"]["value"]},
    }

"""A model judged by what people have said: does it put "same" nearer than "not the same"?"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Face
from app.errors import Invalid
from app.learning import label_consensus
from app.learning.label_consensus import LabelConsensus
from ml.evaluation.intervals import bootstrap_pairs
from ml.evaluation.separation import Scored, separation
from ml.evaluation.verification import best_threshold
from ml.model import Model
from ml.types import Rows

CHUNK = 5000
PRIOR = 0.5


def read_collection_consensus(session: Session, collection: str, task: str) -> LabelConsensus:
    """The settled pairs whose faces both lie in the collection. Raises Invalid without both kinds of them."""
    consensus = label_consensus.read_consensus(session, label_consensus.list_standing_labels(session, task))
    pks = set(session.scalars(select(Face.pk).where(Face.collection_id == collection)))
    here = np.array([int(a) in pks and int(b) in pks for a, b in consensus.pairs], np.bool_)
    kept = LabelConsensus(consensus.pairs[here], consensus.same[here], consensus.weights[here], consensus.unsettled)
    if not kept.same.any() or kept.same.all():
        same = int(kept.same.sum())
        raise Invalid(
            f"{same} pairs of {collection!r} are labelled the same and {len(kept) - same} not; both are needed",
            code="TooFewLabels",
        )
    return kept


def list_faces(session: Session, consensus: LabelConsensus) -> list[Face]:
    """The faces of these pairs, by pk."""
    pks = np.unique(consensus.pairs).tolist()
    parts = (pks[i : i + CHUNK] for i in range(0, len(pks), CHUNK))
    return [f for part in parts for f in session.scalars(select(Face).where(Face.pk.in_(part)).order_by(Face.pk))]


def measure_label_agreement(
    consensus: LabelConsensus, faces: Sequence[Face], rows: Rows, model: Model, task: str
) -> dict[str, Any]:
    """auc, eer, ...: see `ml.evaluation.separation`. accuracy: at probability 1/2 of the model's own calibration,
    without one at the best threshold of these pairs. Intervals resample the people whose faces were labelled.

    faces: those of the pairs, by pk; rows: where each lies.
    """
    at = np.searchsorted([f.pk for f in faces], consensus.pairs)
    distances = model.metric.pair_distances(rows, at)
    people = np.array([-f.pk if f.subject_pk is None else f.subject_pk for f in faces], np.int64)[at]
    calibration = model.calibrations.get(task)
    if calibration is not None:
        accepted = calibration.probability(distances) >= PRIOR
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

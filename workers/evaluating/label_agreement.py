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
from app.learning.label_consensus import Settled
from ml.evaluation.intervals import bootstrap_pairs
from ml.evaluation.separation import Scored, separation
from ml.evaluation.verification import best_threshold
from ml.model import Model
from ml.types import Rows

CHUNK = 5000
PRIOR = 0.5


def settled_here(session: Session, collection: str, task: str) -> Settled:
    """The settled pairs whose faces both lie in the collection. Raises Invalid without both kinds of them."""
    said = label_consensus.settle(session, label_consensus.standing(session, task))
    mine = set(session.scalars(select(Face.pk).where(Face.collection_id == collection)))
    here = np.array([int(a) in mine and int(b) in mine for a, b in said.pairs], np.bool_)
    kept = Settled(said.pairs[here], said.same[here], said.weights[here], said.unsettled)
    if not kept.same.any() or kept.same.all():
        same = int(kept.same.sum())
        raise Invalid(
            f"{same} pairs of {collection!r} are labelled the same and {len(kept) - same} not; both are needed",
            code="TooFewLabels",
        )
    return kept


def faces_of(session: Session, said: Settled) -> list[Face]:
    """The faces of these pairs, by pk."""
    pks = np.unique(said.pairs).tolist()
    parts = (pks[i : i + CHUNK] for i in range(0, len(pks), CHUNK))
    return [f for part in parts for f in session.scalars(select(Face).where(Face.pk.in_(part)).order_by(Face.pk))]


def judged(said: Settled, faces: Sequence[Face], rows: Rows, generation: Model, task: str) -> dict[str, Any]:
    """auc, eer, ...: see `ml.evaluation.separation`. accuracy: at probability 1/2 of the model's own calibration,
    without one at the best threshold of these pairs. Intervals resample the people whose faces were labelled.

    faces: those of the pairs, by pk; rows: where each lies.
    """
    at = np.searchsorted([f.pk for f in faces], said.pairs)
    distances = generation.metric.pair_distances(rows, at)
    people = np.array([-f.pk if f.subject_pk is None else f.subject_pk for f in faces], np.int64)[at]
    calibration = generation.calibrations.get(task)
    if calibration is not None:
        accepted = calibration.probability(distances) >= PRIOR
    else:
        accepted = distances <= best_threshold(distances, said.same)
    right = bootstrap_pairs([accepted == said.same], [people])
    sides = (
        [Scored(generation.metric.display_distance(distances[said.same == same]), people[said.same == same])]
        for same in (True, False)
    )
    told = asdict(separation(*sides))
    return {
        "pairs": len(said),
        "same": int(said.same.sum()),
        "unsettled": said.unsettled,
        "threshold": "calibration" if calibration is not None else "best on these pairs",
        "accuracy": asdict(right),
        **told,
        "mean": {"accuracy": right.value, "auc": told["auc"]["value"], "eer": told["eer"]["value"]},
    }

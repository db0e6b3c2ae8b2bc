"""A model judged by what people have said: does it put "same" nearer than "not the same"?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Face
from app.engine import settled
from app.engine.settled import Settled
from app.errors import Invalid
from ml.evaluation.intervals import bootstrap_mean
from ml.evaluation.verification import best_threshold
from ml.generation import Generation
from ml.types import Rows

CHUNK = 5000
PRIOR = 0.5


def settled_here(session: Session, collection: str, task: str) -> Settled:
    """The settled pairs whose faces both lie in the collection. Raises Invalid without both kinds of them."""
    said = settled.settle(session, settled.standing(session, task))
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


def judged(said: Settled, pks: Sequence[int], rows: Rows, generation: Generation, task: str) -> dict[str, Any]:
    """auc: that a pair of the same is nearer than one of others, with its interval (Hanley and McNeil 1982);
    accuracy: at probability 1/2 of the model's own calibration, without one at the best threshold of these pairs."""
    first, second = (rows[np.searchsorted(pks, said.pairs[:, i])] for i in (0, 1))
    distances = generation.metric.paired(first, second).astype(np.float64)
    calibration = generation.calibrations.get(task)
    if calibration is not None:
        accepted = calibration.probability(distances) >= PRIOR
    else:
        accepted = distances <= best_threshold(distances, said.same)
    right = bootstrap_mean((accepted == said.same).astype(np.float64))
    auc, low, high = _auc(distances, said)
    return {
        "pairs": len(said),
        "same": int(said.same.sum()),
        "unsettled": said.unsettled,
        "threshold": "calibration" if calibration is not None else "best on these pairs",
        "accuracy": {"value": right.value, "low": right.low, "high": right.high},
        "auc": {"value": auc, "low": low, "high": high},
        "mean": {"accuracy": right.value, "auc": auc},
    }


def _auc(distances: NDArray[np.float64], said: Settled) -> tuple[float, float, float]:
    from scipy.stats import rankdata  # most of a second to load, for one call

    same, others = int(said.same.sum()), int((~said.same).sum())
    below = rankdata(-distances)[said.same].sum() - same * (same + 1) / 2
    auc = float(below / (same * others))
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (same - 1) * (q1 - auc**2) + (others - 1) * (q2 - auc**2)
    half = float(ndtri(0.975)) * float(np.sqrt(max(spread, 0.0) / (same * others)))
    return auc, max(0.0, auc - half), min(1.0, auc + half)

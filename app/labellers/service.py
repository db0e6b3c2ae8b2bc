"""Describe the labellers of a collection."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from app.db.lookups import get_collection
from app.db.tables import Face, Label
from app.deps.paging import decode_token, encode_token
from app.galleries.label_consensus import AGREEMENT, EQUAL, read_collection_votes, read_rule
from app.labellers.schemas import AgreementOut, LabellerOut, LabellersOut
from ml.calibration.rate_intervals import clopper_pearson
from ml.labeller_reliability import Agreement, compare_with_others, estimate_reliability


def list_labellers(session: Session, collection: str, task: str, limit: int, next_token: str | None) -> LabellersOut:
    """List one page of the labellers of a task in a collection, the least weight first.

    Weights come from all votes, so each page estimates them anew. Raises NotFound, Invalid for a wrong token.
    """
    start = decode_token(next_token, int) if next_token else 0
    get_collection(session, collection)
    votes, rule = read_collection_votes(session, collection, task), read_rule(session, collection, task)
    reliability, agreement = estimate_reliability(votes), compare_with_others(votes)
    counts = Counter(by for of_pair in votes.values() for by in of_pair)
    order = np.argsort(reliability.weights, kind="stable")  # equal weights stay in the order of their names
    page = order[start : start + limit]
    names = [reliability.labellers[i] for i in page]
    last = _read_last_times(session, collection, task, names)
    columns = (reliability.judged, reliability.same_rate, reliability.different_rate, reliability.weights)
    rows = zip(names, *(column[page].tolist() for column in columns), strict=True)
    labellers = [
        LabellerOut(
            labeller=by,
            labels=counts[by],
            judged_by_others=judged,
            compared=agreement[by].compared if by in agreement else 0,
            agreement=_describe_share(agreement.get(by)),
            same_rate=round(same_rate, 4),
            different_rate=round(different_rate, 4),
            weight=round(weight, 4),
            last_label_at=last[by],
        )
        for by, judged, same_rate, different_rate, weight in rows
    ]
    return LabellersOut(
        weights=AGREEMENT if rule.by_agreement else EQUAL,
        quorum=rule.quorum,
        labellers=labellers,
        next_token=encode_token(start + limit) if start + limit < len(order) else None,
    )


def _describe_share(agreement: Agreement | None) -> AgreementOut | None:
    if agreement is None:
        return None
    low, high = clopper_pearson(agreement.agreed, agreement.compared)
    return AgreementOut(value=agreement.agreed / agreement.compared, low=low, high=high)


def _read_last_times(session: Session, collection: str, task: str, labellers: Sequence[str]) -> dict[str, float]:
    """Return labeller -> time of their last label that counts."""
    first, second = aliased(Face), aliased(Face)
    times = (
        select(Label.by, func.max(Label.created_at))
        .join(first, first.pk == Label.face_a)
        .join(second, second.pk == Label.face_b)
        .where(Label.task == task, Label.withdrawn_at.is_(None), Label.by.in_(labellers))
        .where(first.collection_id == collection, second.collection_id == collection)
    )
    return dict(session.execute(times.group_by(Label.by)).all())

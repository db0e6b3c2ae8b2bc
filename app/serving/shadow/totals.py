"""Add to the totals of a champion and a challenger. Several processes add to the same row."""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import Deployment, ShadowTotals
from app.errors import NotFound

KEY_COLUMNS = ("collection_id", "task", "champion", "challenger")
SUMMED_COLUMNS = tuple(
    column.key for column in ShadowTotals.__table__.columns if column.key not in (*KEY_COLUMNS, "since", "updated_at")
)
Sums = Mapping[str, float]
"""Column of `ShadowTotals` -> what is added to it."""


class ModelPair(NamedTuple):
    """The champion and the challenger of a deployment."""

    collection: str
    task: str
    champion: str
    challenger: str


def add_sums(first: Sums, second: Sums) -> dict[str, float]:
    """Return the sums of both."""
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


def add_to_totals(session: Session, pair: ModelPair, sums: Sums) -> bool:
    """Add to the totals; return False and add nothing if the deployment has other pointers by now, or is gone."""
    try:
        get_collection(session, pair.collection, lock=True)
    except NotFound:
        return False
    deployment = session.get(Deployment, (pair.collection, pair.task), populate_existing=True)
    if deployment is None or (deployment.champion, deployment.challenger) != (pair.champion, pair.challenger):
        return False
    totals = session.get(ShadowTotals, tuple(pair))
    if totals is None:
        totals = ShadowTotals(**dict(zip(KEY_COLUMNS, pair, strict=True)), **dict.fromkeys(SUMMED_COLUMNS, 0))
        session.add(totals)
    for name, value in sums.items():
        setattr(totals, name, getattr(totals, name) + value)
    session.flush()
    return True

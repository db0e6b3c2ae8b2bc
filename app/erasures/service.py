"""Read the receipts of erasures."""

from typing import Literal

from sqlalchemy.orm import Session

from app.db.lookups import make_not_found
from app.db.tables import Erasure
from app.deps.paging import read_page
from app.erasures.schemas import ErasureOut, ErasuresOut

MEASURED_ROWS = 10
"""Receipts that are measured at a time for a page: the fingerprints of one may have 6.5 MB."""


def list_erasures(
    session: Session, collection: str | None, order: Literal["oldest", "newest"], limit: int, token: str | None
) -> ErasuresOut:
    """List receipts, one page of them. collection: None means all. Raises Invalid for a wrong token."""
    where = [Erasure.collection_id == collection] if collection else []
    rows, next_token = read_page(
        session, Erasure, Erasure.id, limit, token, *where, order=order, measured_rows=MEASURED_ROWS
    )
    return ErasuresOut(erasures=[ErasureOut.of(row) for row in rows], next_token=next_token)


def get_erasure(session: Session, erasure_id: str) -> ErasureOut:
    """Return a receipt. Raises NotFound."""
    row = session.get(Erasure, erasure_id)
    if row is None:
        raise make_not_found("erasure", erasure_id)
    return ErasureOut.of(row)

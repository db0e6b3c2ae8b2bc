"""List and read the receipts of erasures."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from app.db import examples
from app.db.field_types import Word
from app.deps import Limit, NextToken, ReadDep
from app.deps.paging import Order
from app.deps.roles import OPERATOR
from app.deps.scopes import ROWS
from app.erasures import service
from app.erasures.schemas import ErasureOut, ErasuresOut

router = APIRouter(prefix="/v1/erasures", tags=["erasures"])
ErasureId = Annotated[Word, Path(alias="erasure", description="an erasure's id", examples=[examples.ERASURE])]
OfCollection = Annotated[
    Word | None, Query(description="only erasures of this collection", examples=[examples.COLLECTION])
]


@router.get("", summary="List erasures", openapi_extra=OPERATOR | ROWS)
def list_erasures(
    session: ReadDep, collection: OfCollection = None, order: Order = "newest", limit: Limit = 100,
    next_token: NextToken = None,
) -> ErasuresOut:  # fmt: skip
    """The receipts of deleted faces, subjects and collections, the newest first. Those of a collection stay when it is
    deleted."""
    return service.list_erasures(session, collection, order, limit, next_token)


@router.get("/{erasure}", summary="The receipt of an erasure", openapi_extra=OPERATOR | ROWS)
def get_erasure(erasure: ErasureId, session: ReadDep) -> ErasureOut:
    """What was removed. The receipt is signed when it is final: once files, index entries, stored answers, job items
    and reports are erased and the database is compacted. `likeness erase verify` checks it and scans every store."""
    return service.get_erasure(session, erasure)

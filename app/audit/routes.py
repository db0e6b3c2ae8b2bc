"""Read the audit log. Only administrators may do so."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.audit import service
from app.audit.schemas import AuditEntryOut, AuditOut
from app.db import examples
from app.db.field_types import CollectionName, SubjectId, Word
from app.deps import Limit, NextToken, ReadDep, ResourcesDep
from app.deps.audit import audit_as
from app.deps.paging import Order
from app.deps.roles import ADMIN
from app.deps.scopes import ROWS

router = APIRouter(prefix="/v1/audit", tags=["audit"])


def read_filter(
    collection: Annotated[CollectionName | None, Query(description="only what was done in this collection")] = None,
    subject: Annotated[
        SubjectId | None, Query(description="only requests whose path names this subject; with `collection`")
    ] = None,
    action: Annotated[Word | None, Query(description="only this action", examples=["face.delete"])] = None,
    key_id: Annotated[Word | None, Query(description="only what this key did", examples=[examples.KEY])] = None,
    since: Annotated[
        float | None, Query(description="only from this time on, in seconds since 1970", examples=[examples.MOMENT])
    ] = None,
) -> service.AuditFilter:
    return service.AuditFilter(collection, subject, action, key_id, since)


@router.get("", summary="Read the audit log", openapi_extra=ADMIN | ROWS | audit_as("audit.read"))
def list_entries(
    session: ReadDep,
    resources: ResourcesDep,
    audit_filter: Annotated[service.AuditFilter, Depends(read_filter)],
    order: Order = "newest",
    limit: Limit = 100,
    next_token: NextToken = None,
) -> AuditOut:
    """Who did what, when, on what, the newest first unless `order` is `oldest`. An entry appears about a second
    after its request was answered. A bound key sees what was done in its collections. `likeness audit verify` checks
    that no entry was altered or removed."""
    names = resources.audit_chain.names
    entries, token = service.list_entries(session, names, audit_filter, limit, next_token, order)
    return AuditOut(entries=[AuditEntryOut.of(entry) for entry in entries], next_token=token)

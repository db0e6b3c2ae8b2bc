"""List entries of the audit log."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from app.db.subject_ids import list_spellings
from app.db.tables import AuditEntry, AuditHead
from app.deps.paging import limit_scan, read_page
from app.errors import Invalid
from app.storage.audit_log.chain import HEAD_ID, MAX_NUMBER
from app.storage.audit_log.drafts import ResourceNames


class AuditFilter(NamedTuple):
    """Which entries to list. since: seconds since 1970"""

    collection: str | None
    subject: str | None
    action: str | None
    key_id: str | None
    since: float | None


def list_entries(
    session: Session,
    names: ResourceNames,
    audit_filter: AuditFilter,
    limit: int,
    next_token: str | None,
    order: Literal["oldest", "newest"],
) -> tuple[list[AuditEntry], str | None]:
    """List one page of entries. Raises Busy, or Invalid for a wrong token, or a subject without a collection."""
    where = list(_iterate_conditions(audit_filter, names))
    with limit_scan(session, audit_filter.subject, audit_filter.action, audit_filter.key_id, audit_filter.since):
        return read_page(session, AuditEntry, AuditEntry.number, limit, next_token, *where, order=order)


def _iterate_conditions(audit_filter: AuditFilter, names: ResourceNames) -> Iterator[ColumnElement[bool]]:
    last_cut = select(AuditHead.cut_number).where(AuditHead.id == HEAD_ID).scalar_subquery()
    number = AuditEntry.number + 0  # so that no database takes these limits for where a page begins
    yield number > func.coalesce(last_cut, 0)  # the service wrote none of those before, nor the largest
    yield number <= MAX_NUMBER
    if audit_filter.collection:
        yield AuditEntry.collection_id == audit_filter.collection
    if audit_filter.subject:
        if not audit_filter.collection:
            raise Invalid("a subject belongs to a collection: send `collection` too")
        spellings = list_spellings(audit_filter.subject)
        yield AuditEntry.resource.in_([names.name_subject(audit_filter.collection, name) for name in spellings])
    if audit_filter.action:
        yield AuditEntry.action == audit_filter.action
    if audit_filter.key_id:
        yield AuditEntry.key_id == audit_filter.key_id
    if audit_filter.since is not None:
        yield AuditEntry.at >= audit_filter.since

"""Append entries to the audit log, and cut its oldest ones off, so that the chain stays verifiable.

The MAC of an entry covers the entry and the MAC of the one before. The head, one signed row, has the number and the MAC
of the last entry, so that a missing end is noticed. All processes append to one chain, one after the other.
"""

import hmac
import json
import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.config import AUDIT_FOLDER
from app.db.tables import AuditEntry, AuditHead
from app.storage.audit_log.drafts import EntryDraft, ResourceNames
from app.storage.audit_log.witness import HeadWitness
from app.storage.installation_key import InstallationKey, read_installation_key

HEAD_ID = 1
NO_MAC = ""
"""What the MAC of the first entry covers in place of the one before."""
MAX_NUMBER = 2**53
"""No log is so long: entries with larger numbers are not of it."""
HEAD_INVALID, ROLLED_BACK, LOST, CUT = "audit.head-invalid", "audit.rolled-back", "audit.lost", "audit.cut"
"""Entries of the log about itself."""

log = logging.getLogger("likeness.audit")


class AuditChain:
    """The chain of the installation with this home. folder: has the witness of its head, and the spool"""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / AUDIT_FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        self.witness = HeadWitness(self.folder / "head.json")

    @cached_property
    def _key(self) -> InstallationKey:
        return read_installation_key(self.home)

    @cached_property
    def names(self) -> ResourceNames:
        """The names under which entries record resources."""
        return ResourceNames(self._key)

    def append(self, session: Session, drafts: Iterable[EntryDraft]) -> AuditHead:
        """Append entries in this transaction, and return the new head. Other writers wait until it ends.

        What does not fit the head, such as a database that was set back, becomes an entry too.
        """
        head, faults = self._lock_head(session)
        rows = []
        for draft in [*faults, *drafts]:
            head.number += 1
            head.mac = self.compute_mac(head.number, draft, head.mac)
            rows.append(_make_row(head.number, draft, head.mac))
        if rows:
            session.execute(insert(AuditEntry), rows)
        head.signature = self._sign(head)
        session.flush()
        return head

    def _lock_head(self, session: Session) -> tuple[AuditHead, list[EntryDraft]]:
        """Return the head, locked, and entries that say in what it contradicts the other entries and the witness."""
        head = session.get(AuditHead, HEAD_ID, with_for_update=True, populate_existing=True) or self._add_head(session)
        is_signed = self.is_signed(head)
        correct_numbers(head)
        last = session.scalar(select(func.max(AuditEntry.number)).where(AuditEntry.number <= MAX_NUMBER)) or 0
        faults: list[EntryDraft] = []
        if not is_signed:
            faults.append(_make_fault(HEAD_INVALID, head.number))
        if last > head.number:
            faults = [_make_fault(HEAD_INVALID, head.number)]
            head.number = last
            head.mac = session.scalars(select(AuditEntry.mac).where(AuditEntry.number == last)).one()
        reached = max(self.witness.read()[0], head.number)
        if reached > max(last, head.cut_number):
            faults.append(_make_fault(ROLLED_BACK, reached))
        return head, faults

    def _add_head(self, session: Session) -> AuditHead:
        """Return the head of an empty chain, or the one that another process has added meanwhile."""
        head = AuditHead(id=HEAD_ID, number=0, mac=NO_MAC, cut_number=0, cut_mac=NO_MAC, signature="")
        head.signature = self._sign(head)
        try:
            with session.begin_nested():
                session.add(head)
            return head
        except IntegrityError:
            return session.get_one(AuditHead, HEAD_ID, with_for_update=True, populate_existing=True)

    def cut(self, session: Session, before: float) -> int:
        """Remove the entries from the start of the chain that are older than this time, and return their number.

        The chain is verified from the first entry that remains; an entry says what was removed. The last entry stays.
        """
        head = self.append(session, [])
        in_chain = AuditEntry.number > head.cut_number
        kept = session.scalar(select(func.min(AuditEntry.number)).where(in_chain, AuditEntry.at >= before))
        first_kept = head.number if kept is None else kept
        last_cut = session.scalar(select(AuditEntry).where(in_chain, AuditEntry.number == first_kept - 1))
        if last_cut is None:
            return 0
        count = last_cut.number - head.cut_number
        session.execute(delete(AuditEntry).where(in_chain, AuditEntry.number <= last_cut.number))
        head.cut_number, head.cut_mac = last_cut.number, last_cut.mac
        head.signature = self._sign(head)
        self.append(session, [EntryDraft.make(CUT, resource=f"entry:{head.cut_number}")])
        return count

    def compute_mac(self, number: int, draft: EntryDraft, previous_mac: str) -> str:
        """Return the MAC of an entry, 64 hexadecimal digits."""
        return self._compute([number, *draft, previous_mac])

    def is_signed(self, head: AuditHead) -> bool:
        """Whether this installation has signed the head."""
        return hmac.compare_digest(ascii(head.signature), ascii(self._sign(head)))

    def _sign(self, head: AuditHead) -> str:
        return self._compute(["head", head.number, head.mac, head.cut_number, head.cut_mac])

    def _compute(self, values: Sequence[Any]) -> str:
        return self._key.hash_bytes("audit", json.dumps(values, default=_encode_blob).encode()).hex()


def correct_numbers(head: AuditHead) -> None:
    """Set a number of the head to 0 if no chain can have it: SQLite stores any value in any column."""
    for name in ("number", "cut_number"):
        number = getattr(head, name)
        if not isinstance(number, int) or not 0 <= number <= MAX_NUMBER:
            setattr(head, name, 0)


def _encode_blob(value: bytes) -> dict[str, str]:
    """Encode bytes in a column of SQLite, where somebody has written them, unlike any value that an entry can have."""
    return {"blob": value.hex()}


def to_draft(row: Any) -> EntryDraft:
    """Return the part of an entry that its MAC covers."""
    return EntryDraft(
        row.id, row.at, row.action, row.key_id, row.address, row.collection_id, row.resource, row.status
    )  # fmt: skip


def _make_row(number: int, draft: EntryDraft, mac: str) -> dict[str, Any]:
    values = draft._asdict()
    return values | {"collection_id": values.pop("collection"), "number": number, "mac": mac}


def _make_fault(action: str, number: int) -> EntryDraft:
    log.error("audit.fault action=%s entry=%d", action, number)
    return EntryDraft.make(action, resource=f"entry:{number}")

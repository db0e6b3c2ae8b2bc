"""Verify the chain of the audit log."""

from typing import Any, NamedTuple

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from app.db.session import snapshot
from app.db.tables import AuditEntry, AuditHead
from app.storage.audit_log.chain import HEAD_ID, HEAD_INVALID, LOST, NO_MAC, ROLLED_BACK, AuditChain, to_draft

ROWS_PER_FETCH = 2_000
MEANINGS = {
    LOST: "says that entries were lost: {resource}",
    HEAD_INVALID: "says that the head before it was not signed by this installation: {resource}",
    ROLLED_BACK: "says that the log was set back; it had reached {resource}",
}
"""Entries of the log about itself that a verification reports."""


class LogVerification(NamedTuple):
    """What a verification found.

    entries: how many hold; first, last: numbers of the chain, 0 if it is empty; faults: in the order of the chain
    """

    entries: int
    first: int
    last: int
    mac: str
    faults: list[str]


def verify_chain(database: Engine, chain: AuditChain, after: int = 0) -> LogVerification:
    """Verify that every entry holds, that none is missing, and that the end is the signed head.

    It stops at the first entry that does not hold: no later one can be judged. Entries may be appended meanwhile.
    after: leave this entry and those before it out
    """
    witnessed = chain.witness.read()  # before the snapshot, which then has at least the entry that it names
    with snapshot(database) as session:
        head = session.get(AuditHead, HEAD_ID)
        if head is None:
            seen = max(session.scalar(select(func.max(AuditEntry.number))) or 0, witnessed[0])
            return LogVerification(0, 0, 0, NO_MAC, ["the head of the log is missing"] if seen else [])
        return _ChainVerifier(session, chain, head, witnessed, after).verify()


class _ChainVerifier:
    """witnessed: number and MAC in the witness; entries: how many hold so far; number, mac: the last of them"""

    def __init__(
        self, session: Session, chain: AuditChain, head: AuditHead, witnessed: tuple[int, str], after: int
    ) -> None:
        self.session, self.chain, self.head, self.witnessed = session, chain, head, witnessed
        self.is_signed = chain.is_signed(head)
        self.start = max(after, head.cut_number)
        self.entries, self.number, self.mac = 0, self.start, NO_MAC

    def verify(self) -> LogVerification:
        """Return what was found."""
        faults = [] if self.is_signed else ["the head of the log is not signed by this installation"]
        mac = self._find_mac(self.start)
        if mac is None:
            return LogVerification(0, 0, 0, NO_MAC, [*faults, f"entry {self.start:,} is missing"])
        self.mac = mac
        faults += self._list_faults()
        return LogVerification(self.entries, self.start + 1 if self.entries else 0, self.number, self.mac, faults)

    def _find_mac(self, number: int) -> str | None:
        if number == self.head.cut_number:
            return self.head.cut_mac
        return self.session.scalar(select(AuditEntry.mac).where(AuditEntry.number == number))

    def _list_faults(self) -> list[str]:
        """Read the chain up to its end or the first entry that does not hold."""
        witnessed, witnessed_mac = self.witnessed
        file, faults = self.chain.witness.path.name, list[str]()
        statement = select(*AuditEntry.__table__.columns).where(AuditEntry.number > self.start)
        statement = statement.order_by(AuditEntry.number).execution_options(yield_per=ROWS_PER_FETCH)
        with self.session.execute(statement) as rows:
            for row in rows:
                broken = self._advance(row)
                if broken:
                    return [*faults, broken]
                if row.action in MEANINGS:
                    faults.append(f"entry {row.number:,} {MEANINGS[row.action].format(resource=row.resource)}")
                if row.number == witnessed and self.mac != witnessed_mac:
                    return [*faults, f"entry {row.number:,} is not the one that the file {file} names"]
        if self.is_signed and (self.number, self.mac) != (self.head.number, self.head.mac):
            faults.append(f"the log ends at entry {self.number:,}, but its head names entry {self.head.number:,}")
        elif self.number < witnessed:
            faults.append(f"the log ends at entry {self.number:,}, but the file {file} names entry {witnessed:,}")
        return faults

    def _advance(self, row: Any) -> str | None:
        """Take the next entry; return what is wrong if it does not hold."""
        if row.number != self.number + 1:
            return f"entry {self.number + 1:,} is missing"
        mac = self.chain.compute_mac(row.number, to_draft(row), self.mac)
        if mac != row.mac:
            return f"entry {row.number:,} does not hold: it was altered, or the one before it was replaced"
        self.entries, self.number, self.mac = self.entries + 1, row.number, mac
        return None

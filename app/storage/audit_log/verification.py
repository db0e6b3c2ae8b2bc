"""Verify the chain of the audit log."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from app.db.session import snapshot
from app.db.tables import AuditEntry, AuditHead
from app.storage.audit_log.chain import (
    HEAD_ID,
    HEAD_INVALID,
    LOST,
    NO_MAC,
    ROLLED_BACK,
    AuditChain,
    correct_numbers,
    to_draft,
)

ROWS_PER_FETCH = 2_000
MAX_NUMBERS_NAMED = 10
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
    """Verify that every entry holds, that none is missing or stands before the first, and that the end is the head.

    It stops at the first entry that does not hold: no later one can be judged. Entries may be appended meanwhile.
    after: leave this entry and those before it out
    """
    witnessed = chain.witness.read()  # before the snapshot, which then has at least the entry that it names
    with snapshot(database) as session, _reading_any_text(session):
        head = session.get(AuditHead, HEAD_ID)
        if head is None:
            has_begun = witnessed[0] or session.scalar(select(AuditEntry.number).limit(1)) is not None
            return LogVerification(0, 0, 0, NO_MAC, ["the head of the log is missing"] if has_begun else [])
        session.expunge(head)
        return _ChainVerifier(session, chain, head, witnessed, after).verify()


@contextmanager
def _reading_any_text(session: Session) -> Iterator[None]:
    """Let SQLite return a text that is no UTF-8, as somebody may have written into a column, and not fail."""
    driver: Any = session.connection().connection.driver_connection
    if session.get_bind().dialect.name != "sqlite":
        yield
        return
    driver.text_factory = lambda encoded: encoded.decode(errors="surrogateescape")
    try:
        yield
    finally:
        driver.text_factory = str


class _ChainVerifier:
    """witnessed: number and MAC in the witness; entries: how many hold so far; number, mac: the last of them"""

    def __init__(
        self, session: Session, chain: AuditChain, head: AuditHead, witnessed: tuple[int, str], after: int
    ) -> None:
        self.session, self.chain, self.head, self.witnessed = session, chain, head, witnessed
        self.is_signed = chain.is_signed(head)
        correct_numbers(head)
        self.start = max(after, head.cut_number)
        self.entries, self.number, self.mac = 0, self.start, NO_MAC

    def verify(self) -> LogVerification:
        """Return what was found."""
        faults = [] if self.is_signed else ["the head of the log is not signed by this installation"]
        faults += self._list_earlier_entries()
        mac = self._find_mac(self.start)
        if mac is None:
            return LogVerification(0, 0, 0, NO_MAC, [*faults, f"entry {self.start:,} is missing"])
        self.mac = mac
        faults += self._list_faults()
        return LogVerification(self.entries, self.start + 1 if self.entries else 0, self.number, self.mac, faults)

    def _list_earlier_entries(self) -> list[str]:
        """Name the entries before the first of the log. The service removes those that it cuts off."""
        statement = select(AuditEntry.number).where(AuditEntry.number <= self.head.cut_number)
        numbers = self.session.scalars(statement.order_by(AuditEntry.number).limit(MAX_NUMBERS_NAMED)).all()
        if not numbers:
            return []
        named, first = ", ".join(map(str, numbers)), self.head.cut_number + 1
        return [f"entries that are not of the log stand before its first, entry {first:,}: {named}"]

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

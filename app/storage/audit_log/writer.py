"""Move the entries of the audit log from the files of the spool into the chain, in a thread of each API process."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Engine, select

from app.db.session import writing
from app.db.tables import AuditEntry
from app.storage.audit_log.chain import LOST, AuditChain
from app.storage.audit_log.drafts import EntryDraft
from app.storage.audit_log.spool import AuditSpool, Segment, read_segment

WRITE_SECONDS = 1.0
ABANDONED_CHECK_SECONDS = 10.0
ENTRIES_PER_TRANSACTION = 1_000

log = logging.getLogger("likeness.audit")


class AuditWriter:
    """Writes what the spool holds, once a second, until it is stopped."""

    def __init__(self, database: Engine, chain: AuditChain, spool: AuditSpool) -> None:
        self.database, self.chain, self.spool = database, chain, spool
        self._pending: list[Segment] = []
        self._is_retry = self._is_failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is left, and end. What cannot be written stays on disk for the next process."""
        self._stopping.set()
        self._thread.join()
        self.write_pending()
        self.spool.close()

    def _run(self) -> None:
        ticks_between_checks = round(ABANDONED_CHECK_SECONDS / WRITE_SECONDS)
        ticks = 0
        while not self._stopping.wait(WRITE_SECONDS):
            self.write_pending()
            if ticks % ticks_between_checks == 0:
                self.write_abandoned()
            ticks += 1

    def write_abandoned(self) -> None:
        """Write the entries that dead processes have left."""
        self._pending += [segment for segment in self.spool.take_abandoned() if segment not in self._pending]
        self.write_pending()

    def write_pending(self) -> None:
        """Write the entries that wait. If the database is away, they wait on, and so do those that come meanwhile.

        Under load there are always some that came meanwhile: a transaction for each few would take turns with searches.
        """
        try:
            self._write_segments()
            if segment := self.spool.take():
                self._pending.append(segment)
                self._write_segments()
            self._report_lost()
            self._is_failing = False
        except Exception as error:  # whatever somebody has written into the tables: the thread goes on
            if not self._is_failing:
                log.warning("audit.write_failed error=%s", error)
            self._is_retry = self._is_failing = True

    def _write_segments(self) -> None:
        while self._pending:
            self._write_segment(self._pending[0])
            self._pending.pop(0).path.unlink(missing_ok=True)
            self._is_retry = False

    def _write_segment(self, segment: Segment) -> None:
        """Write the entries of a file that are not in the chain yet. Raises Busy, SQLAlchemyError, OSError."""
        if not segment.path.exists():
            return  # another process was faster
        drafts, damaged = read_segment(segment)
        may_be_stored = self._is_retry or not segment.is_own
        for start in range(0, len(drafts), ENTRIES_PER_TRANSACTION):
            self._write_batch(drafts[start : start + ENTRIES_PER_TRANSACTION], may_be_stored)
        if damaged:
            self._write_batch([_make_lost(damaged)])

    def _write_batch(self, drafts: Sequence[EntryDraft], may_be_stored: bool = False) -> None:
        with writing(self.database) as session:
            if may_be_stored:
                known = select(AuditEntry.id).where(AuditEntry.id.in_([draft.id for draft in drafts]))
                stored = set(session.scalars(known))
                drafts = [draft for draft in drafts if draft.id not in stored]
            head = self.chain.append(session, drafts)
        self.chain.witness.write(head.number, head.mac)

    def _report_lost(self) -> None:
        lost = self.spool.lost
        if lost:
            self._write_batch([_make_lost(lost)])
            self.spool.forget_lost(lost)


def _make_lost(count: int) -> EntryDraft:
    return EntryDraft.make(LOST, resource=f"entries:{count}")


@contextmanager
def open_spool(database: Engine, chain: AuditChain) -> Iterator[AuditSpool]:
    """Open the spool of this process, and write what it holds to the chain, also at the end of the block."""
    spool = AuditSpool(chain.folder)
    writer = AuditWriter(database, chain, spool)
    writer.start()
    try:
        yield spool
    finally:
        writer.stop()

"""Entries of the audit log survive a killed process and a database that is away; what is lost is said."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select

from app.db.session import reading, snapshot
from app.db.tables import AuditEntry
from app.errors import Busy
from app.resources import Resources
from app.storage.audit_log import spool as spool_module
from app.storage.audit_log.chain import LOST
from app.storage.audit_log.drafts import EntryDraft
from app.storage.audit_log.spool import AuditSpool
from app.storage.audit_log.verification import verify_chain
from app.storage.audit_log.writer import AuditWriter

KILLED = """
import os, signal, sys
from pathlib import Path
from app.storage.audit_log.drafts import EntryDraft
from app.storage.audit_log.spool import AuditSpool
spool = AuditSpool(Path(sys.argv[1]))
for number in range(7):
    spool.append(EntryDraft.make("face.delete", resource=f"face:{number}"))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def writer(resources: Resources) -> Iterator[AuditWriter]:
    """A writer that writes when the test says so."""
    spool = AuditSpool(resources.audit)
    yield AuditWriter(resources.database, resources.audit_chain, spool)
    spool.close()


def read_resources(resources: Resources) -> list[str | None]:
    with reading(resources.database) as session:
        return list(session.scalars(select(AuditEntry.resource).order_by(AuditEntry.number)))


def append(spool: AuditSpool, *names: str) -> None:
    for name in names:
        spool.append(EntryDraft.make("face.delete", resource=name))


def list_files(resources: Resources) -> list[Path]:
    return list(resources.audit.glob("*.spool"))


def test_entries_are_written_in_their_order_and_their_file_goes(resources: Resources, writer: AuditWriter) -> None:
    append(writer.spool, "a", "b")
    assert read_resources(resources) == []
    writer.write_pending()
    append(writer.spool, "c")
    writer.write_pending()
    writer.write_pending()
    assert read_resources(resources) == ["a", "b", "c"]
    assert list_files(resources) == []


def test_entries_that_come_together_are_one_write(
    resources: Resources, writer: AuditWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = [EntryDraft.make("face.delete", resource=name) for name in "abcdef"]
    sizes, write = list[int](), os.write

    def note_size(handle: int, data: bytes) -> int:
        sizes.append(len(data))
        return write(handle, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", note_size)
        writer.spool.extend(drafts[:3])
        patched.setattr(os, "write", lambda handle, data: write(handle, data[: data.index(b"\n") + 1]))
        writer.spool.extend(drafts[3:])
    assert sizes == [sum(len(draft.encode()) for draft in drafts[:3])]
    assert writer.spool.lost == 2, "the disk took one of the last three"
    writer.write_pending()
    assert read_resources(resources)[:4] == ["a", "b", "c", "d"]


def test_entries_that_come_during_a_write_wait_for_the_next_one(
    resources: Resources, writer: AuditWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a transaction would follow the other for as long as requests come."""
    append_to_chain, came = resources.audit_chain.append, iter("bcd")

    def append_meanwhile(*written: object) -> object:
        if name := next(came, None):
            append(writer.spool, name)
        return append_to_chain(*written)  # type: ignore[arg-type]

    append(writer.spool, "a")
    with monkeypatch.context() as patched:
        patched.setattr(writer.chain, "append", append_meanwhile)
        writer.write_pending()
        assert read_resources(resources) == ["a"]
        writer.write_pending()
        assert read_resources(resources) == ["a", "b"]
    writer.write_pending()
    assert read_resources(resources) == ["a", "b", "c"]


def test_entries_of_a_killed_process_are_written_by_another(resources: Resources, writer: AuditWriter) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(resources.audit)], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert killed.returncode == -9
    writer.write_abandoned()
    assert read_resources(resources) == [f"face:{number}" for number in range(7)]
    assert list_files(resources) == []


def test_entries_of_a_living_process_are_left_to_it(resources: Resources, writer: AuditWriter) -> None:
    other = AuditSpool(resources.audit)
    append(other, "a")
    writer.write_abandoned()
    assert read_resources(resources) == []
    other.close()
    writer.write_abandoned()
    assert read_resources(resources) == ["a"]


def test_entries_that_were_committed_before_a_kill_are_not_written_twice(
    resources: Resources, writer: AuditWriter
) -> None:
    append(writer.spool, "a", "b")
    [path] = list_files(resources)
    lines = path.read_bytes()
    writer.write_pending()
    (resources.audit / "dead-1.spool").write_bytes(lines)
    writer.write_abandoned()
    assert read_resources(resources) == ["a", "b"]


def test_entries_wait_while_the_database_is_away(
    resources: Resources, writer: AuditWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(writer.spool, "a")
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise Busy("away")

        patched.setattr("app.storage.audit_log.chain.AuditChain.append", fail)
        for name in ("b", "c"):
            writer.write_pending()
            append(writer.spool, name)
    writer.write_pending()
    assert read_resources(resources) == ["a", "b", "c"]


def test_what_is_lost_is_counted_in_the_chain_and_named_by_a_verification(
    resources: Resources, writer: AuditWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(writer.spool, "a")
    with monkeypatch.context() as patched:
        patched.setattr(spool_module, "MAX_WAITING_BYTES", 10)
        append(writer.spool, "b", "c")
    [path] = list_files(resources)
    path.write_bytes(path.read_bytes() + b'["cut off')
    append(writer.spool, "d")
    writer.write_pending()
    writer.write_pending()
    assert read_resources(resources) == ["a", "entries:1", "entries:2"], "the torn line took d with it"
    faults = verify_chain(resources.database, resources.audit_chain).faults
    with snapshot(resources.database) as session:
        assert list(session.scalars(select(AuditEntry.action).where(AuditEntry.number > 1))) == [LOST, LOST]
    assert faults == [f"entry {n} says that entries were lost: entries:{n - 1}" for n in (2, 3)]


@pytest.mark.parametrize("text", ["nul\0", "half \ud800"])
def test_an_entry_that_no_database_stores_holds_up_no_other(
    resources: Resources, writer: AuditWriter, text: str
) -> None:
    append(writer.spool, "a", text, "b")
    writer.write_pending()
    assert read_resources(resources) == ["a", "b", "entries:1"]
    assert list_files(resources) == []


def test_several_processes_write_one_chain(resources: Resources) -> None:
    def write(process: int) -> None:
        spool = AuditSpool(resources.audit)
        writer = AuditWriter(resources.database, resources.audit_chain, spool)
        for number in range(10):
            append(spool, f"{process}-{number}")
            until = time.monotonic() + 60
            while list(resources.audit.glob(f"{spool.process}-*.spool")):
                assert time.monotonic() < until, "the entry is not written"
                writer.write_pending()
        spool.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    written = read_resources(resources)
    assert sorted(name or "" for name in written) == sorted(f"{p}-{n}" for p in range(4) for n in range(10))
    verified = verify_chain(resources.database, resources.audit_chain)
    assert (verified.entries, verified.faults) == (40, [])

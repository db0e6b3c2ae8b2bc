"""The chain of the audit log: what was altered, removed or set back is named, and the start can be cut off."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.orm import Session

from app.audit.schemas import UNREADABLE, AuditEntryOut
from app.audit.service import AuditFilter, list_entries
from app.db.session import snapshot, writing
from app.db.tables import AuditEntry, AuditHead, now
from app.resources import Resources
from app.storage.audit_log.chain import CUT, HEAD_INVALID, ROLLED_BACK, AuditChain
from app.storage.audit_log.drafts import EntryDraft
from app.storage.audit_log.verification import LogVerification, verify_chain

Attack = Callable[[Session], object]


def append(resources: Resources, count: int = 1, at: float | None = None) -> None:
    with writing(resources.database) as session:
        drafts = (EntryDraft.make("face.delete", key_id="k", collection="c", status=204) for _ in range(count))
        head = resources.audit_chain.append(session, [d._replace(at=at or d.at) for d in drafts])
    resources.audit_chain.witness.write(head.number, head.mac)


def verify(resources: Resources, after: int = 0) -> LogVerification:
    return verify_chain(resources.database, resources.audit_chain, after)


def mac_of_entry(resources: Resources, number: int) -> str:
    with snapshot(resources.database) as session:
        return session.scalars(select(AuditEntry.mac).where(AuditEntry.number == number)).one()


def attack(resources: Resources, change: Attack) -> None:
    with writing(resources.database) as session:
        change(session)


def test_an_empty_log_and_a_log_that_nobody_touched_hold(resources: Resources) -> None:
    assert verify(resources) == (0, 0, 0, "", [])
    append(resources, 3)
    append(resources, 2)
    verified = verify(resources)
    assert (verified.entries, verified.first, verified.last, verified.faults) == (5, 1, 5, [])
    assert verify(resources, after=3).entries == 2


@pytest.mark.parametrize(
    "change",
    [
        {"action": "face.read"}, {"key_id": "other"}, {"address": "192.0.2.1"}, {"collection_id": None}, {"at": 1.5},
        {"resource": "face:x"}, {"status": 404}, {"id": "x"}, {"mac": "0" * 64},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_an_altered_entry_is_named(resources: Resources, change: dict[str, object]) -> None:
    append(resources, 5)
    attack(resources, lambda session: session.execute(update(AuditEntry).where(AuditEntry.number == 3).values(change)))
    verified = verify(resources)
    assert verified.entries == 2
    assert verified.faults[0].startswith("entry 3 does not hold")


def insert_copy(number: int) -> Attack:
    """Insert a copy of the last entry under another number."""

    def change(session: Session) -> object:
        last = session.scalars(select(AuditEntry).order_by(AuditEntry.number.desc()).limit(1)).one()
        values = {column.name: getattr(last, column.name) for column in AuditEntry.__table__.columns}
        return session.execute(insert(AuditEntry).values(values | {"number": number, "id": f"copy {number}"}))

    return change


def test_entries_before_the_first_are_named_and_not_listed(resources: Resources) -> None:
    append(resources, 5)
    attack(resources, insert_copy(0))
    attack(resources, insert_copy(-5))
    faults = ["entries that are not of the log stand before its first, entry 1: -5, 0"]
    assert verify(resources).faults == verify(resources, after=4).faults == faults
    assert verify(resources).entries == 5
    assert list_numbers(resources) == [1, 2, 3, 4, 5]
    with writing(resources.database) as session:
        assert resources.audit_chain.cut(session, now() + 500) == 4, "a forged entry does not keep those that are old"
    attack(resources, insert_copy(3))
    assert verify(resources).faults == ["entries that are not of the log stand before its first, entry 5: -5, 0, 3"]
    assert list_numbers(resources) == [5, 6]
    attack(resources, lambda session: session.execute(delete(AuditHead)))
    assert verify(resources).faults == ["the head of the log is missing"]


def test_a_number_that_no_log_reaches_is_named_and_entries_are_appended(resources: Resources) -> None:
    append(resources, 5)
    attack(resources, insert_copy(2**63 - 1))
    append(resources, 2)
    assert list_numbers(resources) == [1, 2, 3, 4, 5, 6, 7]
    assert verify(resources).faults == ["entry 8 is missing"]


def list_numbers(resources: Resources) -> list[int]:
    every = AuditFilter(None, None, None, None, None)
    with snapshot(resources.database) as session:
        entries, _ = list_entries(session, resources.audit_chain.names, every, 100, None, "oldest")
    return [entry.number for entry in entries]


def test_an_entry_in_an_empty_log_is_named(resources: Resources) -> None:
    append(resources)
    attack(resources, insert_copy(0))
    attack(resources, lambda session: session.execute(delete(AuditEntry).where(AuditEntry.number == 1)))
    attack(resources, lambda session: session.execute(delete(AuditHead)))
    resources.audit_chain.witness.path.unlink()
    assert verify(resources).faults == ["the head of the log is missing"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("value", [b"127.0.0.1", b"\xff"], ids=["text", "bytes"])
@pytest.mark.parametrize("kind", ["TEXT", "BLOB"])
@pytest.mark.parametrize("column", ["at", "address", "status", "mac"])
def test_a_value_of_another_type_is_named(resources: Resources, column: str, kind: str, value: bytes) -> None:
    append(resources, 5)
    change = text(f"UPDATE audit_entries SET {column} = CAST(:value AS {kind}) WHERE number = 3").bindparams(
        value=value
    )
    attack(resources, lambda session: session.execute(change))
    verified = verify(resources)
    assert verified.entries == 2
    assert verified.faults == ["entry 3 does not hold: it was altered, or the one before it was replaced"]
    append(resources)
    assert mac_of_entry(resources, 6)


@pytest.mark.parametrize("change", [{"at": "x"}, {"at": math.inf}, {"status": "x"}, {"mac": b"\xff"}, {"action": None}])
def test_an_entry_that_cannot_be_shown_is_listed_as_unreadable(change: dict[str, Any]) -> None:
    draft = EntryDraft.make("face.delete", key_id="k", collection="c", status=204)
    values = {"number": 7, "at": draft.at, "action": draft.action, "status": 204, "mac": "0" * 64}
    assert AuditEntryOut.of(AuditEntry(**values)).status == 204
    listed = AuditEntryOut.of(AuditEntry(**values | change))
    assert (listed.number, listed.action, listed.status) == (7, UNREADABLE, None)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("value", ["x'ff'", "'é'", "2.5", "-1", "9223372036854775807"])
@pytest.mark.parametrize("column", ["number", "mac", "cut_number", "cut_mac", "signature"])
def test_a_head_of_other_types_is_named_and_entries_are_appended(resources: Resources, column: str, value: str) -> None:
    append(resources, 5)
    attack(resources, lambda session: session.execute(text(f"UPDATE audit_heads SET {column} = {value}")))
    assert verify(resources).faults[0] == "the head of the log is not signed by this installation"
    append(resources)
    with snapshot(resources.database) as session:
        numbers = list(session.scalars(select(AuditEntry.number).where(AuditEntry.action == HEAD_INVALID)))
    assert numbers == [6]
    assert verify(resources).faults


def test_a_removed_entry_is_named(resources: Resources) -> None:
    append(resources, 5)
    attack(resources, lambda session: session.execute(delete(AuditEntry).where(AuditEntry.number == 3)))
    assert verify(resources).faults == ["entry 3 is missing"]
    attack(resources, lambda session: session.execute(delete(AuditEntry).where(AuditEntry.number == 1)))
    assert verify(resources).faults == ["entry 1 is missing"]


def test_a_removed_end_is_noticed_also_after_later_entries(resources: Resources) -> None:
    append(resources, 5)
    attack(resources, lambda session: session.execute(delete(AuditEntry).where(AuditEntry.number > 3)))
    assert verify(resources).faults == ["the log ends at entry 3, but its head names entry 5"]
    append(resources)
    assert verify(resources).faults == ["entry 4 is missing"]


def test_a_head_that_somebody_else_wrote_is_noticed_also_after_later_entries(resources: Resources) -> None:
    append(resources, 5)

    def shorten(session: Session) -> None:
        session.execute(delete(AuditEntry).where(AuditEntry.number > 3))
        mac = session.scalars(select(AuditEntry.mac).where(AuditEntry.number == 3)).one()
        session.execute(update(AuditHead).values(number=3, mac=mac))

    attack(resources, shorten)
    assert verify(resources).faults[0] == "the head of the log is not signed by this installation"
    append(resources)
    faults = verify(resources).faults
    assert faults[0] == "entry 4 says that the head before it was not signed by this installation: entry:3"
    attack(resources, lambda session: session.execute(update(AuditHead).values(number=1)))
    append(resources)
    assert verify(resources).faults[-1].endswith("was not signed by this installation: entry:1")
    attack(resources, lambda session: session.execute(delete(AuditHead)))
    assert verify(resources).faults == ["the head of the log is missing"]


def test_a_database_that_was_set_back_is_noticed_also_after_later_entries(resources: Resources) -> None:
    append(resources, 3)
    with snapshot(resources.database) as session:
        [old] = session.scalars(select(AuditHead))
        values = {name: getattr(old, name) for name in ("number", "mac", "signature")}
    append(resources, 4)

    def set_back(session: Session) -> None:
        session.execute(delete(AuditEntry).where(AuditEntry.number > 3))
        session.execute(update(AuditHead).values(**values))

    attack(resources, set_back)
    assert verify(resources).faults == ["the log ends at entry 3, but the file head.json names entry 7"]
    append(resources, 9)
    assert verify(resources).faults == ["entry 4 says that the log was set back; it had reached entry:7"]
    with snapshot(resources.database) as session:
        actions = list(session.scalars(select(AuditEntry.action).order_by(AuditEntry.number)))
    assert actions.count(ROLLED_BACK) == 1
    assert verify(resources, after=4).faults == []


def test_another_chain_than_the_one_that_was_witnessed_is_noticed(resources: Resources) -> None:
    append(resources, 3)
    resources.audit_chain.witness.write(2, "0" * 64)
    assert verify(resources).faults == ["entry 2 is not the one that the file head.json names"]


def test_entries_that_are_appended_during_a_verification_are_no_fault(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(resources, 3)
    is_signed = resources.audit_chain.is_signed

    def append_meanwhile(head: AuditHead) -> bool:
        monkeypatch.undo()
        append(resources, 1)
        return is_signed(head)

    monkeypatch.setattr(resources.audit_chain, "is_signed", append_meanwhile)
    assert verify(resources) == (3, 1, 3, mac_of_entry(resources, 3), [])
    assert verify(resources).entries == 4


def test_the_key_of_another_installation_confirms_nothing(resources: Resources) -> None:
    append(resources, 2)
    other = AuditChain(resources.settings.home / "other")
    faults = verify_chain(resources.database, other).faults
    assert faults[0] == "the head of the log is not signed by this installation"
    assert faults[1].startswith("entry 1 does not hold")


def test_the_oldest_entries_can_be_cut_off_and_the_rest_holds(resources: Resources) -> None:
    append(resources, 4, at=now() - 1000)
    append(resources, 3)
    append(resources, 1, at=now() - 1000)  # of a process whose clock is slow: it stays, since entry 5 does
    with writing(resources.database) as session:
        assert resources.audit_chain.cut(session, now() - 500) == 4
    verified = verify(resources)
    assert (verified.first, verified.last, verified.faults) == (5, 9, [])
    with writing(resources.database) as session:
        assert resources.audit_chain.cut(session, now() - 500) == 0
        [cut] = session.scalars(select(AuditEntry).where(AuditEntry.action == CUT))
        assert cut.resource == "entry:4"
        assert resources.audit_chain.cut(session, now() + 500) == 4
        assert resources.audit_chain.cut(session, now() + 500) == 1, "the entry about the cut before"
    assert verify(resources).faults == []
    attack(resources, lambda session: session.execute(delete(AuditEntry).where(AuditEntry.number == 10)))
    assert verify(resources).faults == ["entry 10 is missing"]


def test_a_forged_cut_is_noticed(resources: Resources) -> None:
    append(resources, 6)

    def cut(session: Session) -> None:
        mac = session.scalars(select(AuditEntry.mac).where(AuditEntry.number == 2)).one()
        session.execute(delete(AuditEntry).where(AuditEntry.number <= 2))
        session.execute(update(AuditHead).values(cut_number=2, cut_mac=mac))

    attack(resources, cut)
    assert verify(resources).faults[0] == "the head of the log is not signed by this installation"
    append(resources)
    with snapshot(resources.database) as session:
        assert session.scalars(select(AuditEntry.action).where(AuditEntry.number == 7)).one() == HEAD_INVALID
    assert verify(resources).faults

"""Statements that take too long are stopped, on SQLite and on PostgreSQL."""

import threading

import pytest
from sqlalchemy import Engine, select, text

from app.db import statement_limits
from app.db.session import reading, writing
from app.db.statement_limits import StatementTooSlow, limit_statements, wait_for_turn
from app.db.tables import Collection
from app.deps import paging
from app.errors import Busy, Invalid
from app.faces.service import FaceFilter, list_faces
from app.labels.service import LabelFilter, list_labels
from app.resources import Resources
from app.search import enrolled_faces
from app.search.filters import Filter
from tests.gallery import enrol

ENDLESS = text("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n")


@pytest.fixture
def database(resources: Resources) -> Engine:
    return resources.database


def test_a_statement_without_an_end_is_stopped(database: Engine) -> None:
    with reading(database) as session, pytest.raises(StatementTooSlow), limit_statements(session, 0.1):
        session.scalar(ENDLESS)
    with reading(database) as session:
        assert session.scalar(text("SELECT 1")) == 1


def test_the_limit_ends_with_its_block(database: Engine) -> None:
    with reading(database) as session:
        with limit_statements(session, 0.1):
            assert session.scalar(text("SELECT 1")) == 1
        first = text(f"SELECT count(*) FROM ({ENDLESS.text.replace('count(*)', 'x')} LIMIT 2000000) AS firsts")
        assert session.scalar(first) == 2_000_000, "which takes longer than the limit"


def test_a_filter_that_takes_too_long_is_refused(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    enrol(resources, "c", range(3), shots=1)
    monkeypatch.setattr("app.db.statement_limits.INSTRUCTIONS_PER_CHECK", 1)
    monkeypatch.setattr(enrolled_faces, "MAX_FILTER_SECONDS", 0.0001)
    slow = Filter.model_validate({"metadata": {f"k{i}": {"ne": 1} for i in range(32)}})
    if resources.database.dialect.name == "sqlite":
        with reading(resources.database) as session, pytest.raises(Invalid, match="fewer conditions on metadata"):
            enrolled_faces.filter_faces(session, "c", slow)
    monkeypatch.setattr(enrolled_faces, "MAX_FILTER_SECONDS", 10.0)
    with reading(resources.database) as session:
        found = enrolled_faces.filter_faces(session, "c", slow)
    assert found is not None
    assert len(found) == 3


def test_filters_take_turns(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    """They use a core each for seconds; all together took the service's."""
    enrol(resources, "c", range(3), shots=1)
    turns = threading.BoundedSemaphore(1)
    monkeypatch.setattr(statement_limits, "TURNS", turns)
    monkeypatch.setattr(statement_limits, "MAX_TURN_WAIT_SECONDS", 0.05)
    wanted = Filter.model_validate({"role": "gallery"})
    with reading(resources.database) as session:
        with turns, pytest.raises(Busy, match="whole collections"):
            enrolled_faces.filter_faces(session, "c", wanted)
        found = enrolled_faces.filter_faces(session, "c", wanted)
    assert found is not None
    assert len(found) == 3


def test_a_list_that_is_read_whole_for_a_page_is_limited_too(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol(resources, "c", range(3), shots=1)
    turns = threading.BoundedSemaphore(1)
    monkeypatch.setattr(statement_limits, "TURNS", turns)
    monkeypatch.setattr(statement_limits, "MAX_TURN_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(statement_limits, "INSTRUCTIONS_PER_CHECK", 1)
    everyone, strangers = (FaceFilter(None, role, None) for role in (None, "distractor"))
    with reading(resources.database) as session:
        with turns, pytest.raises(Busy, match="whole collections"):
            list_faces(session, "c", strangers, 10, None)
        for label_filter in (("identity", "nobody", None), (None, None, "f1")):
            with turns, pytest.raises(Busy, match="whole collections"):
                list_labels(session, LabelFilter(*label_filter, contradicting=False), 10, None)
        with turns:
            assert list_labels(session, LabelFilter(None, "nobody", None, contradicting=False), 10, None) == ([], None)
            assert len(list_faces(session, "c", everyone, 10, None).faces) == 3
        assert list_faces(session, "c", strangers, 10, None).faces == []
        if resources.database.dialect.name == "sqlite":
            monkeypatch.setattr(paging, "MAX_SCAN_SECONDS", 0.0)
            with pytest.raises(Invalid, match="add another filter"):
                list_faces(session, "c", strangers, 10, None)


def test_what_changes_during_the_wait_is_seen_after_it(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite, a transaction that began before the wait sees the rows as they were then."""
    enrol(resources, "c", range(1), shots=1)

    class ChangingTurns:
        def acquire(self, timeout: float) -> bool:
            with writing(resources.database) as session:
                session.get_one(Collection, "c").description = "changed"
            return True

        def release(self) -> None:
            pass

    monkeypatch.setattr(statement_limits, "TURNS", ChangingTurns())
    with reading(resources.database) as session:
        collection = session.get_one(Collection, "c")
        assert collection.description == ""
        with wait_for_turn(session):
            assert session.scalar(select(Collection.description)) == "changed"
            assert collection.description == "changed"

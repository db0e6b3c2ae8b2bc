"""A filter has limits of conditions and values, and what is within them is evaluated by SQLite."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import Engine, create_engine, literal, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.db.session import is_temporary, writing
from app.db.tables import Subject
from app.db.tables.base import Base
from app.errors import Busy, Invalid
from app.search.filters import MAX_CONDITIONS, MAX_FILTER_VALUES, Filter
from app.search.params import SearchParams

VALUES: list[Any] = ["red", "7", 7, 7.5, True, False, None, [7], {"a": 7}]
LONG_LIST = [*range(MAX_FILTER_VALUES // MAX_CONDITIONS)]


@pytest.fixture(scope="module")
def database() -> Iterator[Engine]:
    """A table of subjects, one for each value of the key `team`, and one without the key."""
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine, [Subject.__table__])  # type: ignore[list-item]
    subjects = [Subject(id=repr(value), collection_id="c", attributes={"team": value}) for value in VALUES]
    with Session(engine) as session, session.begin():
        session.add_all([*subjects, Subject(id="nobody", collection_id="c", attributes={})])
    yield engine
    engine.dispose()


def find_subjects(database: Engine, wanted: dict[str, Any]) -> set[str]:
    clauses = Filter.model_validate(wanted).clauses("sqlite")
    with Session(database) as session:
        return set(session.scalars(select(Subject.id).where(*clauses)))


@pytest.mark.parametrize("values", [["red"], [7], [7.0, "7"], [True], [False, None], ["red", 7, 7.5, True, None], []])
def test_a_list_of_values_is_met_by_whatever_equals_one_of_them(database: Engine, values: list[Any]) -> None:
    equal = [find_subjects(database, {"subject_metadata": {"team": {"eq": value}}}) for value in values]
    assert all(equal)
    assert find_subjects(database, {"subject_metadata": {"team": {"in": values}}}) == set().union(*equal)


@pytest.mark.parametrize("key", ["größe", "\U0001f600", "a\u2028b", "a\x7fb", "a.b", "a'b", "$[0]"])
def test_any_key_of_metadata_is_found(database: Engine, key: str) -> None:
    with Session(database) as session:
        session.add(Subject(id=key, collection_id="c", attributes={key: 1}))
        for wanted, is_found in ((1, True), ({"exists": True}, True), ({"exists": False}, False)):
            clauses = Filter.model_validate({"subject_metadata": {key: wanted}}).clauses("sqlite")
            assert (key in session.scalars(select(Subject.id).where(*clauses)).all()) == is_found


def test_the_largest_filter_is_evaluated(database: Engine) -> None:
    lists = {f"k{i}": {"in": LONG_LIST} for i in range(MAX_CONDITIONS)}
    assert find_subjects(database, {"subject_metadata": lists}) == set()
    one = {"subject_metadata": {"team": {"in": [*range(7, MAX_FILTER_VALUES + 7)]}}}
    assert find_subjects(database, one) == {"7"}
    missing = {"subject_metadata": {f"k{i}": {"ne": 1} for i in range(MAX_CONDITIONS)}}
    assert len(find_subjects(database, missing)) == len(VALUES) + 1


@pytest.mark.parametrize(
    ("wanted", "limit"),
    [
        (
            {"metadata": {f"k{i}": 1 for i in range(20)}, "subject_metadata": {f"k{i}": 1 for i in range(20)}},
            "at most 32",
        ),
        ({"metadata": {f"k{i}": {"gt": 1, "lt": 9} for i in range(20)}}, "at most 32"),
        ({"metadata": {f"k{i}": {"in": LONG_LIST * 2} for i in range(20)}}, "at most 1,000"),
        ({"subject": ["a"] * 600, "source": ["b"] * 600}, "at most 1,000"),
        ({"subject": ["a"] * 1_001}, "at most 1000 items"),
        ({"metadata": {f"k{i}": 1 for i in range(2_000)}}, "filter has an object with more than 40 keys"),
        ({f"k{i}": 1 for i in range(2_000)}, "filter has an object with more than 40 keys"),
        ({"metadata": {"a": [[]] * 2_000}}, "filter has more than 2,000 values"),
    ],
)
def test_a_filter_beyond_a_limit_is_refused_with_its_name(wanted: dict[str, Any], limit: str) -> None:
    with pytest.raises((ValidationError, Invalid), match=limit):
        SearchParams.model_validate({"filter": json.dumps(wanted)})


def make_error(database: Engine, statement: Any) -> OperationalError:
    with pytest.raises(OperationalError) as caught, writing(database) as session:
        session.execute(statement)
    return caught.value


def test_a_statement_that_fails_every_time_is_not_called_busy(database: Engine) -> None:
    deep = literal(1)
    for _ in range(1_100):
        deep = deep + 1
    assert not is_temporary(make_error(database, select(deep)))


def test_a_locked_database_is_busy(tmp_path: Any) -> None:
    database = create_engine(f"sqlite:///{tmp_path}/d", connect_args={"timeout": 0, "isolation_level": None})
    with database.connect() as holder:
        holder.exec_driver_sql("begin exclusive")
        with pytest.raises(Busy), writing(database) as session:
            session.execute(text("create table t (a)"))
    database.dispose()

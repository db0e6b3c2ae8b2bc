"""A filter has limits of conditions and values, and databases evaluate what is within them as Python would."""

import json
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import Engine, create_engine, literal, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.db.session import is_temporary, writing
from app.db.tables import Collection, Subject
from app.db.tables.base import Base
from app.errors import Busy, Invalid
from app.resources import Resources
from app.search.filters import MAX_CONDITIONS, MAX_FILTER_NUMBER, MAX_FILTER_VALUES, Filter
from app.search.params import SearchParams

VALUES: list[Any] = ["red", "7", 7, 7.5, True, False, None, [7], {"a": 7}]
STORED_NUMBERS: list[Any] = [
    *(0.1, 0.7, 0.1 + 0.2, 0.3, 1 / 3, 1e-7, 5e-324, 1e308, -1e308, -0.0, 0, 1, 1.0, -1, 1.5, 19.99, 1e16, 1e23),
    *(2**52, 2.0**52 + 0.5, 2**53 - 1, 2.0**53 - 1, 2**53, 2**53 + 1, 2.0**53, 2.0**53 + 2, -(2**53) - 1),
    *(2**57 - 1, 2**57, 2**57 + 1, 2.0**57, 2**62 + 1, 2.0**62),
    *(2**63 - 1024, 2.0**63 - 1024, 2**63 - 1, 2**63, 2.0**63, 1 - 2**63, -(2**63), -(2.0**63), -(2**63) - 1, 10**30),
]
STORED_TEXTS = ["1", "1.0", "0.1", "true", "A", "a", "B", "é", ""]
STORED_VALUES: list[Any] = [*STORED_NUMBERS, *STORED_TEXTS, True, False, None, [1], {"a": 1}]
FILTER_VALUES = [*STORED_TEXTS, *(number for number in STORED_NUMBERS if abs(number) <= MAX_FILTER_NUMBER)]
ORDERS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
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


def get_kind(value: Any) -> type:
    return float if type(value) is int else type(value)


def is_equal(value: Any, wanted: Any) -> bool:
    return get_kind(value) is get_kind(wanted) and bool(value == wanted)


@pytest.fixture(scope="module")
def compared(lasting: Resources) -> Callable[[Any], set[int]]:
    """Return a function from a condition to the numbers of the stored values that meet it."""
    with writing(lasting.database) as session:
        session.add(Collection(id="c", change=0))
        session.flush()
        rows = [Subject(id=str(i), collection_id="c", attributes={"k": v}) for i, v in enumerate(STORED_VALUES)]
        session.add_all(rows)

    def compare(condition: Any) -> set[int]:
        wanted = SearchParams.model_validate({"filter": json.dumps({"subject_metadata": {"k": condition}})}).filter
        assert wanted is not None
        with Session(lasting.database) as session:
            chosen = select(Subject.id).where(*wanted.clauses(lasting.database.dialect.name))
            return {int(number) for number in session.scalars(chosen)}

    return compare


def find_values(is_met: Callable[[Any], bool]) -> set[int]:
    return {i for i, value in enumerate(STORED_VALUES) if is_met(value)}


@pytest.mark.parametrize("wanted", [*FILTER_VALUES, True, False, None], ids=repr)
def test_databases_find_equal_values_as_python_does(compared: Callable[[Any], set[int]], wanted: Any) -> None:
    equal = find_values(lambda value: is_equal(value, wanted))
    assert compared(wanted) == compared({"eq": wanted}) == compared({"in": [wanted]}) == equal
    assert compared({"ne": wanted}) == find_values(lambda _: True) - equal


def test_databases_find_several_values_as_python_does(compared: Callable[[Any], set[int]]) -> None:
    several = [0.1, 2**53 + 1, 2.0**57, True, "a", None]
    assert compared({"in": several}) == find_values(lambda value: any(is_equal(value, one) for one in several))


@pytest.mark.parametrize("limit", FILTER_VALUES, ids=repr)
def test_databases_order_values_as_python_does(compared: Callable[[Any], set[int]], limit: Any) -> None:
    for name, order in ORDERS.items():
        expected = find_values(lambda v, order=order: get_kind(v) is get_kind(limit) and order(v, limit))  # type: ignore[misc]
        assert compared({name: limit}) == expected, name


@pytest.mark.parametrize("name", ORDERS)
def test_the_locale_of_postgresql_does_not_order_texts(name: str) -> None:
    """Seen in the statement, since the PostgreSQL of tests has no locale but C."""
    [clause] = Filter.model_validate({"metadata": {"site": {name: "b"}}}).clauses("postgresql")
    [_, text_clause] = str(clause.compile(dialect=postgresql.dialect())).split(" AND ")
    assert 'COLLATE "C"' in text_clause


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


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        *(({"metadata": {"a": {name: None}}}, f"has null for {name} of 'a'") for name in [*ORDERS, "in", "exists"]),
        ({"subject_metadata": {"a": {"gte": 1, "lt": None}}}, "has null for lt of 'a'"),
        ({"metadata": {"a": {}}}, "has no operator for 'a'"),
        ({"metadata": {}}, "state at least one of"),
        ({"role": None}, "has null for role"),
    ],
)
def test_a_filter_that_everybody_meets_is_refused(wanted: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        SearchParams.model_validate({"filter": json.dumps(wanted)})


@pytest.mark.parametrize("number", [2**63, -(2**63), 2.0**63, 10**30, -1e308])
@pytest.mark.parametrize("make_condition", [lambda n: n, lambda n: {"gt": n}, lambda n: {"in": [1, n]}])
def test_a_number_that_cannot_be_compared_exactly_is_refused(number: float, make_condition: Callable[..., Any]) -> None:
    with pytest.raises(ValidationError, match="store longer ids as text"):
        SearchParams.model_validate({"filter": json.dumps({"metadata": {"badge": make_condition(number)}})})


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

"""An upgrade from every version of the schema keeps every row of that time, and the code can read all of them."""

from typing import Any

from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Boolean, Column, Float, Integer, LargeBinary, MetaData, Table, func, insert, select
from sqlalchemy.orm import Session
from sqlalchemy.types import JSON

from app.db.migrate import make_config
from app.db.schema import list_known_revisions
from app.db.tables import Base
from tests.app.test_migrations import open_engine, url

__all__ = ["url"]
RENAMED_TABLES = {"generations": "models"}
RENAMED_COLUMNS = {"generation_id": "model_id", "facts": "measurements", "lane": "queue"}
QUEUES = {"work": "default", "train": "training"}
"""What a migration made of the values of `lane`."""
Row = dict[str, Any]


def list_revisions(url: str) -> list[str]:
    """List all revisions, the oldest first."""
    return [script.revision for script in ScriptDirectory.from_config(make_config(url)).walk_revisions()][::-1]


def make_value(column: Column[Any], number: int, rows: dict[str, Row]) -> Any:
    """Make a value for a column. number: distinguishes rows; rows: table -> the row that was made before this one"""
    for key in column.foreign_keys:
        referred = key.column.table.name
        return rows[referred][key.column.name] if referred != column.table.name else None
    if column.name in ("lane", "queue"):
        return "train" if column.name == "lane" else "training"
    kinds: tuple[tuple[Any, Any], ...] = (
        (JSON, {"number": number}), (Boolean, True), (Float, number + 0.5), (Integer, number),
        (LargeBinary, f"bytes-{number}".encode()),
    )  # fmt: skip
    return next((value for kind, value in kinds if isinstance(column.type, kind)), f"{column.name}-{number}"[:16])


def insert_rows_of_today(url: str, number: int) -> list[tuple[str, Row]]:
    """Insert a row into each table of the schema that the database has, and return (table, row) of each."""
    database, tables = open_engine(url), MetaData()
    tables.reflect(database)
    rows: dict[str, Row] = {}
    with database.begin() as connection:
        for table in tables.sorted_tables:
            if table.name != "alembic_version":
                rows[table.name] = {c.name: make_value(c, number, rows) for c in table.columns}
                connection.execute(insert(table), rows[table.name])
    return list(rows.items())


def follow_renames(row: Row) -> Row:
    """Return a row as the newest schema is to hold it."""
    return {
        RENAMED_COLUMNS.get(name, name): QUEUES.get(value, value) if name == "lane" else value
        for name, value in row.items()
    }


def read_row(session: Session, table: Table, row: Row) -> Row | None:
    """Read the row with the same key, of the same columns."""
    has_key = [column == row[column.name] for column in table.primary_key.columns]
    chosen = [table.c[name] for name in row]
    found = session.execute(select(*chosen).where(*has_key)).first()
    return None if found is None else {name: _to_plain(value) for name, value in found._mapping.items()}


def _to_plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def test_rows_of_every_version_survive_all_later_migrations(url: str) -> None:
    inserted: list[tuple[str, Row]] = []
    revisions = list_revisions(url)
    for number, revision in enumerate(revisions, 1):
        command.upgrade(make_config(url), revision)
        inserted += insert_rows_of_today(url, number)
    assert set(revisions) == list_known_revisions()
    with Session(open_engine(url)) as session:
        for name, row in inserted:
            expected = follow_renames(row)
            table = Base.metadata.tables[RENAMED_TABLES.get(name, name)]
            assert read_row(session, table, expected) == expected, (name, row)
        for mapper in Base.registry.mappers:
            count = session.scalar(select(func.count()).select_from(mapper.class_))
            assert len(session.scalars(select(mapper.class_)).all()) == count > 0, mapper.class_

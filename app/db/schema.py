"""Find out which schema a database has, without Alembic, which takes long to import."""

from functools import cache
from pathlib import Path

from sqlalchemy import Engine, inspect, text
from sqlalchemy.orm import Session

from app.db.session import close_database, open_database
from app.db.tables import Base
from app.errors import Busy
from app.startup import CannotStart

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


class NotMigrated(Busy):
    """The database has the schema of an older version."""


def read_schema_revision(database: Engine) -> str | None:
    """Return the revision of the schema; None if the database has no tables. Raises OperationalError, DatabaseError."""
    if not inspect(database).has_table("alembic_version"):
        return None
    with database.connect() as connection:
        return connection.execute(text("select version_num from alembic_version")).scalar()


@cache
def list_known_revisions() -> frozenset[str]:
    """Return the revisions that this version can migrate from, and its own."""
    return frozenset(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def is_newest_schema(database: Engine) -> bool:
    """Whether the schema is that of this version. Raises OperationalError, DatabaseError."""
    return read_schema_revision(database) == max(list_known_revisions())


def check_own_schema(session: Session) -> None:
    """Check that the schema is that of this version, in a process that has found so before.

    Raises CannotStart if a newer version has migrated the database since, Busy while a dump is being put back.
    """
    revision = session.scalar(text("select version_num from alembic_version"))
    if revision is None:
        raise Busy("the database has no schema at the moment: a dump is being put back")
    if revision not in list_known_revisions():
        raise _describe_newer_schema(str(revision))


def require_newest_schema(database: Engine) -> None:
    """Check that the schema is the newest. Raises NotMigrated, CannotStart, OperationalError, DatabaseError."""
    check_schema(database)
    if not is_newest_schema(database):
        raise NotMigrated("the database has the schema of an older version: run `likeness migrate`")


def check_schema(database: Engine) -> None:
    """Check that no newer version of Likeness made the schema. Raises CannotStart, OperationalError, DatabaseError."""
    revision = read_schema_revision(database)
    if revision is not None and revision not in list_known_revisions():
        raise _describe_newer_schema(revision)


def check_tables(database: Engine) -> None:
    """Check that a database with the newest schema has all its tables and columns.

    Raises CannotStart, OperationalError, DatabaseError.
    """
    if not is_newest_schema(database):
        return
    stored = {
        table: {column["name"] for column in columns}
        for (_, table), columns in inspect(database).get_multi_columns().items()
    }
    for name, table in Base.metadata.tables.items():
        columns = {column.name for column in table.columns} - stored.get(name, set())
        if columns:
            lost = f"the table {name}" if name not in stored else f"the column {min(columns)} of the table {name}"
            raise CannotStart(f"the database lacks {lost}: it is damaged. Restore it from a backup")


def make_newer_schema_error(url: str, home: Path | None) -> CannotStart:
    """Return the error for a database whose schema this version does not know."""
    database = open_database(url, home)
    try:
        return _describe_newer_schema(str(read_schema_revision(database)))
    finally:
        close_database(database)


def _describe_newer_schema(revision: str) -> CannotStart:
    return CannotStart(
        f"the database has the schema {revision}, which a newer version of Likeness made and this one does not know. "
        "Start the newer version, or restore the backup that was made before the upgrade"
    )

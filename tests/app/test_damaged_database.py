"""A database with damaged pages, missing tables or rows that cannot be read is named as damaged."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select, text

from app.config import Settings
from app.db.schema import check_tables
from app.db.session import close_database, open_database, reading, writing
from app.db.tables import Collection, Job, Subject
from app.errors import Busy, describe_problem
from app.startup import CannotStart, explain_start_error
from ml.errors import Corrupt
from ml.files import parse_json
from ml.model import read_manifest
from tests.databases import migrated_file

DEEP = "[" * 100_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The database of a service, with a subject in a collection."""
    path = Path(shutil.copy(migrated_file(), tmp_path / "likeness.sqlite"))
    database = open_database(f"sqlite:///{path}", None)
    with writing(database) as session:
        session.add(Collection(id="staff"))
        session.flush()
        session.add(Subject(collection_id="staff", id="ada", attributes={"team": "red"}))
    close_database(database)
    return path


def execute(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute(statement)
        database.commit()


@pytest.mark.parametrize(
    ("statement", "words"),
    [("drop table labels", "the table labels"), ("alter table jobs drop column done", "the column done of the table")],
)
def test_a_missing_table_keeps_a_process_from_starting(file: Path, statement: str, words: str) -> None:
    database = open_database(f"sqlite:///{file}", None)
    check_tables(database)
    close_database(database)
    execute(file, statement)
    with pytest.raises(CannotStart, match=words):
        check_tables(open_database(f"sqlite:///{file}", None))


def test_a_table_that_is_lost_while_the_service_runs_is_no_matter_of_being_busy(file: Path) -> None:
    database = open_database(f"sqlite:///{file}", None)
    execute(file, "drop table labels")
    with pytest.raises(Busy, match="is damaged"), writing(database) as session:
        session.execute(text("delete from labels"))
    close_database(database)


@pytest.mark.parametrize("value", ["{bad", DEEP, "[1"], ids=["bad", "deep", "cut"])
def test_damaged_metadata_are_read_as_none(file: Path, value: str) -> None:
    execute(file, f"update subjects set metadata = '{value}'")
    database = open_database(f"sqlite:///{file}", None)
    with reading(database) as session:
        assert session.scalars(select(Subject)).one().attributes == {}
    close_database(database)


def test_another_damaged_value_is_answered_with_503(file: Path) -> None:
    database = open_database(f"sqlite:///{file}", None)
    with writing(database) as session:
        session.add(Job(id="one", kind="sweep", body={}, queue="default"))
    execute(file, "update jobs set body = '{bad'")
    with pytest.raises(Busy, match="is damaged") as caught, reading(database) as session:
        session.scalars(select(Job)).all()
    problem = describe_problem(caught.value)
    assert (problem["status"], problem["retryable"]) == (503, True)
    close_database(database)


def test_text_that_is_none_is_damage_at_the_start_too(file: Path) -> None:
    execute(file, "update subjects set external_id = cast(x'ff' as text)")
    database = open_database(f"sqlite:///{file}", None)
    with pytest.raises(Busy) as caught, writing(database) as session:
        session.scalars(select(Subject)).all()
    settings = Settings(home=file.parent)
    assert "is damaged. Restore it from a backup" in str(explain_start_error(caught.value, settings))
    close_database(database)


@pytest.mark.parametrize("flipped", [range(8), range(30, 400, 7)], ids=["header", "tables"])
def test_flipped_bytes_are_damage(file: Path, flipped: range) -> None:
    content = bytearray(file.read_bytes())
    pages = range(4096, len(content), 4096)
    for page in pages:
        for offset in flipped:
            content[page + offset] ^= 0xFF
    file.write_bytes(content)
    database = open_database(f"sqlite:///{file}", None)

    def use_everything() -> None:
        with writing(database) as session:
            session.scalars(select(Subject)).all()
            session.scalars(select(Job)).all()
            session.execute(text("select sql from sqlite_master")).all()
            session.add(Collection(id="guests"))

    with pytest.raises(Busy, match="is damaged") as caught:
        use_everything()
    assert "is damaged" in str(explain_start_error(caught.value, Settings(home=file.parent)))
    close_database(database)


def test_json_that_is_nested_too_deeply_is_damage(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)
    (tmp_path / "manifest.json").write_text(DEEP)
    with pytest.raises(Corrupt, match="nested too deeply"):
        read_manifest(tmp_path)

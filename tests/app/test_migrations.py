"""Every migration, on a database that holds data."""

from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Engine, NullPool, create_engine, inspect, text

from app.db.migrate import make_config, upgrade_database

ROWS_AT_0001 = (
    "insert into generations (id, manifest, report, training_id, created_at) values ('m', '{}', '{}', 't', 1)",
    "insert into generations (id, manifest, report, created_at) values ('n', '{}', '{}', 1)",
    "insert into collections (id, description, change, created_at) values ('c', '', 7, 1)",
    "insert into deployments (collection_id, task, champion, previous, version, facts, history, updated_at)"
    """ values ('c', 'identity', 'm', 'n', 3, '{"m": {"cells": 4}}', '[]', 1)""",
    "insert into faces (pk, face_id, collection_id, role, image_id, number, bounding_box, landmarks, quality,"
    " metadata, change, created_at) values (5, 'f', 'c', 'gallery', 'i', 0, '{}', '[]', '{}', '{}', 7, 1)",
    "insert into followers (process, collection_id, task, generation_id, change, vectors, seen_at)"
    " values ('p', 'c', 'identity', 'm', 7, 1, 1)",
    "insert into jobs (id, kind, body, lane, state, tries, not_before, cancel, done, failed, created_at)"
    " values ('j1', 'sweep', '{}', 'work', 'queued', 0, 0, false, 0, 0, 1)",
    "insert into jobs (id, kind, body, lane, state, tries, not_before, cancel, done, failed, created_at)"
    " values ('j2', 'train', '{}', 'train', 'queued', 0, 0, false, 0, 0, 1)",
)


def open_engine(url: str) -> Engine:
    """Open an engine that keeps no connection open."""
    return create_engine(url, poolclass=NullPool)


@pytest.fixture
def url(empty_database_url: str, tmp_path: Path) -> str:
    return empty_database_url or f"sqlite:///{tmp_path / 'old.sqlite'}"


@pytest.fixture
def old(url: str) -> str:
    """A database of the first version, with a row in every table that a later migration changes."""
    command.upgrade(make_config(url), "0001")
    with open_engine(url).begin() as connection:
        for row in ROWS_AT_0001:
            connection.execute(text(row))
        vector = text("insert into embeddings (generation_id, task, face_pk, vector) values ('m', 'identity', 5, :v)")
        connection.execute(vector, {"v": b"\0\0\x80?"})
    return url


def test_an_upgrade_keeps_every_row(old: str) -> None:
    upgrade_database(old)
    with open_engine(old).begin() as connection:
        deployments = "select champion, previous, version, default_fpir, measurements, label_policy from deployments"
        [(champion, previous, version, fpir, measurements, label_policy)] = connection.execute(text(deployments)).all()
        assert (champion, previous, version) == ("m", "n", 3)
        assert fpir == pytest.approx(0.01)
        assert label_policy == "list"
        assert measurements in ('{"m": {"cells": 4}}', {"m": {"cells": 4}})
        models = connection.execute(text("select id, training_id from models order by id")).all()
        assert models == [("m", "t"), ("n", None)]
        embeddings = connection.execute(text("select model_id, task, face_pk, vector from embeddings")).all()
        assert [(*row[:3], bytes(row[3])) for row in embeddings] == [("m", "identity", 5, b"\0\0\x80?")]
        assert connection.execute(text("select model_id, change from followers")).all() == [("m", 7)]
        assert connection.execute(text("select source from faces")).scalars().all() == [None]
        queues = connection.execute(text("select id, queue from jobs order by id")).all()
        assert queues == [("j1", "default"), ("j2", "training")]


def test_the_renamed_tables_keep_their_keys_and_indexes(old: str) -> None:
    upgrade_database(old)
    tables = inspect(open_engine(old))
    assert "generations" not in tables.get_table_names()
    assert [index["column_names"] for index in tables.get_indexes("models")] == [["training_id"]]
    assert tables.get_pk_constraint("embeddings")["constrained_columns"] == ["model_id", "task", "face_pk"]
    for table, columns in (("embeddings", {"model_id"}), ("deployments", {"champion", "challenger", "previous"})):
        keys = [key for key in tables.get_foreign_keys(table) if key["referred_table"] == "models"]
        assert {key["constrained_columns"][0] for key in keys} == columns


def test_the_sources_and_their_compensation_can_be_stored(old: str) -> None:
    upgrade_database(old)
    with open_engine(old).begin() as connection:
        connection.execute(text("update faces set source = 'gate-2' where pk = 5"))
        row = text(
            "insert into source_compensations (collection_id, task, model_id, version, data, decisions, faces,"
            " measured_at) values ('c', 'identity', 'm', 1, :data, '{}', '{}', 1)"
        )
        connection.execute(row, {"data": b"npz"})
    command.downgrade(make_config(old), "0004")
    tables = inspect(open_engine(old))
    assert "source_compensations" not in tables.get_table_names()
    assert "source" not in {column["name"] for column in tables.get_columns("faces")}
    with open_engine(old).begin() as connection:
        assert connection.execute(text("select face_id, change from faces")).all() == [("f", 7)]


def test_a_downgrade_brings_the_first_version_back(old: str) -> None:
    upgrade_database(old)
    command.downgrade(make_config(old), "0001")
    columns = {column["name"] for column in inspect(open_engine(old)).get_columns("deployments")}
    assert "facts" in columns
    assert not columns & {"default_fpir", "measurements"}
    with open_engine(old).begin() as connection:
        assert connection.execute(text("select version from deployments")).scalar() == 3
        assert connection.execute(text("select generation_id from embeddings")).scalar() == "m"
        assert connection.execute(text("select count(*) from generations")).scalar() == 2
        assert connection.execute(text("select lane from jobs order by id")).scalars().all() == ["work", "train"]


def test_clusters_of_faces_go_with_their_collection_and_without_their_subject(old: str) -> None:
    upgrade_database(old)
    with open_engine(old).begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.execute(text("pragma foreign_keys = on"))
        for row in (
            "insert into subjects (pk, collection_id, id, metadata, created_at) values (3, 'c', 'ada', '{}', 1)",
            "insert into face_clusters (pk, collection_id, state, probability, suggested_subject_pk, created_at)"
            " values (9, 'c', 'open', 0.99, 3, 1)",
            "insert into clustered_faces (face_pk, cluster_pk) values (5, 9)",
            "insert into people_searches (collection_id, model_id, min_probability, change, finished_at)"
            " values ('c', 'm', 0.9, 7, 1)",
            "delete from subjects",
        ):
            connection.execute(text(row))
        clusters = "select pk, suggested_subject_pk, edited_at from face_clusters"
        assert connection.execute(text(clusters)).all() == [(9, None, None)]
        connection.execute(text("delete from faces"))
        assert connection.execute(text("select count(*) from clustered_faces")).scalar() == 0
        connection.execute(text("delete from collections"))
        for table in ("face_clusters", "people_searches"):
            assert connection.execute(text(f"select count(*) from {table}")).scalar() == 0
    command.downgrade(make_config(old), "0005")
    assert "face_clusters" not in inspect(open_engine(old)).get_table_names()

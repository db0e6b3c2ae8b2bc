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
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        deployments = "select champion, previous, version, default_fpir, measurements, label_policy from deployments"
        [(champion, previous, version, fpir, measurements, label_policy)] = connection.execute(text(deployments)).all()
        assert (champion, previous, version) == ("m", "n", 3)
        assert fpir == pytest.approx(0.01)
        assert label_policy == "list"
        assert measurements in ('{"m": {"cells": 4}}', {"m": {"cells": 4}})
        collections = "select change, label_change, is_deleted from collections"
        assert connection.execute(text(collections)).all() == [(7, 0, False)]
        models = connection.execute(text("select id, training_id from models order by id")).all()
        assert models == [("m", "t"), ("n", None)]
        embeddings = connection.execute(text("select model_id, task, face_pk, vector from embeddings")).all()
        assert [(*row[:3], bytes(row[3])) for row in embeddings] == [("m", "identity", 5, b"\0\0\x80?")]
        assert connection.execute(text("select model_id, change from followers")).all() == [("m", 7)]
        assert connection.execute(text("select source from faces")).scalars().all() == [None]
        queues = connection.execute(text("select id, queue from jobs order by id")).all()
        assert queues == [("j1", "default"), ("j2", "training")]


def test_the_renamed_tables_keep_their_keys_and_indexes(old: str) -> None:
    upgrade_database(old, None)
    tables = inspect(open_engine(old))
    assert "generations" not in tables.get_table_names()
    assert [index["column_names"] for index in tables.get_indexes("models")] == [["training_id"]]
    assert tables.get_pk_constraint("embeddings")["constrained_columns"] == ["model_id", "task", "face_pk"]
    for table, columns in (("embeddings", {"model_id"}), ("deployments", {"champion", "challenger", "previous"})):
        keys = [key for key in tables.get_foreign_keys(table) if key["referred_table"] == "models"]
        assert {key["constrained_columns"][0] for key in keys} == columns


def test_the_sources_and_their_compensation_can_be_stored(old: str) -> None:
    upgrade_database(old, None)
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


def test_a_collection_with_labels_of_the_first_version_has_them_read(old: str) -> None:
    """A follower reads no labels of a collection whose `label_change` is 0."""
    with open_engine(old).begin() as connection:
        for row in (
            "insert into collections (id, description, change, created_at) values ('unlabelled', '', 7, 1)",
            "insert into faces (pk, face_id, collection_id, role, image_id, number, bounding_box, landmarks, quality,"
            " metadata, change, created_at) values (6, 'g', 'c', 'gallery', 'j', 0, '{}', '[]', '{}', '{}', 7, 1)",
            'insert into labels (task, face_a, face_b, same, "by", note, created_at)'
            " values ('identity', 5, 6, true, 'ana', '', 1)",
        ):
            connection.execute(text(row))
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        collections = connection.execute(text("select id, label_change from collections order by id")).all()
        assert collections == [("c", 1), ("unlabelled", 0)]
    command.downgrade(make_config(old), "0023")


def test_a_downgrade_brings_the_first_version_back(old: str) -> None:
    upgrade_database(old, None)
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
    upgrade_database(old, None)
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


def test_coordinates_go_with_their_face_and_atlases_with_their_collection(old: str) -> None:
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.execute(text("pragma foreign_keys = on"))
        atlas = text(
            "insert into atlases (pk, collection_id, task, model_id, version, compensation, method, seed, projection,"
            " measurements, fitted_faces, change, created_at) values"
            " (4, 'c', 'identity', 'm', 3, 0, 'pca', 0, :data, '{}', 1, 7, 1)"
        )
        connection.execute(atlas, {"data": b"projection"})
        placed = "insert into face_coordinates (atlas_pk, face_pk, x, y, display_rank) values (4, 5, 0.5, -1.5, 9)"
        connection.execute(text(placed))
        count = text("select count(*) from face_coordinates")
        connection.execute(text("delete from faces"))
        assert connection.execute(count).scalar() == 0
        assert connection.execute(text("select pk, finished_at from atlases")).all() == [(4, None)]
        connection.execute(text("delete from embeddings"))
        connection.execute(text("delete from collections"))
        assert connection.execute(text("select count(*) from atlases")).scalar() == 0
    command.downgrade(make_config(old), "0007")
    assert not {"atlases", "face_coordinates"} & set(inspect(open_engine(old)).get_table_names())


def test_the_rule_for_labels_and_a_training_policy_can_be_stored(old: str) -> None:
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        rule = "select label_weights, label_quorum from deployments"
        assert connection.execute(text(rule)).all() == [("equal", 1)]
        row = text(
            "insert into training_policies (collection_id, task, version, trigger, hours, labels, publish, request,"
            " last_labels, since, updated_at) values ('c', 'identity', 1, 'labels', 24, 50, 'never', '{}', 0, 1, 1)"
        )
        connection.execute(row)
        assert connection.execute(text("select labels, max_trainings from training_policies")).all() == [(50, None)]
    command.downgrade(make_config(old), "0008")
    tables = inspect(open_engine(old))
    assert "training_policies" not in tables.get_table_names()
    assert not {"label_weights", "label_quorum"} & {column["name"] for column in tables.get_columns("deployments")}


def test_the_mark_of_a_damaged_face_goes_with_the_face(old: str) -> None:
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.execute(text("pragma foreign_keys = on"))
        row = "insert into damaged_faces (face_pk, collection_id, file, reason, found_at) values (5, 'c', 'f', 'r', 1)"
        connection.execute(text(row))
        connection.execute(text("delete from faces"))
        assert connection.execute(text("select count(*) from damaged_faces")).scalar() == 0
    command.downgrade(make_config(old), "0012")
    assert "damaged_faces" not in inspect(open_engine(old)).get_table_names()


def test_the_totals_of_a_shadow_go_with_their_collection(old: str) -> None:
    upgrade_database(old, None)
    counts = (
        "compared, same_first, decided, same_decision, named_by_both, named_differently, named_by_champion_only,"
        " named_by_challenger_only, overlap, overlap_squares, probabilities, probability_difference,"
        " probability_difference_squares, labels, broken_labels, mended_labels, vectors, not_ready, failed, dropped"
    )
    numbers = ", ".join("2" for _ in counts.split(","))
    with open_engine(old).begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.execute(text("pragma foreign_keys = on"))
        assert connection.execute(text("select shadow_share from deployments")).scalar() == 0
        columns = f"collection_id, task, champion, challenger, {counts}, since, updated_at"
        row = f"insert into shadow_totals ({columns}) values ('c', 'identity', 'm', 'n', {numbers}, 1, 1)"
        connection.execute(text(row))
        connection.execute(text("delete from faces"))
        connection.execute(text("delete from collections"))
        assert connection.execute(text("select count(*) from shadow_totals")).scalar() == 0
    command.downgrade(make_config(old), "0010")
    tables = inspect(open_engine(old))
    assert "shadow_totals" not in tables.get_table_names()
    assert "shadow_share" not in {column["name"] for column in tables.get_columns("deployments")}


def test_the_secrets_of_keys_are_removed_from_stored_answers(old: str) -> None:
    command.upgrade(make_config(old), "0011")
    bodies = {"a": b'{"id": "k1", "key": "lk_secret"}', "b": b'{"id": "f", "key": "value"}', "c": b"\xff\xfe", "d": b""}
    answer = text(
        "insert into answers (key_id, idempotency_key, fingerprint, status, headers, body, created_at)"
        " values ('k0', :name, 'f', 201, '{}', :body, 1)"
    )
    with open_engine(old).begin() as connection:
        for name, body in bodies.items():
            connection.execute(answer, {"name": name, "body": body})
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        stored = {
            name: bytes(body) for name, body in connection.execute(text("select idempotency_key, body from answers"))
        }
    assert stored == bodies | {"a": b'{"id": "k1"}'}


def test_an_erasure_outlives_its_collection_and_stored_answers_are_kept(old: str) -> None:
    command.upgrade(make_config(old), "0012")
    with open_engine(old).begin() as connection:
        answer = (
            "insert into answers (key_id, idempotency_key, fingerprint, status, headers, body, created_at)"
            " values ('k0', 'a', 'f', 201, '{}', :body, 1)"
        )
        connection.execute(text(answer), {"body": b"{}"})
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.execute(text("pragma foreign_keys = on"))
        assert connection.execute(text("select idempotency_key, collection from answers")).all() == [("a", None)]
        row = (
            "insert into erasures (id, collection_id, collection_created_at, target, state, change, first_change,"
            " targets, contents, fingerprints, signature, requested_at)"
            " values ('e', 'c', 1, 'collection', 'pending', 8, 7, '{}', '{}', '[]', '', 2)"
        )
        connection.execute(text(row))
        connection.execute(text("delete from faces"))
        connection.execute(text("delete from collections"))
        assert connection.execute(text("select id, finished_at from erasures")).all() == [("e", None)]
    command.downgrade(make_config(old), "0012")
    tables = inspect(open_engine(old))
    assert "erasures" not in tables.get_table_names()
    assert "collection" not in {column["name"] for column in tables.get_columns("answers")}


def test_keys_keep_working_and_the_audit_log_can_be_stored(old: str) -> None:
    command.upgrade(make_config(old), "0012")
    key = "insert into keys (id, name, digest, role, collections, created_at) values ('k', 'n', 'd', 'admin', '[]', 1)"
    with open_engine(old).begin() as connection:
        connection.execute(text(key))
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        columns = "select id, digest, revoked_at, expires_at, previous_digest, previous_until from keys"
        assert connection.execute(text(columns)).all() == [("k", "d", None, None, None, None)]
        entry = "insert into audit_entries (number, id, at, action, mac) values (:number, :id, 1.25, 'key.create', 'm')"
        connection.execute(text(entry), [{"number": 2**40, "id": "a"}, {"number": 2, "id": "b"}])
        head = (
            "insert into audit_heads (id, number, mac, cut_number, cut_mac, signature) values (1, 2, 'm', 0, '', 's')"
        )
        connection.execute(text(head))
        connection.execute(text("delete from collections"))
        assert connection.execute(text("select count(*) from audit_entries")).scalar() == 2
    command.downgrade(make_config(old), "0012")
    tables = inspect(open_engine(old))
    assert not {"audit_entries", "audit_heads"} & set(tables.get_table_names())
    assert "expires_at" not in {column["name"] for column in tables.get_columns("keys")}
    with open_engine(old).begin() as connection:
        assert connection.execute(text("select digest, role from keys")).all() == [("d", "admin")]


def test_the_keys_of_people_and_labels_are_not_used_again(old: str) -> None:
    command.upgrade(make_config(old), "0026")
    subject = "insert into subjects (pk, collection_id, id, metadata, created_at) values ({}, 'c', '{}', '{{}}', 1)"
    label = (
        'insert into labels (pk, task, face_a, face_b, same, "by", note, created_at)'
        " values ({}, 'identity', 5, 6, true, 'ana', '', 1)"
    )
    with open_engine(old).begin() as connection:
        for row in (
            subject.format(3, "ada"),
            subject.format(8, "bob"),
            "update faces set subject_pk = 3",
            "insert into faces (pk, face_id, collection_id, role, image_id, number, bounding_box, landmarks, quality,"
            " metadata, change, created_at) values (6, 'g', 'c', 'gallery', 'j', 0, '{}', '[]', '{}', '{}', 7, 1)",
            label.format(4),
            "insert into face_clusters (pk, collection_id, state, probability, suggested_subject_pk, created_at)"
            " values (9, 'c', 'open', 0.99, 3, 1)",
        ):
            connection.execute(text(row))
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        assert connection.execute(text("select pk, id from subjects order by pk")).all() == [(3, "ada"), (8, "bob")]
        assert connection.execute(text("select pk, subject_pk from faces order by pk")).all() == [(5, 3), (6, None)]
        assert connection.execute(text("select pk, face_a, face_b from labels")).all() == [(4, 5, 6)]
        assert connection.execute(text("select suggested_subject_pk from face_clusters")).scalar() == 3
        if connection.dialect.name == "sqlite":
            assert connection.execute(text("pragma foreign_key_check")).all() == []
            connection.execute(text("delete from subjects where id = 'bob'"))
            connection.execute(text("delete from labels"))
            connection.execute(text(subject.replace("{}, 'c'", "null, 'c'").format("eve")))
            connection.execute(text(label.format("null")))
            assert connection.execute(text("select max(pk) from subjects")).scalar() == 9
            assert connection.execute(text("select pk from labels")).scalar() == 5
    indexes = {index["name"] for index in inspect(open_engine(old)).get_indexes("labels")}
    assert {"labels_of_a_task", "labels_of_a_pair"} <= indexes


def test_an_atlas_of_an_earlier_version_loses_the_mean_of_the_embeddings_and_is_outdated(old: str) -> None:
    command.upgrade(make_config(old), "0028")
    atlas = text(
        "insert into atlases (pk, collection_id, task, model_id, version, compensation, method, seed, projection,"
        " measurements, fitted_faces, change, created_at, finished_at) values"
        " (:pk, 'c', 'identity', 'm', 3, 0, :method, 0, :data, '{}', 9, 7, 1, 1)"
    )
    kept = text("select pk, length(projection), fitted_faces, change from atlases order by pk")
    with open_engine(old).begin() as connection:
        for pk, method, data in ((4, "pca", b"mean"), (5, "tsne", b"")):
            connection.execute(atlas, {"pk": pk, "method": method, "data": data})
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        assert connection.execute(kept).all() == [(4, 0, 0, -1), (5, 0, 9, 7)]
        connection.execute(text("update atlases set projection = :data, fitted_faces = 9"), {"data": b"axes"})
    command.downgrade(make_config(old), "0028")
    with open_engine(old).begin() as connection:
        assert connection.execute(kept).all() == [(4, 0, 0, -1), (5, 4, 9, 7)]


def test_nobody_was_merged_into_the_people_of_an_earlier_version(old: str) -> None:
    command.upgrade(make_config(old), "0027")
    subject = "insert into subjects (pk, collection_id, id, metadata, created_at) values (3, 'c', 'ada', '{}', 1)"
    with open_engine(old).begin() as connection:
        connection.execute(text(subject))
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        merged = connection.execute(text("select id, merged_subjects from subjects")).all()
        assert [(subject_id, str(value)) for subject_id, value in merged] == [("ada", "[]")]
    command.downgrade(make_config(old), "0027")
    with open_engine(old).begin() as connection:
        connection.execute(text("update subjects set id = 'eve'"))
        assert connection.execute(text("select pk, id from subjects")).all() == [(3, "eve")]
    assert "merged_subjects" not in {column["name"] for column in inspect(open_engine(old)).get_columns("subjects")}


def test_reports_of_an_earlier_version_keep_their_order(old: str) -> None:
    command.upgrade(make_config(old), "0029")
    job = text(
        "insert into jobs (id, kind, body, queue, state, tries, not_before, cancel, done, failed, created_at)"
        " values (:id, :kind, :body, 'training', 'succeeded', 0, 0, false, 0, 0, 1)"
    )
    reports = {"j3": '{"collection": "c", "number": 12}', "j4": '{"collection": "c"}'}
    with open_engine(old).begin() as connection:
        for name, body in reports.items():
            connection.execute(job, {"id": name, "kind": "examine", "body": body})
    upgrade_database(old, None)
    with open_engine(old).begin() as connection:
        numbers = text("select id, collection_id, report_number from jobs order by id")
        expected = [("j1", None, None), ("j2", None, None), ("j3", "c", 12), ("j4", "c", 0)]
        assert connection.execute(numbers).all() == expected
    command.downgrade(make_config(old), "0029")
    tables = inspect(open_engine(old))
    assert "report_number" not in {column["name"] for column in tables.get_columns("jobs")}
    assert {"ix_jobs_lock", "jobs_to_claim"} <= {index["name"] for index in tables.get_indexes("jobs")}

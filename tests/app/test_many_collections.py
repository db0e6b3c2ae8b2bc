"""A service with many small collections: what its follower reads at the start, and what it does later."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, insert, text
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Collection, Label
from app.labels.service import change_collections
from app.resources import Resources
from app.serving.deployment_sync import DeploymentSync
from app.serving.deployments import ServedDeployment
from app.serving.engine import Engine
from app.serving.index_builder import IndexKey
from tests.databases import delete_collections
from tests.rows import GalleryWriter, make_model, people

MODEL = make_model("m-one")
ROWS, NAMES = people(3, 1)
MAX_QUERIES = 8
"""For a collection: whether it has many faces, subjects, faces, embeddings, their numbers, measurements, and its change
twice."""


@pytest.fixture
def resources(lasting: Resources) -> Iterator[Resources]:
    yield lasting
    delete_collections(lasting.database)


@pytest.fixture
def galleries(resources: Resources) -> list[GalleryWriter]:
    """Collections with a face of each of three people, under one model."""
    made = [GalleryWriter(resources, f"small-{number}").make(MODEL) for number in range(6)]
    for gallery in made:
        gallery.add({MODEL.id: ROWS}, NAMES)
    return made


def serve_all(engine: Engine, collections: int) -> None:
    """Step as the follower's thread does, until so many collections are served."""
    for _ in range(100):
        engine.follower.step()
        if len(engine.list_deployments()) == collections:
            return
        engine.resources.notifier.wait("changes", 0.1)
    raise AssertionError("not all are served")


@contextmanager
def noting_queries(resources: Resources) -> Iterator[list[tuple[str, list[object]]]]:
    """Note the queries that read rows, with their parameters, but for the lists of the reporter."""
    noted: list[tuple[str, list[object]]] = []

    def note(_connection: object, _cursor: object, statement: str, params: Sequence[object], *_: object) -> None:
        if (
            statement.startswith("SELECT")
            and "FROM followers" not in statement
            and "collections.id IN" not in statement
        ):
            noted.append((statement, list(params.values() if isinstance(params, dict) else params)))

    event.listen(resources.database, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        event.remove(resources.database, "before_cursor_execute", note)


def test_a_start_reads_a_small_collection_with_few_queries(galleries: list[GalleryWriter]) -> None:
    """There may be thousands. Each took thirteen queries in five transactions."""
    engine = Engine(galleries[0].resources)
    with noting_queries(engine.resources) as noted:
        serve_all(engine, len(galleries))
    for gallery in galleries:
        queries = [statement for statement, params in noted if gallery.collection in params]
        assert 0 < len(queries) <= MAX_QUERIES, queries
    assert not any("labels" in statement for statement, _ in noted if "label_change" not in statement)


def test_labels_of_a_collection_are_read_at_the_start_where_there_are_any(galleries: list[GalleryWriter]) -> None:
    labelled, resources = galleries[2], galleries[2].resources
    with writing(resources.database) as session:
        change_collections(session, [labelled.collection], is_addition=True)
        first, second = labelled.pks[:2]
        session.execute(
            insert(Label), [{"task": "identity", "face_a": first, "face_b": second, "same": True, "by": "ana"}]
        )
    engine = Engine(resources)
    serve_all(engine, len(galleries))
    served = {deployment.collection: deployment.constraints for deployment in engine.list_deployments()}
    assert {name for name, constraints in served.items() if constraints} == {labelled.collection}
    assert served[labelled.collection].change == 2
    assert served["small-0"].change == 1


def test_index_and_names_of_a_small_collection_are_read_in_one_snapshot(galleries: list[GalleryWriter]) -> None:
    """What is enrolled between the two is in both or in none, so that no other reading is needed."""
    resources, gallery = galleries[0].resources, galleries[0]
    sync = Engine(resources).follower.sync
    with reading(resources.database) as session:
        created_at = session.get_one(Collection, gallery.collection).created_at
    key = IndexKey(gallery.collection, "identity", MODEL.id, created_at)
    enrolled = list[str]()

    def enrol_beside_names(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT faces.pk, faces.face_id") and not enrolled:
            enrolled.append(gallery.collection)
            gallery.add({MODEL.id: ROWS[:1]}, ["later"])

    event.listen(resources.database, "before_cursor_execute", enrol_beside_names)
    try:
        loaded = sync._load_with_faces(key)
    finally:
        event.remove(resources.database, "before_cursor_execute", enrol_beside_names)
    [faces] = sync.face_tables._tables.values()
    assert enrolled
    assert (loaded.state.change, loaded.state.vectors) == (faces.change, len(faces.columns.pks)) == (1, len(ROWS))


def test_a_step_that_finds_all_as_it_was_wakes_nobody(
    galleries: list[GalleryWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waiting request checked its condition once for each of thousands of deployments, twice a second."""
    engine, announced = Engine(galleries[0].resources), list[int]()
    serve_all(engine, len(galleries))
    monkeypatch.setattr(engine.registry._changed, "notify_all", lambda: announced.append(1))
    engine.follower.step()
    assert announced == []
    galleries[1].add({MODEL.id: ROWS[:1]}, ["later"])
    engine.follower.step()
    assert announced


@pytest.mark.parametrize("lasting", ["postgresql"], indirect=True)  # SQLite goes on in a transaction after an error
def test_a_statement_that_fails_for_a_collection_stops_no_other(
    galleries: list[GalleryWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, failed = Engine(galleries[0].resources), list[str]()
    publish = DeploymentSync._publish

    def fail_for_the_first(sync: DeploymentSync, session: Session, served: ServedDeployment, *indexes: Any) -> None:
        failed.append(served.collection)
        if served.collection == failed[0]:
            session.execute(text("SELECT 1 / 0"))
        publish(sync, session, served, *indexes)

    monkeypatch.setattr(DeploymentSync, "_publish", fail_for_the_first)
    engine.follower.step()
    engine.follower.sync.tasks.finish(20)
    for _ in range(2):  # they are reported, then served
        engine.follower.step()
    assert {served.collection for served in engine.list_deployments()} == {g.collection for g in galleries} - {
        failed[0]
    }

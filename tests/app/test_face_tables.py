"""The faces in memory agree with the tables after every change, and a search needs nothing else."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import Engine as Database
from sqlalchemy import event, func, select, update

from app.access import keys
from app.collections.service import delete_collection
from app.db.immediate import DatabaseNeeded
from app.db.session import reading, snapshot, writing
from app.db.tables import Collection, Face, Subject, now
from app.errors import NotFound
from app.galleries.subjects import erase_faces
from app.resources import Resources
from app.search import vector_routes
from app.search.context import SearchContext, open_context
from app.search.enrolled_faces import query_faces, read_templates
from app.search.params import QuerySearchParams, parse_usual
from app.search.schemas import SearchOut
from app.search.service import search_by_vector
from app.serving.calibration import schedule as calibration_schedule
from app.serving.deployment_sync import DeploymentSync
from app.serving.engine import Engine, open_engine
from app.serving.faces import face_table
from app.serving.faces.columns import NO_FACES, SubjectColumns, SubjectName, TextColumn
from app.serving.faces.face_table import FaceTable
from app.serving.faces.face_table_loader import CollectionKey, load_table, update_table
from app.serving.faces.found_faces import FoundFaces
from app.serving.labels import constraints as label_constraints
from app.serving.labels.constraints import ConstrainedFace, ServedConstraints, SettledLabels, derive_constraints
from app.serving.loaded_index import IndexState, LoadedIndex
from app.subjects.schemas import SubjectIn
from app.subjects.service import change_subject, merge_subjects
from ml.identification.label_constraints import LabelledPair
from tests.databases import delete_collections
from tests.rows import GalleryWriter, make_model, people
from tests.service import serve_api

MODEL = make_model("m-one")
ROWS, NAMES = people(20, 3)


@pytest.fixture
def resources(lasting: Resources) -> Iterator[Resources]:
    """Resources whose tables are emptied after each test, since one engine after the other follows them."""
    yield lasting
    delete_collections(lasting.database)


@pytest.fixture
def gallery(resources: Resources) -> GalleryWriter:
    """Twenty people with three photos each, under one model."""
    made = GalleryWriter(resources).make(MODEL)
    made.add({MODEL.id: ROWS}, NAMES)
    return made


@pytest.fixture
def engine(gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that serves the gallery, and whose follower sees no later change."""
    monkeypatch.setattr(calibration_schedule, "needs_recalibration", lambda *_: False)
    monkeypatch.setattr(DeploymentSync, "save", lambda *_: None)
    monkeypatch.setattr("app.serving.engine.MAX_IMMEDIATE_SECONDS", 10.0)  # however slow this machine is
    with open_engine(gallery.resources) as opened:
        limit = time.monotonic() + 20
        while search_in_thread(opened)["faces"][0]["matches"] == [] and time.monotonic() < limit:
            time.sleep(0.01)
        opened.follower.step = lambda: None  # type: ignore[method-assign]
        yield opened


@pytest.fixture(scope="module")
def client(lasting: Resources) -> Iterator[httpx.Client]:
    """A client of an API that measures nothing, and whose indexes count as fast, however slow this machine is."""
    with writing(lasting.database) as session:
        secret = keys.create_key(session, "reader", "test")[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.serving.engine.MAX_IMMEDIATE_SECONDS", 10.0)
        patch.setattr(calibration_schedule, "needs_recalibration", lambda *_: False)
        with serve_api(lasting.settings) as url, httpx.Client(base_url=url, headers={"x-api-key": secret}) as opened:
            yield opened


def search_in_thread(engine: Engine, change: int | None = None) -> SearchOut:
    with open_context(engine, change) as context:
        return search_by_vector(context, "staff", ROWS[0].tolist(), QuerySearchParams())


def search_from_memory(engine: Engine, change: int | None = None) -> SearchOut:
    context = SearchContext(engine, None, change)
    return search_by_vector(context, "staff", ROWS[0].tolist(), QuerySearchParams())


def list_names(answer: SearchOut) -> list[str]:
    return [match["subject"]["id"] for match in answer["faces"][0]["matches"] if match["subject"] is not None]


def get_key(resources: Resources, collection: str = "staff") -> CollectionKey:
    with reading(resources.database) as session:
        return CollectionKey(collection, session.get_one(Collection, collection).created_at)


def load(resources: Resources, key: CollectionKey) -> FaceTable:
    with snapshot(resources.database) as session:
        return load_table(session, key)


def check_agreement(resources: Resources, table: FaceTable, pks: list[int]) -> None:
    """Check that a table says of these faces what the database says, and whose faces they are."""
    asked = np.array([*reversed(pks), 10**6, -1, *pks], np.int64)
    with reading(resources.database) as session:
        stored = query_faces(session, sorted(set(pks)))
        enrolled = session.scalar(select(func.count()).select_from(Face))
        assert table.count_ended(now()) == (enrolled or 0) - len(stored)
        for faces in (table.read(asked, now()), FoundFaces.of(asked, stored)):
            assert faces == stored
            assert bool(faces) == bool(stored)
            offsets = [offset for offset, pk in enumerate(asked.tolist()) if pk in stored]
            known = [stored[asked.item(offset)] for offset in offsets]
            assert [offset for offset, owner in enumerate(faces.owners.tolist()) if owner >= 0] == offsets
            assert faces.owners[offsets].tolist() == [face.owner for face in known]
            assert faces.distractors == {p for p, f in zip(offsets, known, strict=True) if f.role == "distractor"}
            assert faces.read_face_ids(offsets) == [face.face_id for face in known]
            assert faces.read_subjects(offsets) == [
                None if face.subject is None else (face.subject, face.external_id) for face in known
            ]
        gallery_faces = select(Face.pk).where(Face.role != "distractor").order_by(Face.pk)
        for subject in session.scalars(select(Subject.pk)):
            listed = session.scalars(gallery_faces.where(Face.subject_pk == subject)).all()
            assert sorted(table.list_gallery_faces(subject)) == listed


@pytest.mark.parametrize("merged_changes", [1, 6, 1000])
def test_a_table_follows_every_kind_of_change(
    gallery: GalleryWriter, merged_changes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(face_table, "MIN_MERGED_CHANGES", merged_changes)
    monkeypatch.setattr(face_table, "MERGED_FRACTION", 0)
    resources, rng = gallery.resources, np.random.default_rng(merged_changes)
    key = get_key(resources)
    table = load(resources, key)
    for turn in range(40):
        with writing(resources.database) as session:
            pk = int(rng.choice(gallery.pks))
            collection, face = session.get_one(Collection, "staff"), session.get(Face, pk)
            subjects = session.scalars(select(Subject).order_by(Subject.pk)).all()
            subject, other = (subjects[int(n)] for n in rng.choice(len(subjects), 2, replace=False))
            match turn % 6:
                case 0:
                    erase_faces(session, collection, Face.pk == pk)
                case 1:
                    change_subject(session, "staff", subject.id, SubjectIn(external_id=f"no. {turn}"))
                case 2:
                    change_subject(session, "staff", subject.id, SubjectIn(consent=bool(rng.integers(2))))
                case 3 if subject.consent is not False and other.consent is not False:
                    merge_subjects(session, "staff", subject.id, other.id, needs_consent=False)
                case 4 if face is not None:
                    collection.change += 1
                    face.subject_pk = None if face.subject_pk else subject.pk
                    face.change = collection.change
                case 5 if face is not None:
                    collection.change += 1
                    face.role, face.change = (
                        ("gallery" if face.role == "distractor" else "distractor"),
                        collection.change,
                    )
        if turn % 8 == 7:
            gallery.add({MODEL.id: people(1, 2, seed=turn)[0]}, [f"new {turn}", None])
        with snapshot(resources.database) as session:
            table = update_table(session, key, table)
        check_agreement(resources, table, gallery.pks)
    check_agreement(resources, load(resources, key), gallery.pks)


def test_a_face_is_not_found_from_the_end_of_retention_on_without_any_change(gallery: GalleryWriter) -> None:
    with writing(gallery.resources.database) as session:
        session.execute(update(Subject).where(Subject.id == "p000").values(retain_until=now() + 1000))
    table = load(gallery.resources, get_key(gallery.resources))
    pks = np.array(gallery.pks[:4], np.int64)
    assert list(table.read(pks, now())) == gallery.pks[:4]
    assert list(table.read(pks, now() + 1001)) == gallery.pks[3:4]


def test_a_search_by_vector_reads_no_database(engine: Engine) -> None:
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():  # not the follower's
            statements.append(statement)

    search_in_thread(engine)
    event.listen(Database, "before_cursor_execute", note)
    try:
        answer = search_from_memory(engine)
    finally:
        event.remove(Database, "before_cursor_execute", note)
    assert statements == []
    assert answer == search_in_thread(engine)
    assert list_names(answer)[0] == "p000"


def test_what_this_process_has_changed_counts_from_the_commit_on(engine: Engine, gallery: GalleryWriter) -> None:
    search_from_memory(engine)
    with writing(gallery.resources.database) as session:
        change_subject(session, "staff", "p000", SubjectIn(consent=False))
    with pytest.raises(DatabaseNeeded):
        search_from_memory(engine)
    assert "p000" not in list_names(search_in_thread(engine))


def test_a_collection_that_this_process_has_deleted_is_not_searched(engine: Engine, gallery: GalleryWriter) -> None:
    search_from_memory(engine)
    with writing(gallery.resources.database) as session:
        delete_collection(session, "staff")
    with pytest.raises(DatabaseNeeded):
        search_from_memory(engine)
    with pytest.raises(NotFound):
        search_in_thread(engine)


def test_an_index_that_is_ahead_of_the_names_has_them_read_from_the_database(engine: Engine) -> None:
    served = engine.registry.get(("staff", "identity"))
    assert served is not None
    served.champion.state = IndexState(2, 60)
    engine.registry.put(replace(served, faces=replace(face_table.EMPTY, change=1)))
    with pytest.raises(DatabaseNeeded):
        search_from_memory(engine)
    assert list_names(search_in_thread(engine))[0] == "p000"


def test_a_search_that_begins_while_faces_are_replaced_in_the_index_misses_none(
    engine: Engine, gallery: GalleryWriter
) -> None:
    with engine.use("staff") as serving, ThreadPoolExecutor(1) as threads:
        loaded, ids = serving.loaded_index, np.array(gallery.pks[1:], np.int64)
        with loaded.lock.gen_wlock():
            rows = loaded.index.rows(ids)
            loaded.index.remove(ids)
            answer = threads.submit(search_in_thread, engine)
            time.sleep(0.2)
            loaded.index.add(ids, rows)
        assert len(answer.result(20)["faces"][0]["matches"]) == 10


def test_a_change_that_was_rolled_back_does_not_count(engine: Engine, gallery: GalleryWriter) -> None:
    def refuse_and_fail() -> None:
        with writing(gallery.resources.database) as session:
            change_subject(session, "staff", "p000", SubjectIn(consent=False))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        refuse_and_fail()
    assert list_names(search_from_memory(engine))[0] == "p000"


def test_a_search_that_asks_to_see_a_later_change_waits_in_a_thread(engine: Engine) -> None:
    search_from_memory(engine, change=1)
    with pytest.raises(DatabaseNeeded):
        search_from_memory(engine, change=2)


@pytest.mark.parametrize("params", [{"limit": 51}, {"m": 1}, {"include": ["crop"]}, {"max_latency_ms": 1}], ids=str)
def test_a_search_that_may_take_long_goes_to_a_thread(engine: Engine, params: dict[str, object]) -> None:
    context = SearchContext(engine, None)
    search_by_vector(context, "staff", ROWS[0].tolist(), QuerySearchParams())
    with pytest.raises(DatabaseNeeded):
        search_by_vector(context, "staff", ROWS[0].tolist(), QuerySearchParams.model_validate(params))


def test_a_search_of_a_slow_index_goes_to_a_thread(engine: Engine) -> None:
    with engine.use("staff") as serving:
        serving.loaded_index.search_seconds = 1000.0
    with pytest.raises(DatabaseNeeded):
        search_from_memory(engine)
    for _ in range(80):
        search_in_thread(engine)
    search_from_memory(engine)


def put_labels(
    engine: Engine,
    gallery: GalleryWriter,
    labels: list[LabelledPair],
    are_named: bool = True,
    **ends_of_use: float,
) -> None:
    """Have the engine serve these labels. are_named: whether labels know the names of people other than p000
    ends_of_use: name -> when the person's faces may not be used any more
    """
    served = engine.registry.get(("staff", "identity"))
    assert served is not None
    with reading(gallery.resources.database) as session:
        subjects = {subject.id: subject.pk for subject in session.scalars(select(Subject))}
    names = {pk: name for pk, name in zip(gallery.pks, NAMES, strict=True) if are_named or name == "p000"}
    faces = {
        pk: ConstrainedFace(pk, str(pk), "gallery", subjects.get(names.get(pk, "")), (names.get(pk, ""), None))
        for pk in sorted({pk for label in labels for pk in label[:2]})
    }
    settled = SettledLabels("identity", labels, faces, {subjects[name]: end for name, end in ends_of_use.items()})
    constraints = derive_constraints(settled, served.faces.change, frozenset())
    engine.registry.put(replace(served, constraints=constraints))


def note_change(engine: Engine) -> None:
    """Have the engine serve the next change of the collection, as after an enrolment."""
    served = engine.registry.get(("staff", "identity"))
    assert served is not None
    change = served.faces.change + 1
    served.champion.state = IndexState(change, served.champion.state.vectors)
    parts = {"faces": replace(served.faces, change=change), "constraints": replace(served.constraints, change=change)}
    engine.registry.put(replace(served, **parts))


def count_derivations(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[int]]:
    """Return a list to which each derivation of constraints adds whom it leaves out."""
    derivations: list[frozenset[int]] = []

    def note(settled: SettledLabels, change: int, left_out: frozenset[int]) -> ServedConstraints:
        derivations.append(left_out)
        time.sleep(0.01)  # so that others ask meanwhile
        return derive_constraints(settled, change, left_out)

    monkeypatch.setattr(label_constraints, "derive_constraints", note)
    return derivations


def test_labels_are_derived_without_somebody_whose_time_is_over_once_and_in_a_thread(
    engine: Engine, gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if others are enrolled meanwhile: they change nothing about labels."""
    ends = now() + 1000
    put_labels(engine, gallery, [LabelledPair(gallery.pks[0], gallery.pks[3], False)], p001=ends)
    derivations = count_derivations(monkeypatch)
    assert search_from_memory(engine) == search_in_thread(engine)
    monkeypatch.setattr("app.serving.engine.now", lambda: ends)
    for _ in range(3):
        note_change(engine)
        if not derivations:
            with pytest.raises(DatabaseNeeded):
                search_from_memory(engine)
            assert not derivations
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(search_in_thread, [engine] * 4))
        assert search_from_memory(engine) == search_in_thread(engine)
    assert len(derivations) == 1


def separate_many(engine: Engine, gallery: GalleryWriter, are_joined: bool) -> None:
    """Have labels say that the first person is not in 30 faces: one for each, or one if they are joined."""
    first, *others = gallery.pks[0], *gallery.pks[3:33]
    if not are_joined:
        return put_labels(engine, gallery, [LabelledPair(first, pk, False) for pk in others])
    joined = [LabelledPair(pk, pk + 1, True) for pk in others[:-1]]
    return put_labels(engine, gallery, [LabelledPair(first, others[0], False), *joined], are_named=False)


@pytest.mark.parametrize("are_joined", [False, True])
def test_many_faces_that_labels_rule_out_are_compared_in_a_thread_block_by_block(
    engine: Engine, gallery: GalleryWriter, are_joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate_many(engine, gallery, are_joined)
    monkeypatch.setattr("app.search.enrolled_faces.MAX_IMMEDIATE_FACES", 60, raising=False)
    answer = search_from_memory(engine)
    counts, read_rows = list[int](), LoadedIndex.read_rows
    monkeypatch.setattr(LoadedIndex, "read_rows", lambda index, ids: counts.append(len(ids)) or read_rows(index, ids))
    monkeypatch.setattr("app.search.enrolled_faces.MAX_IMMEDIATE_FACES", 29, raising=False)
    monkeypatch.setattr("app.search.corrections.ROWS_PER_BLOCK", 8, raising=False)
    with pytest.raises(DatabaseNeeded):
        search_from_memory(engine)
    assert not counts
    assert search_in_thread(engine) == answer
    assert counts == [8, 8, 8, 7]


def test_many_faces_of_one_person_are_averaged_in_a_thread_block_by_block(
    engine: Engine, gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the event loop they are not even listed; from then on it has the template."""
    served = engine.find_immediate("staff", "identity", None, None)
    assert served.faces is not None
    people = [int(owner) for owner in served.faces.columns.owners[[0, 3]]]
    served.loaded_index.person_templates = {}
    templates = read_templates(None, served, people, gallery.pks[1])
    monkeypatch.setattr("app.search.enrolled_faces.MAX_IMMEDIATE_FACES", 5, raising=False)
    monkeypatch.setattr("app.search.enrolled_faces.ROWS_PER_BLOCK", 2, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(FaceTable, "list_gallery_faces", lambda *_: pytest.fail("they were listed"))
        with pytest.raises(DatabaseNeeded):
            read_templates(None, served, people, None)
    with reading(gallery.resources.database) as session:
        in_blocks = read_templates(session, served, people, gallery.pks[1])
        of_all = read_templates(session, served, people, None)
    assert [in_blocks[person].count for person in people] == [2, 3]
    for person in people:
        np.testing.assert_allclose(in_blocks[person].total, templates[person].total)
        np.testing.assert_allclose(in_blocks[person].squares, templates[person].squares)
    assert read_templates(None, served, people, None) == of_all


def test_a_search_does_not_go_through_the_labelled_people_to_see_whose_time_is_over() -> None:
    settled = SettledLabels(ends_of_use={pk: float(pk) for pk in range(10, 0, -1)})
    assert [settled.list_ended(at) for at in (0.5, 3.0, 11.0)] == [set(), {1, 2, 3}, set(range(1, 11))]
    assert settled.list_ended(4.1) is settled.list_ended(4.9)


@pytest.mark.parametrize("name", [("ada", "ada"), ("ada", None), ("ada", ""), ("ada", "no. 1"), ("\U0001f600", "é")])
def test_a_name_is_what_it_was_encoded_from(name: tuple[str, str | None]) -> None:
    assert SubjectName.decode(SubjectName(*name).encode()) == name


def test_a_text_column_drops_what_is_not_taken() -> None:
    texts = [b"", b"one", b"two", "drei\u00df".encode(), b"four" * 20]
    column = TextColumn.join([TextColumn.of(texts[:2]), TextColumn.of([]), TextColumn.of(texts[2:])])
    assert [column[i] for i in range(5)] == texts
    assert column.read(np.array([3, 0, 3])) == [texts[3], texts[0], texts[3]]
    taken = column.take(np.array([3, 1, 0]))
    assert [taken[i] for i in range(3)] == [texts[3], texts[1], b""]
    assert len(taken.block) == len(texts[3]) + 3


QUERIES = ("", "?limit=3", "?limit=3&group_by=face&task=identity&source=door", "?fpir=0.5", "?limit=50")
UNUSUAL = (
    "?limit=3&limit=4",
    "?limit=51",
    "?limit=",
    "?limit=x",
    "?sort=1",
    "?fpir=0.1&fmr=0.1",
    "?filter=%7B%7D",
    "?m=1",
)
BODIES = (
    b'{"vector": [1, 2.5]}',
    b'{"vector": []}',
    b'{"vector": [1], "k": 3}',
    b"{",
    b'{"vector": ["1"]}',
    b'{"vector": [NaN]}',
)


@pytest.mark.parametrize("query", [*QUERIES, *UNUSUAL])
def test_a_search_on_the_event_loop_is_answered_as_in_a_thread(
    client: httpx.Client, gallery: GalleryWriter, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/v1/collections/staff/search:by-embedding{query}"
    bodies = [json.dumps({"vector": ROWS[0].tolist()}).encode(), *BODIES]

    headers = {"content-type": "application/json", "x-request-id": "same"}

    def ask() -> list[tuple[int, dict[str, Any], str | None]]:
        answers = [client.post(path, content=body, headers=headers) for body in bodies]
        return [(answer.status_code, answer.json(), answer.headers.get("x-model")) for answer in answers]

    with reading(gallery.resources.database) as session:
        nearest = session.get_one(Face, gallery.pks[0]).face_id  # not the one of an earlier test's collection
    limit = time.monotonic() + 20
    whole = "/v1/collections/staff/search:by-embedding"
    while nearest not in (answer := client.post(whole, content=bodies[0], headers=headers)).text or (
        answer.json()["index_generation"] != "1.1"
    ):
        assert time.monotonic() < limit
    on_the_loop = ask()
    monkeypatch.setattr(vector_routes, "parse_usual", lambda *_: None)
    assert on_the_loop == ask()


def test_short_queries_are_parsed_once() -> None:
    for query in QUERIES:
        params = parse_usual(query[1:].encode(), QuerySearchParams)
        assert params is not None
        assert params is parse_usual(query[1:].encode(), QuerySearchParams)
    assert [parse_usual(query[1:].encode(), QuerySearchParams) for query in UNUSUAL if query != "?limit=51"] == [
        None
    ] * 7


def test_nobody_is_found_where_only_people_without_faces_are_left() -> None:
    """Somebody whose retention has ended may have no face any more; the index returns -1 for each of its faces."""
    ended = SubjectColumns.of([3], [SubjectName("ada", None).encode()], [5.0])
    table = FaceTable(1, replace(NO_FACES, subjects=ended))
    assert len(table.read(np.array([-1, 7], np.int64), at=10.0)) == 0

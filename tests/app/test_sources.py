"""Sources: the follower learns them beside the serving index, and searches compensate for them."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from sqlalchemy import select, update

from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Face, StoredCompensation
from app.deployments.service import list_deployments
from app.galleries.subjects import erase_faces
from app.resources import Resources
from app.serving.compensation.renewal import count_faces, needs_renewal
from app.serving.engine import Engine, open_engine
from app.serving.loaded_index import LoadedIndex
from ml.types import Rows
from tests.databases import delete_collections
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service

DIM = 24
MODEL = make_model("m-sources", dim=DIM)
MASKED = np.full(DIM, 3.0, np.float32)
"""How far masked faces lie from others."""


@pytest.fixture
def resources(lasting: Resources, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resources]:
    monkeypatch.setattr("app.serving.compensation.schedule.MIN_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr("app.serving.compensation.schedule.REST_RATIO", 0.0)
    yield lasting
    delete_collections(lasting.database)
    for file in lasting.indexes.iterdir():
        file.unlink()


@pytest.fixture
def rows(resources: Resources) -> Rows:
    """Forty people with three photos each."""
    return people(40, 3, DIM)[0]


@pytest.fixture
def gallery(resources: Resources, rows: Rows) -> GalleryWriter:
    made = GalleryWriter(resources).make(MODEL)
    made.add({MODEL.id: rows}, people(40, 3, DIM)[1])
    return made


def add_masked(gallery: GalleryWriter, rows: Rows, names: list[str | None]) -> None:
    """Enrol faces with the source `masked`."""
    known = len(gallery.pks)
    gallery.add({MODEL.id: rows + MASKED}, names)
    set_source(gallery, gallery.pks[known:], "masked")


def set_source(gallery: GalleryWriter, pks: list[int], source: str | None) -> None:
    with writing(gallery.resources.database) as session:
        collection = session.get_one(Collection, gallery.collection)
        collection.change += 1
        session.execute(update(Face).where(Face.pk.in_(pks)).values(source=source, change=collection.change))
    gallery.resources.notifier.notify("changes")


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not come true in time"
        time.sleep(0.02)


def serving_index(engine: Engine) -> LoadedIndex:
    with engine.use("staff") as served:
        return served.loaded_index


def read_record(gallery: GalleryWriter) -> StoredCompensation | None:
    with reading(gallery.resources.database) as session:
        return session.get(StoredCompensation, ("staff", "identity", MODEL.id))


def names_of_people() -> list[str | None]:
    return [f"p{i:03}" for i in range(40)]


def test_without_sources_nothing_is_measured_or_moved(gallery: GalleryWriter, rows: Rows) -> None:
    with open_engine(gallery.resources) as engine:
        until(lambda: len(serving_index(engine).index) == len(rows))
        time.sleep(1.0)
        index = serving_index(engine)
        assert index.key.compensation == 0
        assert np.array_equal(index.index.rows(np.array(gallery.pks)), rows)
    assert read_record(gallery) is None


def test_masked_people_are_found_after_a_compensation(gallery: GalleryWriter, rows: Rows) -> None:
    """The index, queries and stored embeddings are corrected alike, and the calibration is measured with them."""
    add_masked(gallery, rows[::3] + 0.05, names_of_people())
    with open_engine(gallery.resources) as engine:
        until(lambda: serving_index(engine).key.compensation > 0)
        with engine.use("staff") as served:
            clean = np.array(gallery.pks[: len(rows)])
            assert np.array_equal(served.loaded_index.index.rows(clean), rows)
            masked = served.loaded_index.index.rows(np.array(gallery.pks[len(rows) :]))
            query = rows[1::3] + MASKED
            corrected = served.correct(query, ["masked"] * 40)
            assert np.abs(masked - rows[::3]).mean() < 0.8 < np.abs(query - rows[1::3]).mean()
            right = [
                (np.searchsorted(clean, served.search(one, 1, allowed=clean).ids[:, 0]) // 3 == np.arange(40)).mean()
                for one in (query, corrected)
            ]
            assert right[0] < 0.5
            assert right[1] > 0.9
            assert np.array_equal(served.correct(query, [None] * 40), query)
            assert np.array_equal(served.correct(query, ["unheard-of"] * 40), query)
            assert served.scores.calibrated_at_count == len(gallery.pks)
    record = read_record(gallery)
    assert record is not None
    assert record.decisions["masked"]["reason"] == "helps"
    with reading(gallery.resources.database) as session:
        measured = session.get_one(Deployment, ("staff", "identity")).measurements[MODEL.id]
    assert measured["compensation"] == record.version


def test_a_compensation_survives_a_restart(gallery: GalleryWriter, rows: Rows) -> None:
    """The snapshot on disk belongs to its version."""
    add_masked(gallery, rows[::3], names_of_people())
    with open_engine(gallery.resources) as engine:
        until(lambda: serving_index(engine).key.compensation > 0)
        before = serving_index(engine)
        vectors = before.index.rows(np.array(gallery.pks))
    with open_engine(gallery.resources) as engine:
        until(lambda: engine.registry.get(("staff", "identity")) is not None)
        after = serving_index(engine)
        assert after.key == before.key
        assert np.array_equal(after.index.rows(np.array(gallery.pks)), vectors)


def test_new_faces_of_a_source_are_corrected_as_they_arrive(gallery: GalleryWriter, rows: Rows) -> None:
    add_masked(gallery, rows[::3], names_of_people())
    with open_engine(gallery.resources) as engine:
        until(lambda: serving_index(engine).key.compensation > 0)
        add_masked(gallery, rows[1:2], ["p000"])
        newest = np.array(gallery.pks[-1:])

        def is_corrected() -> bool:
            ids, stored = serving_index(engine).read_rows(newest)  # unlike `index`, not while a row is being replaced
            return len(ids) == 1 and bool(np.abs(stored[0] - rows[1]).mean() < 0.8)

        until(is_corrected)


def test_a_source_that_is_taken_back_leaves_no_correction(gallery: GalleryWriter, rows: Rows) -> None:
    add_masked(gallery, rows[::3], names_of_people())
    masked = gallery.pks[len(rows) :]
    with open_engine(gallery.resources) as engine:
        until(lambda: serving_index(engine).key.compensation > 0)
        set_source(gallery, masked, None)
        until(lambda: not serving_index(engine).compensation.has_corrections)
        assert np.array_equal(serving_index(engine).index.rows(np.array(masked)), rows[::3] + MASKED)


def test_sources_that_an_earlier_version_measured_are_measured_again(gallery: GalleryWriter, rows: Rows) -> None:
    """It knew no degradations, and guessed no source."""
    add_masked(gallery, rows[::3], names_of_people())

    def is_measured() -> bool:
        record = read_record(gallery)
        return record is not None and {"degradation", "recognised"} <= record.decisions["masked"].keys()

    with open_engine(gallery.resources):
        until(is_measured)
    with writing(gallery.resources.database) as session:
        record = session.get_one(StoredCompensation, ("staff", "identity", MODEL.id))
        fields = {"is_on", "reason", "faces", "shift", "comparison"}
        record.decisions = {
            source: {name: value for name, value in decision.items() if name in fields}
            for source, decision in record.decisions.items()
        }
    assert not is_measured()
    with open_engine(gallery.resources):
        until(is_measured)


def test_an_erasure_empties_the_corrections_that_nobody_measures_again(gallery: GalleryWriter, rows: Rows) -> None:
    """Only those of a champion are. The version of the others is raised, so that no measurement fits the next ones."""
    former, dropped = (make_model(name, dim=DIM) for name in ("m-former", "m-dropped"))
    with writing(gallery.resources.database) as session:
        for model in (former, dropped):
            gallery.resources.models.keep(session, model)
        for model in (MODEL, former, dropped):
            name = {"collection_id": "staff", "task": "identity", "model_id": model.id}
            session.add(StoredCompensation(**name, version=3, data=b"means", decisions={"x": {}}, faces={"x": [6, 6]}))
        deployment = session.get_one(Deployment, ("staff", "identity"))
        measured = {"compensation": 3, "faces": 120, "seen_share": 0.5}
        deployment.previous, deployment.measurements = former.id, {MODEL.id: measured, former.id: measured}
    with writing(gallery.resources.database) as session:
        collection = session.get_one(Collection, "staff")
        assert erase_faces(session, collection, Face.pk == gallery.pks[0]).faces == 1
    with reading(gallery.resources.database) as session:
        stored = {one.model_id: one for one in session.scalars(select(StoredCompensation))}
        deployment = session.get_one(Deployment, ("staff", "identity"))
    for model in (former, dropped):
        one = stored[model.id]
        assert (one.version, one.data, one.decisions, one.faces) == (4, b"", {}, {})
    assert (stored[MODEL.id].version, stored[MODEL.id].data) == (3, b"means")
    assert deployment.measurements == {MODEL.id: measured, former.id: {"seen_share": 0.5}}


def test_a_source_that_does_not_differ_is_left_alone(gallery: GalleryWriter, rows: Rows) -> None:
    gallery.add({MODEL.id: rows[::3]}, [None] * 40)
    set_source(gallery, gallery.pks[len(rows) :], "door")
    with open_engine(gallery.resources) as engine:
        until(lambda: read_record(gallery) is not None)
        assert serving_index(engine).key.compensation == 0
    record = read_record(gallery)
    assert record is not None
    assert record.decisions["door"]["reason"] == "small shift"
    assert record.decisions[""]["reason"] == "reference"


def test_a_source_is_measured_again_when_it_grows_or_is_named() -> None:
    measured = {"": [100, 100], "door": [50, 0]}
    assert not needs_renewal(measured, measured)
    assert not needs_renewal({"": [101, 101], "door": [55, 0]}, measured)
    assert needs_renewal({"": [100, 100], "door": [61, 0]}, measured)
    assert needs_renewal({"": [100, 100], "door": [50, 1]}, measured)
    assert needs_renewal({"": [100, 100], "door": [50, 0], "mask": [5, 0]}, measured)
    assert needs_renewal({}, measured)
    assert not needs_renewal({}, {})
    assert not needs_renewal({"": [100, 100], "door": [4, 0]}, {})
    assert needs_renewal({"": [100, 0], "lobby": [1, 0]}, {"": [100, 0], "gate": [6, 6]})
    assert not needs_renewal({"": [100, 0], "lobby": [1, 0]}, {"": [100, 0], "lobby": [4, 0]})


def test_faces_without_a_source_are_counted_only_beside_others(gallery: GalleryWriter) -> None:
    with reading(gallery.resources.database) as session:
        assert count_faces(session, "staff", 9) == {}
    set_source(gallery, gallery.pks[:7], "door")
    with reading(gallery.resources.database) as session:
        assert count_faces(session, "staff", 9) == {"": [113, 113], "door": [7, 7]}


def test_only_the_largest_sources_are_measured(gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each correction has the square of the embedding's numbers, and an operator may give each face its own source."""
    monkeypatch.setattr("ml.compensation.fit.MAX_SOURCES", 2)
    for number in range(8):
        set_source(gallery, gallery.pks[number * 6 : number * 6 + (7 if number == 7 else 6)], f"s{number}")
    with open_engine(gallery.resources):
        until(lambda: read_record(gallery) is not None)
    record = read_record(gallery)
    assert record is not None
    assert record.decisions.keys() == {"", "s7", "s0"} == record.faces.keys()
    with reading(gallery.resources.database) as session:
        sources = list_deployments(session, gallery.resources.models, "staff")[0].sources
    assert [one.source for one in sources if one.reason == "too many sources"] == [f"s{i}" for i in range(1, 7)]


def test_a_new_source_waits_where_more_can_be_measured(gallery: GalleryWriter) -> None:
    """How many are measured depends on how many numbers the embeddings have: 32 of 512, 100 of 24."""
    measured = [f"s{number}" for number in range(99)]
    set_source(gallery, gallery.pks[:1], "new")
    with writing(gallery.resources.database) as session:
        decisions = {source: {"is_on": False, "reason": "few faces", "faces": 2, "shift": 0.0} for source in measured}
        decisions[""] = {"is_on": False, "reason": "reference", "faces": 100, "shift": 0.0}
        session.add(
            StoredCompensation(collection_id="staff", task="identity", model_id=MODEL.id, data=b"", decisions=decisions)
        )
    with reading(gallery.resources.database) as session:
        sources = list_deployments(session, gallery.resources.models, "staff")[0].sources
    assert [one.reason for one in sources if one.source == "new"] == ["not measured yet"]


def test_sources_over_http(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches state their source, and the deployment says which sources there are and why they are compensated for."""
    monkeypatch.setattr("app.serving.compensation.schedule.MIN_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr("app.serving.compensation.schedule.REST_RATIO", 0.0)
    rows, names = people(40, 3, DIM)
    gallery = GalleryWriter(service.resources).make(MODEL)
    gallery.add({MODEL.id: rows}, names)
    add_masked(gallery, rows[::3], names_of_people())
    deployment = "/v1/collections/staff/deployments/identity"
    until(lambda: any(s["compensated"] for s in service.client.get(deployment).json()["sources"]))
    reference, masked = service.client.get(deployment).json()["sources"]
    assert (reference["source"], reference["faces"], reference["reason"]) == (None, 120, "reference")
    assert (masked["source"], masked["faces"], masked["reason"], masked["people"]) == ("masked", 40, "helps", 40)
    assert 0 < masked["low"] < masked["gain"] < masked["high"]
    until(lambda: read_record(gallery) is not None)
    service.wait_for_indexes()

    body = {"vector": (rows[1] + MASKED).tolist()}
    search = "/v1/collections/staff/search:by-embedding"
    only_clean = {"filter": '{"source": null}', "limit": 1}

    def first_distance(**params: str) -> float:
        answer = service.client.post(search, json=body, params=only_clean | params)
        assert answer.status_code == 200, answer.text
        [match] = answer.json()["faces"][0]["matches"]
        return float(match["distance"])

    until(lambda: first_distance(source="masked") < 0.5 * first_distance())
    assert masked["recognised"] > 0.9
    assert first_distance(source="guess") == first_distance(source="masked")
    body["vector"] = rows[1].tolist()
    assert first_distance(source="guess") == first_distance()
    listed = service.client.get("/v1/collections/staff/faces?source=masked&limit=1").json()["faces"][0]
    face = f"/v1/collections/staff/faces/{listed['face_id']}"
    assert service.client.patch(face, json={"source": "guess"}).status_code == 422, "no face may have this source"
    answer = service.client.post(f"/v1/collections/staff/faces/{listed['face_id']}/search", params=only_clean)
    [match] = answer.json()["faces"][0]["matches"]
    assert match["subject"]["id"] == listed["subject"]["id"]
    refused = service.client.post(search, json=body, params={"source": "two words"})
    assert refused.status_code == 422


def test_a_deployment_without_sources_lists_none(service: Service) -> None:
    service.client.put("/v1/collections/staff").raise_for_status()
    assert service.client.get("/v1/collections/staff/deployments/identity").json()["sources"] == []

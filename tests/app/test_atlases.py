"""Atlases over HTTP: drawn by a job, kept up to date, read as figures, grids and points, and erased with the faces."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from app.atlases.service import _read_coordinates, count_faces, describe_atlas, list_points
from app.atlases.window import WindowEdges
from app.cli.main import app
from app.db.session import reading, writing
from app.db.tables import Atlas, Collection, Face, FaceCoordinates, Job, now
from app.errors import Busy
from app.galleries.atlas_updates import enqueue_update, list_outdated_atlases
from app.queue.messages import DrawAtlas
from ml.atlas import PcaMap, tsne_map
from tests.databases import remove_test_data
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service
from workers.atlas import atlas_store, placement
from workers.context import Interrupted, JobContext
from workers.handlers.draw_atlas import draw_deployment_atlas

BASE = "/v1/collections/staff/deployments/identity/atlas"
on_sqlite = pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


@pytest.fixture(scope="module", autouse=True)
def no_updates() -> Iterator[None]:
    """Keep the schedule of a worker from updating atlases: the tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.schedule.ATLAS_SECONDS", float("inf"))
        yield


def make_gallery(service: Service, photos: int = 4) -> tuple[GalleryWriter, np.ndarray, list[str]]:
    """A collection of 12 people, its embeddings and its face ids."""
    gallery = GalleryWriter(service.resources).make(make_model("m"))
    rows, names = people(12, photos)
    return gallery, rows, gallery.add({"m": rows}, names)


def draw(service: Service, **body: Any) -> dict[str, Any]:
    job = service.wait(service.client.post(f"{BASE}:draw", json=body or None))
    assert job["state"] == "succeeded", job["problem"]
    return dict(job["result"])


def enqueue_updates(session: Session) -> int:
    return sum(enqueue_update(session, atlas) for atlas in list_outdated_atlases(session))


def update_atlas(service: Service) -> dict[str, Any]:
    """Do what the schedule of a worker does, and wait for the job."""
    with writing(service.resources.database) as session:
        assert enqueue_updates(session) <= 1, "the schedule may have been faster"
        job = session.scalar(select(Job).where(Job.kind == DrawAtlas.kind).order_by(Job.id.desc()).limit(1))
        assert enqueue_updates(session) == 0, "one is on its way"
    service.resources.notifier.notify("jobs")
    answer = service.client.get(f"/v1/jobs/{job.id}")
    until = time.monotonic() + 60
    while not answer.json()["finished_at"]:
        assert time.monotonic() < until, answer.text
        time.sleep(0.03)
        answer = service.client.get(f"/v1/jobs/{job.id}")
    assert answer.json()["state"] == "succeeded", answer.json()["problem"]
    return dict(answer.json()["result"])


def get(service: Service, path: str = "", **query: Any) -> dict[str, Any]:
    answer = service.client.get(BASE + path, params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def read_points(service: Service) -> dict[str, tuple[float, float]]:
    return {p["face_id"]: (p["x"], p["y"]) for p in get(service, "/points")["points"]}


def test_the_atlas_shows_the_principal_axes(service: Service) -> None:
    _, rows, faces = make_gallery(service)
    result = draw(service)
    expected = PcaMap.fit(rows)
    assert (result["faces"], result["placed"], result["fitted"], result["model"]) == (48, 48, True, "m")
    plane = expected.locate(rows)
    points = read_points(service)
    assert np.allclose([points[face] for face in faces], plane, atol=1e-6)
    atlas = get(service)
    assert (atlas["faces"], atlas["method"], atlas["model"], atlas["is_current"]) == (48, "pca", "m", True)
    assert atlas["explained_variance"] == pytest.approx(expected.explained_variance)
    assert atlas["neighbours"]["kept"] > 2 * atlas["neighbours"]["chance"]
    bounds = [atlas["bounds"][name] for name in ("x_min", "x_max", "y_min", "y_max")]
    assert np.allclose(bounds, [*(f(plane[:, 0]) for f in (min, max)), *(f(plane[:, 1]) for f in (min, max))])
    density = get(service, "/density", bins=7)
    counts, _, _ = np.histogram2d(plane[:, 1], plane[:, 0], bins=7)
    assert (density["faces"], density["counts"]) == (48, counts.astype(int).tolist())
    half = get(service, "/density", bins=2, x_max=0.0)
    assert half["faces"] == np.sum(plane[:, 0] <= 0)
    assert sum(map(sum, half["counts"])) == half["faces"]


@on_sqlite
def test_a_large_window_shows_an_even_sample_that_stays(service: Service) -> None:
    gallery, rows, _ = make_gallery(service, photos=20)
    gallery.add({"m": rows[:5]}, [None] * 5, role="distractor")
    draw(service)
    answer = get(service, "/points", limit=40)
    assert (answer["faces"], len(answer["points"])) == (245, 40)
    shown = {point["face_id"] for point in answer["points"]}
    assert len({point["subject"]["id"] for point in answer["points"] if point["subject"]}) >= 10, "spread over people"
    right = get(service, "/points", limit=40, x_min=0.0)
    assert {p["face_id"] for p in answer["points"] if p["x"] >= 0} <= {p["face_id"] for p in right["points"]}
    everything = get(service, "/points", limit=1000)["points"]
    assert shown < {point["face_id"] for point in everything}
    assert sum(p["role"] == "distractor" and p["subject"] is None for p in everything) == 5


@on_sqlite
def test_new_faces_are_placed_on_the_map_that_is_there(service: Service) -> None:
    gallery, rows, _ = make_gallery(service)
    draw(service)
    before, new = read_points(service), people(12, 1, seed=3)[0]
    faces = gallery.add({"m": new}, [None] * 12)
    assert not get(service)["is_current"]
    result = update_atlas(service)
    assert (result["faces"], result["placed"], result["fitted"]) == (60, 12, False)
    after = read_points(service)
    assert {face: after[face] for face in before} == before
    assert np.allclose([after[face] for face in faces], PcaMap.fit(rows).locate(new), atol=1e-6)
    assert get(service)["is_current"]
    with writing(service.resources.database) as session:
        assert enqueue_updates(session) == 0
    gallery.add({"m": people(12, 6, seed=4)[0]}, [None] * 72)
    assert update_atlas(service)["fitted"], "the gallery has more than doubled"


@on_sqlite
def test_another_model_gets_another_map(service: Service) -> None:
    gallery = GalleryWriter(service.resources).make(make_model("m"), previous=make_model("n", seed=1))
    rows, names = people(12, 4)
    turned = (rows @ np.linalg.qr(np.random.default_rng(2).standard_normal((8, 8)))[0] * 2).astype(np.float32)
    faces = gallery.add({"m": rows, "n": turned}, names)
    draw(service, seed=5)
    gallery.point(champion="n", previous="m")
    assert not get(service)["is_current"]
    result = update_atlas(service)
    assert (result["fitted"], result["model"]) == (True, "n")
    points = read_points(service)
    assert np.allclose([points[face] for face in faces], PcaMap.fit(turned).locate(turned), atol=1e-5)
    assert (get(service)["model"], get(service)["version"], get(service)["seed"]) == ("n", 2, 5)
    with reading(service.resources.database) as session:
        assert len(session.scalars(select(Atlas)).all()) == 1


def test_erased_faces_leave_no_coordinates(service: Service) -> None:
    _, _, faces = make_gallery(service)
    draw(service)
    service.client.delete(f"/v1/collections/staff/faces/{faces[0]}").raise_for_status()
    receipt = service.client.delete("/v1/collections/staff/subjects/p001").json()
    assert (receipt["faces"], receipt["coordinates"]) == (4, 4)
    points = read_points(service)
    assert set(points) == set(faces[1:4] + faces[8:])
    assert get(service)["faces"] == 43
    with reading(service.resources.database) as session:
        alive = select(Face.pk)
        assert session.scalars(select(FaceCoordinates.face_pk).where(FaceCoordinates.face_pk.not_in(alive))).all() == []
    service.client.delete("/v1/collections/staff").raise_for_status()
    with reading(service.resources.database) as session:
        for table in (Atlas, FaceCoordinates):
            assert session.scalar(select(func.count()).select_from(table)) == 0


@on_sqlite
@pytest.mark.parametrize("left", [0, 2, 3])
def test_an_update_deletes_an_atlas_whose_gallery_has_too_few_faces_left(service: Service, left: int) -> None:
    """It sums up the faces that were erased. With three faces it is updated."""
    gallery = GalleryWriter(service.resources).make(make_model("m"))
    rows, _ = people(2, 2)
    gallery.add({"m": rows}, ["ann"] * (4 - left) + ["bob"] * left)
    draw(service)
    service.client.delete("/v1/collections/staff/subjects/ann").raise_for_status()
    result = update_atlas(service)
    assert result.get("faces") == (3 if left == 3 else None)
    with reading(service.resources.database) as session:
        assert session.scalar(select(func.count()).select_from(Atlas)) == (left == 3)
    with writing(service.resources.database) as session:
        assert enqueue_updates(session) == 0


@on_sqlite
def test_an_atlas_is_drawn_anew_after_an_erasure(service: Service) -> None:
    """From axes that were fitted to an erased face and from the embeddings that are left, its own could be computed."""
    gallery, rows, faces = make_gallery(service)
    draw(service)
    service.client.delete(f"/v1/collections/staff/faces/{faces[0]}").raise_for_status()
    result = update_atlas(service)
    assert (result["faces"], result["placed"], result["fitted"]) == (47, 47, True)
    points = read_points(service)
    assert np.allclose([points[face] for face in faces[1:]], PcaMap.fit(rows[1:]).locate(rows[1:]), atol=1e-6)
    gallery.add({"m": rows[:1]}, [None])
    assert not update_atlas(service)["fitted"], "nobody was erased since"


@on_sqlite
def test_an_atlas_that_an_earlier_version_drew_is_drawn_anew(service: Service) -> None:
    """It stored the mean of the embeddings: migration 0029 empties it, an older worker may have written it since."""
    gallery, rows, faces = make_gallery(service)
    draw(service)
    for projection, values in ((b"", {"fitted_faces": 0, "change": -1}), (np.ones(2 + 3 * 8).tobytes(), {})):
        with writing(service.resources.database) as session:
            session.execute(update(Atlas).values(projection=projection, **values))
        gallery.add({"m": rows[:1]}, [None])
        assert update_atlas(service)["fitted"]
        assert get(service)["is_current"]
    assert set(faces) < set(read_points(service))


@on_sqlite
def test_reading_an_atlas_takes_turns(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request reads all coordinates; all together took the cores of the service."""
    make_gallery(service)
    draw(service)
    turns = threading.BoundedSemaphore(1)
    monkeypatch.setattr("app.db.statement_limits.TURNS", turns)
    monkeypatch.setattr("app.db.statement_limits.MAX_TURN_WAIT_SECONDS", 0.05)
    reads = (
        lambda session: describe_atlas(session, "staff", "identity"),
        lambda session: count_faces(session, "staff", "identity", WindowEdges(), 4),
        lambda session: list_points(session, "staff", "identity", WindowEdges(), 1),
    )
    for read in reads:
        with reading(service.resources.database) as session:
            with turns, pytest.raises(Busy):
                read(session)
            assert read(session).faces == 48


@pytest.mark.parametrize("wait", ["for a turn", "for the faces of the window"])
def test_points_name_people_as_they_are_after_the_wait(
    service: Service, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points were read as they were before the wait for a turn, and named people who had refused or were erased."""
    make_gallery(service)
    draw(service)
    subjects = "/v1/collections/staff/subjects"
    listed = [subject["id"] for subject in service.client.get(subjects).json()["subjects"]]
    refusing, erased, merged, kept = listed[:4]

    def change_people() -> None:
        for answer in (
            service.client.patch(f"{subjects}/{refusing}", json={"consent": False}),
            service.client.delete(f"{subjects}/{erased}"),
            service.client.post(f"{subjects}/{merged}:merge", json={"into": kept}),
        ):
            assert answer.status_code == 200, answer.text

    class ChangingTurns:
        def acquire(self, timeout: float) -> bool:
            change_people()
            return True

        def release(self) -> None:
            pass

    def read_coordinates(*arguments: Any) -> Any:
        coordinates = _read_coordinates(*arguments)
        change_people()
        return coordinates

    if wait == "for a turn":
        monkeypatch.setattr("app.db.statement_limits.TURNS", ChangingTurns())
    else:
        monkeypatch.setattr("app.atlases.service._read_coordinates", read_coordinates)
    answer = service.client.get(f"{BASE}/points").json()
    named = [point["subject"]["id"] for point in answer["points"] if point["subject"]]
    assert sorted(set(named)) == sorted(listed[3:])
    assert named.count(kept) == 8


def test_an_atlas_can_be_deleted(service: Service) -> None:
    make_gallery(service)
    draw(service)
    assert service.client.delete(BASE).status_code == 204
    assert service.client.get(BASE).status_code == 404
    assert service.client.delete(BASE).status_code == 404
    with writing(service.resources.database) as session:
        session.execute(update(Collection).values(change=99))
        assert enqueue_updates(session) == 0, "it is no longer kept up to date"


@on_sqlite
def test_an_interrupted_drawing_is_not_shown_and_leaves_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_gallery(service)
    draw(service)
    before = read_points(service)
    message = DrawAtlas(collection="staff", task="identity", method="pca")
    with writing(service.resources.database) as session:
        row = Job(kind=message.kind, body=message.model_dump(), queue="nobody", lock=None)
        session.add(row)
    context = JobContext(row.id, "test", service.resources)

    def store_and_stop(*arguments: Any) -> int:
        context.interrupted.set()
        return atlas_store.store_coordinates(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("workers.handlers.draw_atlas.store_coordinates", store_and_stop)
        with pytest.raises(Interrupted):
            draw_deployment_atlas(message, context)
    assert read_points(service) == before
    context.interrupted.clear()
    draw_deployment_atlas(message, context)
    with reading(service.resources.database) as session:
        assert session.scalar(select(func.count()).select_from(Atlas)) == 1
        assert session.scalar(select(func.count()).select_from(FaceCoordinates)) == 48


@on_sqlite
@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_first_drawing_that_ends_early_leaves_no_axes_and_no_places(
    service: Service, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """From either, and from the embeddings that are left, those of somebody who is erased later could be computed."""
    make_gallery(service)
    message = DrawAtlas(collection="staff", task="identity", method="pca")
    with writing(service.resources.database) as session:
        row = Job(kind=message.kind, body=message.model_dump(), queue="training", lock=message.lock, state="running")
        row.worker, row.lease_until = "test", now() + 60
        session.add(row)
    context = JobContext(row.id, "test", service.resources)

    def store_and_stop(*arguments: Any) -> int:
        atlas_store.store_coordinates(*arguments)
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr("workers.handlers.draw_atlas.store_coordinates", store_and_stop)
        with pytest.raises(Interrupted):
            draw_deployment_atlas(message, context)
    with writing(service.resources.database) as session:
        assert session.scalars(select(Atlas.projection)).all() == [b""]
        assert enqueue_updates(session) == 0, "it is being drawn"
        job = session.get_one(Job, row.id)
        job.state, job.finished_at = state, now()
    service.client.delete("/v1/collections/staff/subjects/p001").raise_for_status()
    assert update_atlas(service) == {}
    with writing(service.resources.database) as session:
        for table in (Atlas, FaceCoordinates):
            assert session.scalar(select(func.count()).select_from(table)) == 0
        assert enqueue_updates(session) == 0


@on_sqlite
def test_an_update_does_not_wait_where_only_a_drawing_was_cancelled(service: Service) -> None:
    """The finished atlas keeps axes that were fitted to an erased face."""
    _, _, faces = make_gallery(service)
    draw(service)
    with writing(service.resources.database) as session:
        session.execute(update(Job).where(Job.kind == DrawAtlas.kind).values(state="cancelled"))
    service.client.delete(f"/v1/collections/staff/faces/{faces[0]}").raise_for_status()
    assert update_atlas(service)["fitted"]


@on_sqlite
def test_the_fit_takes_a_sample_and_all_faces_are_placed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "SAMPLE_BYTES", 30 * 8 * 4)
    make_gallery(service)
    assert draw(service)["neighbours"]["faces"] == 30
    first = read_points(service)
    draw(service)
    assert len(first) == 48
    assert read_points(service) == first, "the same sample each time"


@on_sqlite
def test_tsne_is_an_option_and_places_new_faces(service: Service) -> None:
    pytest.importorskip("openTSNE", exc_type=ImportError)
    gallery, rows, _ = make_gallery(service, photos=8)
    result = draw(service, method="tsne", seed=3)
    assert (result["faces"], result["explained_variance"]) == (96, None)
    before = read_points(service)
    [face] = gallery.add({"m": rows[:1] + 0.01}, ["p000"])
    assert update_atlas(service)["fitted"] is False
    after = read_points(service)
    assert {other: after[other] for other in before} == before
    renamed = next(p["face_id"] for p in get(service, "/points")["points"] if p["subject"]["id"] == "p002")
    service.client.patch(f"/v1/collections/staff/faces/{renamed}", json={"subject": "p003"}).raise_for_status()
    assert update_atlas(service)["placed"] == 0, "a name moves no face"
    assert read_points(service) == after
    names = {p["face_id"]: p["subject"]["id"] for p in get(service, "/points")["points"]}
    nearest = min(before, key=lambda other: np.hypot(*np.subtract(after[other], after[face])))
    assert names[nearest] == "p000"
    assert get(service)["explained_variance"] is None


@on_sqlite
def test_wrong_requests_are_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = GalleryWriter(service.resources).make(make_model("m"))
    gallery.add({"m": people(2, 1)[0]}, [None] * 2)
    job = service.wait(service.client.post(f"{BASE}:draw"))
    assert (job["state"], job["problem"]["code"]) == ("failed", "NothingToMap")
    gallery.add({"m": np.repeat(people(2, 1)[0][:1], 9, axis=0)}, [None] * 9)
    gallery.remove(gallery.pks[1:2])
    job = service.wait(service.client.post(f"{BASE}:draw"))
    assert job["problem"]["code"] == "NothingToMap", "all faces are equal"
    assert service.client.get(BASE).status_code == 404
    for body in ({"method": "umap"}, {"seed": -1}, {"bins": 3}):
        assert service.client.post(f"{BASE}:draw", json=body).status_code == 422
    monkeypatch.setattr(tsne_map, "find_spec", lambda name: None)
    refused = service.client.post(f"{BASE}:draw", json={"method": "tsne"})
    assert (refused.status_code, refused.json()["code"]) == (409, "NotInstalled")
    gallery.add({"m": people(5, 1)[0]}, [None] * 5)
    draw(service)
    for query in ({"x_min": 2, "x_max": 1}, {"y_min": "nan"}, {"bins": 0}, {"bins": 257}):
        assert service.client.get(f"{BASE}/density", params=query).status_code == 422
    for query in ({"limit": 0}, {"limit": 10_001}, {"y_min": 5, "y_max": 4}):
        assert service.client.get(f"{BASE}/points", params=query).status_code == 422
    assert get(service, "/density", x_min=50, x_max=60)["faces"] == 0
    reader = service.key("reader")
    assert service.client.post(f"{BASE}:draw", headers=reader).status_code == 403
    assert service.client.delete(BASE, headers=reader).status_code == 403
    for path in ("", "/density", "/points"):
        assert service.client.get(BASE + path, headers=reader).status_code == 200
        other = BASE.replace("staff", "nobody") + path
        assert service.client.get(other).status_code == 404
    assert service.client.post(BASE.replace("identity", "age") + ":draw").status_code == 404


@on_sqlite
def test_the_command_draws_the_map_and_saves_a_picture(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, rows, _ = make_gallery(service)
    monkeypatch.setenv("LIKENESS_URL", service.url)
    monkeypatch.setenv("LIKENESS_KEY", service.key("operator")["Authorization"].removeprefix("Bearer "))
    picture = tmp_path / "map.svg"
    run = CliRunner().invoke(app, ["atlas", "staff", "--svg", str(picture)])
    assert run.exit_code == 0, run.output
    assert "48 faces by pca of model m" in run.output
    drawn = ElementTree.parse(picture).getroot()
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "staff, identity: 48 faces, coloured by subject"
    assert texts[1:9] == [f"p{number:03}" for number in range(8)], "as many people as there are colours"
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 48 + 8
    gallery.add({"m": rows[:2]}, [None] * 2, role="distractor")
    again = CliRunner().invoke(app, ["atlas", "staff"])
    assert "have changed since" in again.output, "the map is taken as it is"
    monkeypatch.setattr("app.cli.atlas.MAX_POINTS", 20)
    run = CliRunner().invoke(app, ["atlas", "staff", "--redraw", "--svg", str(picture), "--colour", "role"])
    assert "50 faces" in run.output
    drawn = ElementTree.parse(picture).getroot()
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}rect"))) > 10, "the grid stands for the other faces"
    failed = CliRunner().invoke(app, ["atlas", "nobody"])
    assert (failed.exit_code, "ResourceNotFound" in failed.output) == (1, True)

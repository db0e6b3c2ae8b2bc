"""Simulated sources: the follower degrades stored crops of the reference, and corrects a poor source by them."""

import threading
import time
from collections.abc import Iterator
from functools import cache

import cv2
import numpy as np
import pytest
from sqlalchemy import update

from app.db.session import reading, writing
from app.db.tables import Collection, Face, StoredCompensation
from app.resources import Resources
from app.serving.compensation.sampled_faces import SampledFaces
from app.serving.compensation.simulation import simulate_faces
from app.serving.engine import open_engine
from app.storage.blob_store import Blobs
from ml.compensation import NO_SOURCE, SimulatedFaces, degrade_crops
from ml.compensation.degradations import DEGRADATIONS
from ml.images import encode_png
from ml.model import Model, Recipe
from ml.types import Crops, Rows
from tests.app.test_sources import serving_index, until
from tests.databases import delete_collections
from tests.rows import GalleryWriter, make_model

GOOD, POOR, DIM = 310, 30, 24
POOR_NAME = "12 pixels"


@cache
def draw_crops() -> Crops:
    """Smooth grey patterns: each shows somebody else. The last POOR of them are degraded."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (GOOD + POOR, 24, 14), dtype=np.uint8)
    crops = [cv2.resize(one, (100, 170), interpolation=cv2.INTER_CUBIC) for one in coarse]
    noise = rng.normal(0, 12, (GOOD + POOR, 170, 100))
    drawn = np.asarray(np.clip(np.stack(crops) + noise, 0, 255), np.uint8)
    drawn[GOOD:] = degrade_crops(drawn[GOOD:], POOR_NAME)
    return drawn


@cache
def encode_crops() -> list[bytes]:
    return [encode_png(crop) for crop in draw_crops()]


@cache
def make_unit_model() -> Model:
    """A random projection of LBP about the mean of some good crops, to unit length."""
    model = make_model("m-simulated", dim=DIM)
    embedder = model.embedder
    embedder.unit = True  # type: ignore[attr-defined]
    mean = Recipe().describe({"grey": draw_crops()[:64]}).mean(0)
    embedder.learned = embedder.learned | {"offset": embedder.learned["projection"] @ mean}
    return model


@cache
def embed_drawn_crops() -> Rows:
    return make_unit_model().embed_crops({"grey": draw_crops()})["identity"]


@pytest.fixture
def resources(lasting: Resources, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resources]:
    monkeypatch.setattr("app.serving.compensation.schedule.MIN_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr("app.serving.compensation.schedule.REST_RATIO", 0.0)
    yield lasting
    delete_collections(lasting.database)
    for file in lasting.indexes.iterdir():
        file.unlink()


@pytest.fixture
def model() -> Model:
    return make_unit_model()


@pytest.fixture
def few_degradations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try three degradations instead of fourteen, where the choice among them is not tested."""
    few = {name: DEGRADATIONS[name] for name in (POOR_NAME, "38 pixels", "eyes covered")}
    monkeypatch.setattr("ml.compensation.simulation.DEGRADATIONS", few)


@pytest.fixture
def gallery(resources: Resources, model: Model) -> GalleryWriter:
    """Good crops without a source, and poor ones from the gate, all of them unnamed and stored."""
    made = GalleryWriter(resources).make(model)
    made.add({model.id: embed_drawn_crops()}, [None] * (GOOD + POOR))
    with reading(resources.database) as session:
        image_ids = [session.get_one(Face, pk).image_id for pk in made.pks]
    files = [(Blobs.crop(name, 0, "grey"), data) for name, data in zip(image_ids, encode_crops(), strict=True)]
    resources.blobs.put(made.collection, files)
    with writing(resources.database) as session:
        collection = session.get_one(Collection, made.collection)
        collection.change += 1
        poor = update(Face).where(Face.pk.in_(made.pks[GOOD:]))
        session.execute(poor.values(source="gate", change=collection.change))
    return made


def sample(gallery: GalleryWriter) -> SampledFaces:
    rows = embed_drawn_crops()
    sources = np.array([NO_SOURCE] * GOOD + ["gate"] * POOR)
    return SampledFaces(rows, sources, np.full(len(rows), -1), np.array(gallery.pks))


def test_a_poor_source_is_corrected_by_simulated_faces(gallery: GalleryWriter, model: Model) -> None:
    with open_engine(gallery.resources) as engine:
        until(lambda: serving_index(engine).key.compensation > 0, seconds=60)
    with reading(gallery.resources.database) as session:
        record = session.get_one(StoredCompensation, ("staff", "identity", model.id))
    decision = record.decisions["gate"]
    assert (decision["is_on"], decision["reason"]) == (True, "simulated")
    assert decision["degradation"] in {"10 pixels", "12 pixels", "15 pixels"}


@pytest.mark.usefixtures("few_degradations")
def test_one_process_of_two_simulates(gallery: GalleryWriter, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one waits, and finds the sources measured."""
    simulated: list[str] = []

    def simulate_slowly(resources: Resources, model: Model, faces: SampledFaces) -> dict[str, SimulatedFaces]:
        simulated.append(model.id)
        time.sleep(1.0)
        return simulate_faces(resources, model, faces)

    monkeypatch.setattr("app.serving.compensation.renewal.simulate_faces", simulate_slowly)
    with open_engine(gallery.resources) as one, open_engine(gallery.resources) as other:
        until(lambda: all(serving_index(engine).key.compensation > 0 for engine in (one, other)), seconds=60)
    assert simulated == [model.id]


@pytest.mark.usefixtures("few_degradations")
def test_the_stored_crops_are_degraded_and_described(gallery: GalleryWriter, model: Model) -> None:
    faces = sample(gallery)
    simulated = simulate_faces(gallery.resources, model, faces)["gate"]
    crops = degrade_crops(draw_crops()[simulated.faces], simulated.degradation)
    assert len(simulated.faces) == GOOD
    assert np.allclose(simulated.rows, model.embed_crops({"grey": crops})["identity"], atol=1e-6)


@pytest.mark.usefixtures("few_degradations")
def test_erased_faces_and_missing_crops_are_left_out(
    gallery: GalleryWriter, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    faces = sample(gallery)
    with reading(gallery.resources.database) as session:
        image_id = session.get_one(Face, gallery.pks[7]).image_id
    gallery.remove(gallery.pks[:5])
    gallery.resources.blobs.remove(gallery.collection, [Blobs.crop(image_id, 0, "grey")])
    simulated = simulate_faces(gallery.resources, model, faces)["gate"]
    assert sorted(set(range(GOOD)) - set(simulated.faces.tolist())) == [0, 1, 2, 3, 4, 7]
    assert np.isfinite(simulated.rows).all()
    assert "sources.crops_missing model=m-simulated faces=6" in caplog.text


def test_without_crops_sources_are_not_simulated(gallery: GalleryWriter, model: Model) -> None:
    faces = sample(gallery)
    gallery.remove(gallery.pks[:GOOD])
    assert simulate_faces(gallery.resources, model, faces) == {}


def test_new_faces_are_served_while_sources_are_simulated(
    gallery: GalleryWriter, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation takes many seconds. The follower goes on meanwhile."""
    has_begun, may_end = threading.Event(), threading.Event()

    def wait_to_simulate(*_: object) -> dict[str, SimulatedFaces]:
        has_begun.set()
        assert may_end.wait(60)
        return {}

    monkeypatch.setattr("app.serving.compensation.renewal.simulate_faces", wait_to_simulate)
    with open_engine(gallery.resources) as engine:
        assert has_begun.wait(60)
        gallery.add({model.id: np.ones((1, DIM), np.float32)}, [None])
        until(lambda: gallery.pks[-1] in serving_index(engine).read_ids(), seconds=10)
        may_end.set()


def test_embeddings_of_any_length_are_not_simulated(gallery: GalleryWriter, model: Model) -> None:
    faces = sample(gallery)
    longer = SampledFaces(2 * faces.rows, faces.sources, faces.people, faces.pks)
    assert simulate_faces(gallery.resources, model, longer) == {}

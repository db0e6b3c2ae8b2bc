"""A person is suggested for a cluster only where searches would name that person, with sources corrected as they do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from app.db.session import reading, writing
from app.db.tables import Deployment, Face, FaceCluster, StoredCompensation, Subject
from app.galleries.measurements import forget_corrections
from app.publishing.pointers import lock_collection
from app.queue.jobs import enqueue
from app.queue.messages import DiscoverPeople
from app.resources import Resources
from app.serving.calibration.gallery_calibration import measure_gallery
from ml.compensation import SourceCompensation, fit_compensation
from ml.model import Model
from ml.people_discovery.discovery import MIN_PROBABILITY
from ml.types import Ids, Rows
from tests.gallery import context
from tests.rows import GalleryWriter, make_model
from workers.context import JobContext
from workers.discovery.cluster_store import NewCluster
from workers.discovery.gallery import read_gallery
from workers.discovery.suggestions import confirm_suggestions
from workers.handlers.discover_people import discover_people_in_collection

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PEOPLE, PHOTOS, DIM = 300, 3, 5
MODEL = make_model("m-few", dim=DIM)
WIDE_DIM = 32
WIDE = make_model("m-wide", dim=WIDE_DIM)


def draw(people: int, photos: int, seed: int, dim: int = DIM) -> Rows:
    """Draw (people * photos, dim) embeddings. DIM has few directions, so that a stranger has somebody near."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((people, 1, dim))
    return (centres + 0.12 * rng.standard_normal((people, photos, dim))).reshape(-1, dim).astype(np.float32)


@pytest.fixture
def gallery(resources: Resources) -> GalleryWriter:
    made = GalleryWriter(resources).make(MODEL)
    rows = draw(PEOPLE, PHOTOS, 0)
    made.add({MODEL.id: rows}, [f"p{number // PHOTOS}" for number in range(len(rows))])
    measure(resources)
    return made


def measure(resources: Resources, model: Model = MODEL) -> None:
    measured = measure_gallery(resources, "staff", "identity", model)
    with writing(resources.database) as session:
        session.get_one(Deployment, ("staff", "identity")).measurements = {model.id: measured}


def blur(rows: Rows) -> Rows:
    """Return what a poor camera makes of embeddings: it moves them away, and whoever they show, nearer together."""
    return np.float32(0.4) * rows + np.float32(3.0)


def add_of_source(gallery: GalleryWriter, rows: Rows, names: Sequence[str | None], source: str) -> Ids:
    """Enrol faces of a source, and return their pks."""
    gallery.add({WIDE.id: rows}, names)
    pks = gallery.pks[-len(rows) :]
    with writing(gallery.resources.database) as session:
        session.execute(update(Face).where(Face.pk.in_(pks)).values(source=source))
    return np.array(pks, np.int64)


@dataclass(frozen=True, eq=False)
class TwoCameras:
    """400 people of a clear camera and 400 others of a poor one, whose corrections are stored and measured with.

    clear, poor: (n, d) embeddings as the model makes them; clear_pks, poor_pks: (n,) of their faces
    """

    gallery: GalleryWriter
    clear: Rows
    poor: Rows
    clear_pks: Ids
    poor_pks: Ids
    corrections: SourceCompensation


@pytest.fixture
def cameras(resources: Resources) -> TwoCameras:
    gallery = GalleryWriter(resources).make(WIDE)
    clear, poor = draw(400, 2, 0, WIDE_DIM), blur(draw(400, 2, 2, WIDE_DIM))
    clear_pks = add_of_source(gallery, clear, [f"p{number // 2}" for number in range(800)], "door")
    poor_pks = add_of_source(gallery, poor, [f"q{number // 2}" for number in range(800)], "gate")
    corrections = fit_compensation(np.concatenate([clear, poor]), np.repeat(["door", "gate"], 800))
    name = {"collection_id": "staff", "task": "identity", "model_id": WIDE.id}
    with writing(resources.database) as session:
        session.add(StoredCompensation(**name, version=1, data=corrections.to_bytes()))
    measure(resources, WIDE)
    return TwoCameras(gallery, clear, poor, clear_pks, poor_pks, corrections)


def discover(resources: Resources) -> dict[str, Any]:
    with writing(resources.database) as session:
        message = DiscoverPeople(collection="staff", min_probability=MIN_PROBABILITY)
        job = enqueue(session, message)
    return discover_people_in_collection(message, context(resources, job))


def list_suggested(resources: Resources) -> list[str | None]:
    with reading(resources.database) as session:
        pks = [cluster.suggested_subject_pk for cluster in session.query(FaceCluster)]
        return [None if pk is None else session.get_one(Subject, pk).id for pk in pks]


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_strangers_are_suggested_nobody(
    resources: Resources, gallery: GalleryWriter, is_confirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers = 200
    gallery.add({MODEL.id: draw(strangers, 2, 1)}, [None] * 2 * strangers)
    if not is_confirmed:
        monkeypatch.setattr("workers.handlers.discover_people.confirm_suggestions", lambda _, __, clusters: clusters)
    result = discover(resources)
    wrong = sum(name is not None for name in list_suggested(resources))
    assert wrong == result["with_suggested_subject"]
    assert (wrong <= 0.02 * strangers) if is_confirmed else (wrong > 0.1 * strangers)


def test_people_with_a_name_are_suggested_for_their_other_faces(resources: Resources, gallery: GalleryWriter) -> None:
    others = draw(PEOPLE, PHOTOS, 0).reshape(PEOPLE, PHOTOS, DIM)[:60, 0] + np.float32(0.02)
    gallery.add({MODEL.id: others}, [None] * 60)
    discover(resources)
    suggested = list_suggested(resources)
    assert len(suggested) > 10
    assert set(suggested) <= {f"p{number}" for number in range(60)}


def test_strangers_of_a_poor_camera_are_suggested_nobody(resources: Resources, cameras: TwoCameras) -> None:
    """Their embeddings lie near to those of all people of this camera, until they are corrected."""
    rows = blur(draw(400, 1, 1, WIDE_DIM))
    strangers = add_of_source(cameras.gallery, rows, [None] * len(rows), "gate")
    reader = JobContext("none", "w", resources)
    read = read_gallery(reader, "staff", MIN_PROBABILITY)
    named, subjects = read.pks[read.is_named], read.subjects[read.is_named]
    nearest = WIDE.metric.distances(read.index.rows(strangers), read.index.rows(named)).argmin(axis=1)
    suggested = [
        NewCluster(None, (face,), 0.99, subject)
        for face, subject in zip(strangers.tolist(), subjects[nearest].tolist(), strict=True)
    ]
    assert len(confirm_suggestions(reader, read, suggested)) <= 0.03 * len(rows)


def test_suggestions_and_examinations_compare_embeddings_as_searches_do(
    resources: Resources, cameras: TwoCameras
) -> None:
    reader = JobContext("none", "w", resources)
    small = blur(draw(1, 3, 3, WIDE_DIM))  # a source of too few faces to be corrected
    small_pks = add_of_source(cameras.gallery, small, [None] * len(small), "yard")
    corrected = cameras.corrections.apply(cameras.poor, np.repeat("gate", len(cameras.poor)))
    assert np.abs(corrected - cameras.poor).mean() > 1, "it must be able to fail"
    index = read_gallery(reader, "staff", MIN_PROBABILITY).index
    np.testing.assert_allclose(index.rows(cameras.poor_pks), corrected, atol=1e-4)
    assert np.array_equal(index.rows(cameras.clear_pks), cameras.clear)
    assert np.array_equal(index.rows(small_pks), small)


def test_nothing_is_corrected_once_the_corrections_are_emptied(resources: Resources, cameras: TwoCameras) -> None:
    """As an erasure empties those of a model that is not the champion, which may become it later."""
    with writing(resources.database) as session:
        forget_corrections(session, lock_collection(session, "staff").id)
    measure(resources, WIDE)
    index = read_gallery(JobContext("none", "w", resources), "staff", MIN_PROBABILITY).index
    assert np.array_equal(index.rows(cameras.poor_pks), cameras.poor)

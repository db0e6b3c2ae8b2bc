"""A person is suggested for a cluster only where searches would name that person."""

from typing import Any

import numpy as np
import pytest

from app.db.session import reading, writing
from app.db.tables import Deployment, FaceCluster, Subject
from app.queue.jobs import enqueue
from app.queue.messages import DiscoverPeople
from app.resources import Resources
from app.serving.calibration.gallery_calibration import measure_gallery
from ml.people_discovery.discovery import MIN_PROBABILITY
from ml.types import Rows
from tests.gallery import context
from tests.rows import GalleryWriter, make_model
from workers.handlers.discover_people import discover_people_in_collection

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PEOPLE, PHOTOS, DIM = 300, 3, 5
MODEL = make_model("m-few", dim=DIM)


def draw(people: int, photos: int, seed: int) -> Rows:
    """Draw (people * photos, DIM) embeddings that have few directions, so that a stranger has somebody near."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((people, 1, DIM))
    return (centres + 0.12 * rng.standard_normal((people, photos, DIM))).reshape(-1, DIM).astype(np.float32)


@pytest.fixture
def gallery(resources: Resources) -> GalleryWriter:
    made = GalleryWriter(resources).make(MODEL)
    rows = draw(PEOPLE, PHOTOS, 0)
    made.add({MODEL.id: rows}, [f"p{number // PHOTOS}" for number in range(len(rows))])
    measured = measure_gallery(resources, "staff", "identity", MODEL)
    with writing(resources.database) as session:
        session.get_one(Deployment, ("staff", "identity")).measurements = {MODEL.id: measured}
    return made


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

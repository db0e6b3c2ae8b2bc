"""The labels that a candidate would break."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from app.db.session import writing
from app.db.tables import Collection, Deployment, Face, Label, Subject
from app.errors import Conflict
from app.queue.jobs import enqueue
from app.queue.messages import Publish
from app.resources import Resources
from app.serving.calibration.gallery_calibration import measure_gallery
from ml.types import Rows
from tests.gallery import context
from tests.rows import GalleryWriter, make_model, people
from workers.context import JobContext
from workers.handlers.publish import publish_model
from workers.publishing.label_promises import check_labels

CHAMPION, CANDIDATE = make_model("m-one"), make_model("m-two", seed=1)
PEOPLE, PHOTOS = 60, 3
ROWS, SUBJECTS = people(PEOPLE, PHOTOS)
FIRST, SECOND, OTHER = 0, PHOTOS, 2 * PHOTOS
"""The first faces of three people."""


class LabelledGallery:
    """A calibrated gallery with embeddings by two models, and labels."""

    def __init__(self, resources: Resources, candidate_rows: Rows) -> None:
        self.resources = resources
        self.gallery = GalleryWriter(resources, "c").make(CHAMPION)
        with writing(resources.database) as session:
            resources.models.keep(session, CANDIDATE)
        self.face_ids = self.gallery.add({CHAMPION.id: ROWS, CANDIDATE.id: candidate_rows}, SUBJECTS)
        self.measured = measure_gallery(resources, "c", "identity", CANDIDATE)
        with writing(resources.database) as session:
            deployment = session.get_one(Deployment, ("c", "identity"))
            deployment.measurements = {CHAMPION.id: measure_gallery(resources, "c", "identity", CHAMPION)}

    def label(self, pairs: Sequence[tuple[int, int, bool]]) -> None:
        with writing(self.resources.database) as session:
            for first, second, same in pairs:
                a, b = sorted((self.gallery.pks[first], self.gallery.pks[second]))
                session.add(Label(task="identity", face_a=a, face_b=b, same=same, by="ann"))
            session.get_one(Collection, "c").change += 1

    def make_context(self) -> JobContext:
        with writing(self.resources.database) as session:
            return context(self.resources, enqueue(session, self.make_message()))

    def make_message(self, **more: Any) -> Publish:
        return Publish(collection="c", tasks=("identity",), model=CANDIDATE.id, by="ann", **more)

    def check(self) -> dict[str, Any]:
        checked = check_labels(self.make_context(), "c", "identity", CANDIDATE, self.measured)
        assert checked is not None
        return checked


def move(rows: Rows, face: int, to: Rows) -> Rows:
    moved = rows.copy()
    moved[face] = to
    return moved


def test_pairs_that_pass_against_a_label_are_broken(resources: Resources) -> None:
    gallery = LabelledGallery(resources, move(ROWS, FIRST, ROWS[SECOND] + np.float32(0.001)))
    gallery.label([(FIRST, SECOND, False), (FIRST, OTHER, False), (SECOND, SECOND + 1, True)])
    checked = gallery.check()
    assert checked["pairs"] == {"same": 1, "different": 2}
    assert checked["different_passing"] == {"before": 0, "after": 1}
    [broken] = checked["broken"]
    assert {broken["face_a"], broken["face_b"]} == {gallery.face_ids[FIRST], gallery.face_ids[SECOND]}
    assert broken["same"] is False


def test_pairs_of_somebody_who_has_refused_consent_are_left_out(resources: Resources) -> None:
    gallery = LabelledGallery(resources, move(ROWS, FIRST, ROWS[SECOND] + np.float32(0.001)))
    gallery.label([(FIRST, SECOND, False), (SECOND, SECOND + 1, True)])
    with writing(resources.database) as session:
        pk = select(Face.subject_pk).where(Face.pk == gallery.gallery.pks[FIRST]).scalar_subquery()
        session.execute(update(Subject).where(Subject.pk == pk).values(consent=False))
    checked = gallery.check()
    assert (checked["pairs"], checked["broken"]) == ({"same": 1, "different": 0}, [])


def test_pairs_that_no_longer_pass_are_broken_only_if_they_passed(resources: Resources) -> None:
    far = ROWS[FIRST] + np.float32(50)
    gallery = LabelledGallery(resources, move(ROWS, FIRST, far))
    gallery.label([(FIRST, FIRST + 1, True), (FIRST, SECOND, True)])
    checked = gallery.check()
    assert checked["same_passing"] == {"before": 1, "after": 0}
    assert [(pair["same"], {pair["face_a"], pair["face_b"]}) for pair in checked["broken"]] == [
        (True, {gallery.face_ids[FIRST], gallery.face_ids[FIRST + 1]})
    ]


def test_unlabelled_impostors_that_stop_passing_are_counted(resources: Resources) -> None:
    crowded = move(ROWS, FIRST, ROWS[SECOND])
    gallery = LabelledGallery(resources, crowded)
    with writing(resources.database) as session:  # the champion is the crowded one now
        deployment = session.get_one(Deployment, ("c", "identity"))
        before, deployment.champion = deployment.measurements[CHAMPION.id], CANDIDATE.id
        deployment.measurements = {CANDIDATE.id: gallery.measured}
    gallery.label([(FIRST, SECOND + 1, False)])
    checked = check_labels(gallery.make_context(), "c", "identity", CHAMPION, before)
    assert checked is not None
    impostors = checked["unlabelled_impostors"]
    assert impostors["pairs"] == PHOTOS**2 * PEOPLE * (PEOPLE - 1) // 2 - 1, "all pairs but the labelled one"
    assert impostors["fell"] >= 2
    assert 0 < impostors["passing_before"] - impostors["fell"] <= impostors["passing_after"]


def test_nothing_is_checked_without_labels(resources: Resources) -> None:
    gallery = LabelledGallery(resources, ROWS)
    assert check_labels(gallery.make_context(), "c", "identity", CANDIDATE, gallery.measured) is None
    gallery.label([(FIRST, SECOND, False)])
    assert check_labels(gallery.make_context(), "c", "identity", CANDIDATE, {}) is None, "nothing is calibrated"


@pytest.mark.parametrize("policy", ["list", "refuse"])
def test_the_policy_decides_whether_a_model_that_breaks_labels_is_refused(resources: Resources, policy: str) -> None:
    gallery = LabelledGallery(resources, move(ROWS, FIRST, ROWS[SECOND] + np.float32(0.001)))
    gallery.label([(FIRST, SECOND, False)])
    with writing(resources.database) as session:
        deployment = session.get_one(Deployment, ("c", "identity"))
        deployment.label_policy, deployment.previous = policy, CANDIDATE.id
        deployment.measurements = {**deployment.measurements, CANDIDATE.id: gallery.measured}
    message = gallery.make_message()
    if policy == "refuse":
        with pytest.raises(Conflict) as refused:
            publish_model(message, gallery.make_context())
        assert refused.value.code == "LabelsBroken"
        assert len(refused.value.extra["labels"]["identity"]["broken"]) == 1
        message = gallery.make_message(override=True, reason="a test")
    result = publish_model(message, gallery.make_context())
    assert len(result["verdict"]["labels"]["identity"]["broken"]) == 1
    assert result["verdict"]["passed"] == (policy == "list")
    with writing(resources.database) as session:
        [entry] = session.get_one(Deployment, ("c", "identity")).history
    assert entry["overridden"] == (policy == "refuse")

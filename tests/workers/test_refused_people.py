"""People who have refused consent are neither named nor shown by anything that looks through a gallery."""

from collections.abc import Iterator

import numpy as np
import pytest
from sqlalchemy import select, update

from app.atlases.service import list_points
from app.atlases.window import WindowEdges
from app.clusters.service import list_clusters
from app.db.session import reading, writing
from app.db.tables import (
    Atlas,
    ClusteredFace,
    Collection,
    Face,
    FaceCluster,
    FaceCoordinates,
    Label,
    Subject,
    Task,
    now,
)
from app.deps.job_response import JobOut
from app.examinations.schemas import FINDING, REPORT
from app.examinations.service import read_report
from app.labels.question_faces import read_question_faces
from app.learning.evaluation_request import EvaluationRequest
from app.queue import jobs
from app.queue.messages import ExamineGallery
from app.resources import Resources
from app.serving.compensation.renewal import count_faces
from app.serving.compensation.sampled_faces import sample_faces
from app.serving.index_builder import IndexKey
from ml.compensation import NO_SOURCE
from tests.rows import GalleryWriter, make_model, people
from workers.context import JobContext
from workers.discovery.gallery import read_gallery
from workers.evaluating.dataset import read_evaluation_set
from workers.evaluating.label_agreement import read_collection_consensus
from workers.forecasting import gallery as forecasting
from workers.handlers import examine

MODEL = make_model("m-refused")
GALLERY = "refused"


@pytest.fixture
def gallery(lasting_sqlite: Resources) -> Iterator[Resources]:
    """Five people with three faces each, of whom p000 has refused, and two faces without a name."""
    rows, names = people(5, 3)
    writer = GalleryWriter(lasting_sqlite, GALLERY).make(MODEL)
    writer.add({MODEL.id: rows}, names)
    writer.add({MODEL.id: rows[:2]}, [None, None])
    genuine, impostor = (np.random.default_rng(0).normal(m, 0.1, 500).astype(np.float32) for m in (0.5, 3))
    writer.calibrate(MODEL.id, genuine, impostor)
    with writing(lasting_sqlite.database) as session:
        session.execute(update(Subject).where(Subject.id == "p000").values(consent=False))
    yield lasting_sqlite
    with writing(lasting_sqlite.database) as session:
        session.delete(session.get_one(Collection, GALLERY))


@pytest.fixture
def refused(gallery: Resources) -> list[int]:
    """The pks of the faces of the person who has refused."""
    with reading(gallery.database) as session:
        return list(session.scalars(select(Face.pk).join(Subject).where(Subject.id == "p000")))


def test_a_search_for_people_and_an_examination_leave_them_out(gallery: Resources, refused: list[int]) -> None:
    read = read_gallery(JobContext("none", "w", gallery), GALLERY, 0.5)
    assert len(read.pks) == 4 * 3 + 2
    assert not set(read.pks.tolist()) & set(refused)


def test_no_question_shows_them(gallery: Resources, refused: list[int]) -> None:
    with reading(gallery.database) as session:
        faces = read_question_faces(session, MODEL, GALLERY, "identity")
    assert len(faces.pks) == 4 * 3 + 2
    assert not set(faces.pks.tolist()) & set(refused)


def test_an_evaluation_leaves_them_out(gallery: Resources, refused: list[int]) -> None:
    with reading(gallery.database) as session:
        measured = read_evaluation_set(session, EvaluationRequest(collection=GALLERY))
    assert len(measured.gallery) == 4 * 3 + 2
    assert not set(measured.faces.tolist()) & set(refused)


def test_a_cluster_that_was_found_before_no_longer_suggests_them(gallery: Resources) -> None:
    with writing(gallery.database) as session:
        subjects = dict(session.execute(select(Subject.id, Subject.pk)).all())
        nameless = session.scalars(select(Face.pk).where(Face.subject_pk.is_(None)).order_by(Face.pk)).all()
        for name, pk in zip(("p000", "p001"), nameless, strict=True):
            cluster = FaceCluster(collection_id=GALLERY, probability=0.9, suggested_subject_pk=subjects[name])
            session.add(cluster)
            session.flush()
            session.add(ClusteredFace(face_pk=pk, cluster_pk=cluster.pk))
    with reading(gallery.database) as session:
        clusters = list_clusters(session, GALLERY, "open", 10, None).clusters
    assert [cluster.suggested_subject and cluster.suggested_subject["id"] for cluster in clusters] == [None, "p001"]


def test_no_point_of_an_atlas_shows_them(gallery: Resources, refused: list[int]) -> None:
    with writing(gallery.database) as session:
        map_of = {"collection_id": GALLERY, "task": "identity", "model_id": MODEL.id, "version": 1, "method": "pca"}
        atlas = Atlas(**map_of, fitted_faces=17, change=1, finished_at=now())
        session.add(atlas)
        session.flush()
        for pk in session.scalars(select(Face.pk)):
            session.add(FaceCoordinates(atlas_pk=atlas.pk, face_pk=pk, x=0.0, y=0.0, display_rank=pk))
    with reading(gallery.database) as session:
        points = list_points(session, GALLERY, "identity", WindowEdges(), 100).points
    assert len(points) == 4 * 3 + 2
    assert "p000" not in {point.subject["id"] for point in points if point.subject}


def test_an_earlier_examination_no_longer_names_them(gallery: Resources) -> None:
    findings = [FINDING | {"subjects": subjects} for subjects in (["p000", "p001"], ["p001", "p002"], [])]
    report = REPORT | {"collection": GALLERY, "findings": findings}
    with writing(gallery.database) as session:
        job = jobs.enqueue(session, ExamineGallery(collection=GALLERY))
        job.state, job.result, job.finished_at = "succeeded", report, now()
        shown = JobOut.of(job, "admin").result
    assert shown is not None
    assert shown["counts"] == REPORT["counts"]
    assert "p00" not in str(shown)
    with reading(gallery.database) as session:
        named = [finding.subjects for finding in read_report(session, GALLERY).findings]
    assert named == [["p001", "p002"], []]


def test_an_earlier_examination_no_longer_shows_their_damaged_faces(gallery: Resources) -> None:
    with reading(gallery.database) as session:
        faces = dict(session.execute(select(Subject.id, Face.face_id).join(Face, Face.subject_pk == Subject.pk)).all())
    findings = [FINDING | {"subjects": [], "faces": [faces[name]]} for name in ("p000", "p001")]
    report = REPORT | {"collection": GALLERY, "findings": findings}
    with writing(gallery.database) as session:
        job = jobs.enqueue(session, ExamineGallery(collection=GALLERY))
        job.state, job.result, job.finished_at = "succeeded", report, now()
    with reading(gallery.database) as session:
        assert [finding.faces for finding in read_report(session, GALLERY).findings] == [[faces["p001"]]]


def test_an_evaluation_of_labels_leaves_them_out(gallery: Resources, refused: list[int]) -> None:
    with writing(gallery.database) as session:
        session.merge(Task(name="identity"))
        session.flush()
        pks = session.scalars(select(Face.pk).where(Face.subject_pk.is_not(None)).order_by(Face.pk)).all()
        for start in range(0, len(pks), 3):
            for a, b, same in ((start, start + 1, True), (start, (start + 3) % len(pks), False)):
                ends = sorted((pks[a], pks[b]))
                session.add(Label(task="identity", face_a=ends[0], face_b=ends[1], same=same, by="ann"))
    with reading(gallery.database) as session:
        consensus = read_collection_consensus(session, GALLERY, "identity")
    assert (len(consensus), int(consensus.same.sum())) == (4 + 3, 4)
    assert not set(consensus.pairs.ravel().tolist()) & set(refused)


def test_a_forecast_leaves_them_out(gallery: Resources, refused: list[int]) -> None:
    read = forecasting.read_gallery(JobContext("none", "w", gallery), GALLERY, None)
    assert not set(read.people.ids.tolist()) & set(refused)
    assert len(read.people.ids) == 4 * 3 + 2


def test_neither_the_corrections_of_sources_nor_distractors_of_an_examination_are_of_them(
    gallery: Resources, refused: list[int]
) -> None:
    with writing(gallery.database) as session:
        session.execute(update(Face).where(Face.pk.in_(refused[1:])).values(source="gate"))
        session.execute(update(Face).where(Face.pk == refused[0]).values(role="distractor"))
        key = IndexKey(GALLERY, "identity", MODEL.id, session.get_one(Collection, GALLERY).created_at)
        sampled = sample_faces(session, key, 8, ["gate", NO_SOURCE])
        only_refused = sample_faces(session, key, 8, ["gate"])
        session.execute(update(Face).where(Face.pk == refused[0] + 3).values(source="gate"))
        counts = count_faces(session, GALLERY, 10)
    assert len(sampled.pks) == 4 * 3 + 2
    assert not set(sampled.pks.tolist()) & set(refused)
    assert only_refused.rows.shape == (0, 8)
    assert counts == {NO_SOURCE: [11 + 2, 11], "gate": [1, 1]}
    job = JobContext("none", "w", gallery)
    examined = examine._find_people(job, read_gallery(job, GALLERY, 0.5))
    assert not set(examined.ids.tolist()) & set(refused)

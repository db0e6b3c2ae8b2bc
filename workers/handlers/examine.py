"""Look for faces and people of a collection that make it worse. Nothing is changed."""

from typing import Any

import numpy as np
from sqlalchemy import select

from app.db.session import reading
from app.db.tables import BUILT_IN_TASK, Deployment, Face, Subject, now
from app.queue.messages import ExamineGallery
from ml.errors import TooFewPairs
from ml.identification.changed_galleries import StrangerCheck
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople
from ml.people_discovery.discovery import MIN_PROBABILITY, find_link_distance
from ml.people_discovery.neighbour_graph import find_links
from ml.people_discovery.suspects import NamedPeople
from ml.quality import QualityThresholds
from ml.types import Ids
from workers.context import JobContext
from workers.discovery.findings import Examination, Finding, list_damage
from workers.discovery.gallery import ClusterGallery, read_gallery
from workers.progress import PROGRESS_STEPS, report_progress, to_json_values

LINKS_END = 500
POOR_FACTOR = 1.5
"""A face is poor if its sharpness, contrast or distance of the eyes is less than so many times what enrolment asks."""


def examine_gallery(message: ExamineGallery, context: JobContext) -> dict[str, Any]:
    """Return the report, as `ExaminationOut` describes it.

    Raises NotFound, Conflict (NotCalibrated), Interrupted, ml.Corrupt, ml.Unavailable.
    """
    gallery = read_gallery(context, message.collection, MIN_PROBABILITY)
    named = np.flatnonzero(gallery.is_named)
    pks, subjects = gallery.pks[named], gallery.subjects[named]
    fpir, subject_ids, face_ids, poor = _read_rows(context, gallery, pks, subjects)
    with report_progress(context) as reporter:
        linking = reporter.phase("links", 0, LINKS_END)
        distance = find_link_distance(gallery.calibration)
        links = find_links(
            gallery.index, pks, np.arange(len(pks)), distance, progress=lambda done, total: linking(done, total, {})
        )
        people = GalleryPeople.from_rows(pks, subjects, np.zeros(len(pks), np.bool_))
        check, reason = _check_strangers(gallery, people, fpir, context)
        findings: list[Finding] = []
        counts = dict.fromkeys(_KINDS, 0)
        if len(pks):
            rows = gallery.index.rows(pks)
            suspects = NamedPeople(rows, people.owners, links, gallery.model.metric, gallery.calibration)
            findings, counts = Examination(suspects, people, check, subject_ids, face_ids, poor).find_all()
        damaged, damaged_count = list_damage(context.resources, message.collection)
        findings, counts = [*damaged, *findings], counts | {"damaged_face": damaged_count}
        reporter.phase("done", PROGRESS_STEPS, PROGRESS_STEPS)(1, 1, {})
    return to_json_values({  # type: ignore[no-any-return]
        "collection": message.collection,
        "model": gallery.model.id,
        "faces": len(pks),
        "subjects": len(subject_ids),
        "subjects_with_one_face": int((people.face_counts == 1).sum()),
        "fpir": fpir,
        "strangers_named": None if check is None else check.share,
        "unmeasured_reason": reason,
        "counts": counts,
        "findings": findings,
        "finished_at": now(),
    })  # fmt: skip


_KINDS = ("damaged_face", "wrong_name", "duplicate", "mixture", "named_for_strangers", "poor_face")


def _check_strangers(
    gallery: ClusterGallery, people: GalleryPeople, fpir: float, context: JobContext
) -> tuple[StrangerCheck | None, str | None]:
    """Search for strangers. Returns None and the reason where there are too few people."""
    try:
        return StrangerCheck.run(gallery.index, people, DecisionRule(), fpir, context.check), None
    except TooFewPairs as error:
        return None, f"{error.missing} more people with a name are needed to measure how many strangers are named"


def _read_rows(
    context: JobContext, gallery: ClusterGallery, pks: Ids, subjects: Ids
) -> tuple[float, list[str], list[str], Ids]:
    """Read the default rate of strangers named, the ids of subjects and faces, and the positions of poor faces."""
    wanted = QualityThresholds()
    limits = {"sharpness": wanted.sharpness, "contrast": wanted.contrast, "eye_distance": wanted.eye_distance}
    with reading(context.resources.database) as session:
        deployment = session.get_one(Deployment, (gallery.collection, BUILT_IN_TASK))
        subject_rows = session.execute(
            select(Subject.pk, Subject.id).where(Subject.collection_id == gallery.collection)
        )
        face_rows = session.execute(
            select(Face.pk, Face.face_id, Face.quality).where(
                Face.collection_id == gallery.collection, Face.subject_pk.is_not(None)
            )
        )
        names = dict(subject_rows.all())
        faces = {pk: (face_id, quality) for pk, face_id, quality in face_rows}
    deleted: tuple[str, dict[str, float]] = ("", {})  # since the gallery was read
    described = [faces.get(pk, deleted) for pk in pks.tolist()]
    is_poor = [
        any(quality.get(name, np.inf) < POOR_FACTOR * limit for name, limit in limits.items())
        for _, quality in described
    ]
    subject_ids = [names.get(pk, "") for pk in np.unique(subjects).tolist()]
    return deployment.default_fpir, subject_ids, [face_id for face_id, _ in described], np.flatnonzero(is_poor)

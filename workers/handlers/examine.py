"""Look for faces and people of a collection that make it worse. Nothing is changed."""

from typing import Any

import numpy as np
from sqlalchemy import select

from app.db.session import reading
from app.db.tables import BUILT_IN_TASK, Deployment, Face, Subject, now
from app.galleries.retention import may_be_used
from app.queue.messages import ExamineGallery
from ml.errors import TooFewPairs
from ml.identification.changed_galleries import StrangerCheck
from ml.identification.hubs import HubSearch
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople
from ml.people_discovery.discovery import MIN_PROBABILITY, find_link_distance
from ml.people_discovery.neighbour_graph import find_links
from ml.people_discovery.suspects import NamedPeople
from ml.quality import QualityThresholds
from ml.types import Ids
from workers.context import JobContext
from workers.discovery.findings import Examination, Finding, list_damage
from workers.discovery.gallery import NOBODY, ClusterGallery, read_gallery
from workers.progress import PROGRESS_STEPS, report_progress, to_json_values

LINKS_END = 500
EVEN_SIMILARITY = 50.0
"""Where a pair of faces is as probably one person as two, at even odds."""
POOR_FACTOR = 1.5
"""A face is poor if its sharpness, contrast or distance of the eyes is less than so many times what enrolment asks."""


def examine_gallery(message: ExamineGallery, context: JobContext) -> dict[str, Any]:
    """Return the report, as `ExaminationOut` describes it.

    Raises NotFound, Conflict (NotCalibrated), Interrupted, ml.Corrupt, ml.Unavailable.
    """
    gallery = read_gallery(context, message.collection, MIN_PROBABILITY)
    people = _find_people(context, gallery)
    positions = np.flatnonzero(people.is_named[people.owners])
    pks = people.ids[positions]
    fpir, subject_ids, face_ids, poor = _read_rows(context, gallery, people)
    with report_progress(context) as reporter:
        linking = reporter.phase("links", 0, LINKS_END)
        distance = find_link_distance(gallery.calibration)
        links = find_links(
            gallery.index, pks, np.arange(len(pks)), distance, progress=lambda done, total: linking(done, total, {})
        )
        check, hubs, reason = _search_for_strangers(gallery, people, fpir, context)
        findings: list[Finding] = []
        counts = dict.fromkeys(_KINDS, 0)
        if len(pks):
            rows, owners = gallery.index.rows(pks), people.owners[positions]
            suspects = NamedPeople(rows, owners, links, gallery.model.metric, gallery.calibration)
            examination = Examination(people, suspects, positions, check, hubs, subject_ids, face_ids, poor)
            findings, counts = examination.find_all()
        damaged, damaged_count = list_damage(context.resources, message.collection)
        findings, counts = [*damaged, *findings], counts | {"damaged_face": damaged_count}
        reporter.phase("done", PROGRESS_STEPS, PROGRESS_STEPS)(1, 1, {})
    return to_json_values({  # type: ignore[no-any-return]
        "collection": message.collection,
        "model": gallery.model.id,
        "faces": len(pks),
        "subjects": len(subject_ids),
        "subjects_with_one_face": int((people.is_named & (people.face_counts == 1)).sum()),
        "fpir": fpir,
        "strangers_named": None if check is None else check.share,
        "unmeasured_reason": reason,
        "counts": counts,
        "findings": findings,
        "finished_at": now(),
    })  # fmt: skip


_KINDS = ("damaged_face", "wrong_name", "duplicate", "mixture", "named_for_strangers", "poor_face")


def _find_people(context: JobContext, gallery: ClusterGallery) -> GalleryPeople:
    """Number the people on all faces of the index that may be used, the named ones first."""
    with reading(context.resources.database) as session:
        chosen = select(Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk).where(may_be_used(now()))
        chosen = chosen.where(Face.collection_id == gallery.collection, Face.role == "distractor")
        distractors = np.array(session.scalars(chosen.order_by(Face.pk)).all(), np.int64)
    distractors = distractors[np.isin(distractors, gallery.index.ids())]
    pks = np.concatenate([gallery.pks, distractors])
    order = np.argsort(pks)
    subjects = np.concatenate([gallery.subjects, np.full(len(distractors), NOBODY)])
    is_distractor = np.arange(len(pks)) >= len(gallery.pks)
    return GalleryPeople.from_rows(pks[order], subjects[order], is_distractor[order])


def _search_for_strangers(
    gallery: ClusterGallery, people: GalleryPeople, fpir: float, context: JobContext
) -> tuple[StrangerCheck | None, HubSearch | None, str | None]:
    """Search for strangers. Returns nothing but the reason where there are too few people."""
    try:
        check = StrangerCheck.run(gallery.index, people, DecisionRule(), fpir, context.check)
    except TooFewPairs as error:
        missing = f"{error.missing} more people with a name are needed to measure how many strangers are named"
        return None, None, missing
    return check, HubSearch.run(check, fpir, gallery.calibration.distance(EVEN_SIMILARITY), context.check), None


def _read_rows(
    context: JobContext, gallery: ClusterGallery, people: GalleryPeople
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
    unknown: tuple[str, dict[str, float]] = ("", {})  # without a name, or deleted since the gallery was read
    described = [faces.get(pk, unknown) for pk in people.ids.tolist()]
    is_poor = [
        any(quality.get(name, np.inf) < POOR_FACTOR * limit for name, limit in limits.items())
        for _, quality in described
    ]
    subject_ids = [names.get(pk, "") for pk in np.unique(gallery.subjects[gallery.is_named]).tolist()]
    return deployment.default_fpir, subject_ids, [face_id for face_id, _ in described], np.flatnonzero(is_poor)

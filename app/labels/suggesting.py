"""The pairs most worth labelling: those of which the serving model is least sure, spread over faces and people."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.tables import Deployment, Embedding, Face, Label, Subject
from app.errors import NotFound
from app.labels.schemas import SuggestedPair, SuggestIn, SuggestionsOut
from app.resources import Resources
from ml.calibration import Calibration
from ml.evaluation.verification import best_threshold
from ml.generation import Generation
from ml.metric import Metric
from ml.types import Ids, Rows

SAMPLE = 3000
SAMPLE_BYTES = 64 << 20
NEIGHBOURS = 10
TWICE = 2
KNOWN = 0.25
"""What a pair whose subjects are told already must be less sure by, to be asked for."""


class Sampled(NamedTuple):
    """Faces drawn from the gallery. subject: -1 unknown."""

    pks: Ids
    face_ids: list[str]
    subjects: Ids
    subject_ids: list[str | None]
    rows: Rows


def suggest(session: Session, resources: Resources, wanted: SuggestIn) -> SuggestionsOut:
    """From the embeddings of the champion, of a random sample of the gallery. Raises NotFound."""
    deployment = session.get(Deployment, (wanted.collection, wanted.task))
    if deployment is None:
        raise NotFound(f"collection {wanted.collection!r} has no model for the task {wanted.task!r}")
    champion = resources.generations.get(deployment.champion)
    faces = _sample(session, champion, wanted)
    pairs, apart = _candidates(faces, champion.metric)
    calibration = champion.calibrations.get(wanted.task)
    doubt = _doubt(faces, pairs, apart, calibration)
    labelled = _labelled(session, wanted.task, faces)
    order = (k for k in np.argsort(doubt, kind="stable") if _key(faces, pairs[k]) not in labelled)
    chosen = [_shown(faces, pairs[k], apart[k], calibration) for k in _spread(faces, pairs, order, wanted.limit)]
    return SuggestionsOut(model=champion.id, pairs=chosen)


def _sample(session: Session, champion: Generation, wanted: SuggestIn) -> Sampled:
    """As many as fit the memory: a wide descriptor gives fewer."""
    here = (Embedding.generation_id == champion.id, Embedding.task == wanted.task)
    gallery = (Face.collection_id == wanted.collection, Face.role == "gallery")
    stored = select(Face.pk, Face.face_id, Face.subject_pk, Subject.id, Embedding.vector)
    stored = stored.join(Embedding, Embedding.face_pk == Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk)
    width = session.scalar(select(func.length(Embedding.vector)).where(*here).limit(1)) or 4
    ids = select(Face.pk).join(Embedding, Embedding.face_pk == Face.pk).where(*gallery, *here)
    drawn = ids.order_by(func.random()).limit(min(SAMPLE, SAMPLE_BYTES // width))
    found = session.execute(stored.where(*here, Face.pk.in_(drawn)).order_by(Face.pk)).all()
    return Sampled(
        np.array([f[0] for f in found], np.int64),
        [f[1] for f in found],
        np.array([-1 if f[2] is None else f[2] for f in found], np.int64),
        [f[3] for f in found],
        np.frombuffer(b"".join(f[4] for f in found), "<f4").reshape(len(found), -1),
    )


def _candidates(faces: Sampled, metric: Metric) -> tuple[Ids, NDArray[np.float32]]:
    """(P, 2) places in the sample, the smaller first, with the distance of each: nearest neighbours, and neighbours
    within a subject, which may be far apart."""
    if len(faces.pks) < 2:
        return np.empty((0, 2), np.int64), np.empty(0, np.float32)
    every = metric.distances(faces.rows, faces.rows)
    np.fill_diagonal(every, np.inf)
    count = min(NEIGHBOURS, len(every) - 1)
    near = np.argpartition(every, count - 1, axis=1)[:, :count]
    first = np.repeat(np.arange(len(every)), count)
    by_subject = np.argsort(faces.subjects, kind="stable")
    within = np.stack([by_subject[:-1], by_subject[1:]], 1)
    within = within[
        (faces.subjects[within[:, 0]] >= 0) & (faces.subjects[within[:, 0]] == faces.subjects[within[:, 1]])
    ]
    pairs = np.unique(np.sort(np.concatenate([np.stack([first, near.ravel()], 1), within]), axis=1), axis=0)
    return pairs, every[pairs[:, 0], pairs[:, 1]]


def _doubt(
    faces: Sampled, pairs: Ids, apart: NDArray[np.float32], calibration: Calibration | None
) -> NDArray[np.float64]:
    """(P,) smaller is more doubtful: how far the probability is from a half, or the distance from a threshold."""
    told = (faces.subjects[pairs] >= 0).all(1)
    same = told & (faces.subjects[pairs[:, 0]] == faces.subjects[pairs[:, 1]])
    if calibration is not None:
        return np.asarray(np.abs(calibration.probability(apart.astype(np.float64)) - 0.5) + KNOWN * told)
    threshold = best_threshold(apart[told], same[told]) if same.any() and not same[told].all() else np.median(apart)
    scale = float(np.std(apart)) or 1.0
    return np.asarray(np.abs(apart - threshold) / scale + KNOWN * told)


def _labelled(session: Session, task: str, faces: Sampled) -> set[tuple[int, int]]:
    pks = [int(pk) for pk in faces.pks]
    said = select(Label.face_a, Label.face_b).where(
        Label.task == task, Label.withdrawn_at.is_(None), Label.face_a.in_(pks), Label.face_b.in_(pks)
    )
    return {(a, b) for a, b in session.execute(said)}


def _spread(faces: Sampled, pairs: Ids, order: Iterator[np.int64], limit: int) -> Iterator[np.int64]:
    """The first in order, but no face more than twice, and no two people more than once."""
    asked: Counter[int] = Counter()
    met: set[tuple[int, int]] = set()
    for k in order:
        first, second = (int(i) for i in pairs[k])
        people = tuple(sorted((int(faces.subjects[first]), int(faces.subjects[second]))))
        if max(asked[first], asked[second]) >= TWICE or (people[0] >= 0 and people in met):
            continue
        asked.update((first, second))
        met.add((people[0], people[1]))
        yield k
        limit -= 1
        if not limit:
            return


def _key(faces: Sampled, pair: Ids) -> tuple[int, int]:
    first, second = sorted((int(faces.pks[pair[0]]), int(faces.pks[pair[1]])))
    return first, second


def _shown(faces: Sampled, pair: Ids, apart: np.float32, calibration: Calibration | None) -> SuggestedPair:
    first, second = (int(i) for i in pair)
    sure = None if calibration is None else 100 * float(calibration.probability(np.array([apart], np.float64))[0])
    return SuggestedPair(
        face_a=faces.face_ids[first],
        face_b=faces.face_ids[second],
        subject_a=faces.subject_ids[first],
        subject_b=faces.subject_ids[second],
        distance=float(apart),
        similarity=sure,
    )

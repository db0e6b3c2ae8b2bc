"""The pairs most worth labelling: those of which the serving model is least sure, spread over faces and people."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session, aliased

from app.db.tables import Deployment, Embedding, Face, Label, Subject
from app.errors import NotFound
from app.labels.schemas import SuggestedPair, SuggestIn, SuggestionsOut
from app.resources import Resources
from app.serving import index_builder
from ml.calibration import Calibration
from ml.distances import Distance
from ml.evaluation.verification import best_threshold
from ml.model import Model
from ml.types import Ids, Rows

SAMPLE = 3000
SAMPLE_BYTES = 64 << 20
NEIGHBOURS = 10
TWICE = 2
KNOWN = 0.25
"""What a pair whose subjects are told already must be less sure by, to be asked for."""
RARE = 0.1
"""Of the pairs of neighbours, how many may be the same, before anybody has said so of any."""

ANSWERS = 2000
"""So many of those that were given are heeded, by chance: the last ones alone would tell of the last rule alone."""


class Answers(NamedTuple):
    """Pairs that somebody spoke of: (L,) how far apart they lie under the model that serves, (L,) whether the same."""

    apart: NDArray[np.float64]
    same: NDArray[np.bool_]


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
    calibration = champion.calibrations.get(wanted.task)
    unseen = calibration if wanted.task in champion.facts.get("by_held_out", ()) else None
    labelled, answers = _labelled(session, wanted.task, faces), _answers(session, champion, wanted)
    pairs, apart = doubtful(faces.rows, faces.subjects, champion.metric, unseen, answers, labelled, wanted.limit)
    chosen = [_shown(faces, pair, far, calibration) for pair, far in zip(pairs, apart, strict=True)]
    return SuggestionsOut(model=champion.id, pairs=chosen)


def doubtful(
    rows: Rows,
    subjects: Ids,
    metric: Distance,
    calibration: Calibration | None,
    answers: Answers,
    labelled: Collection[tuple[int, int]],
    limit: int,
) -> tuple[Ids, NDArray[np.float32]]:
    """The rule itself: which pairs of these faces to ask for, the most doubtful first.

    rows: (N, d) embeddings; subjects: (N,), -1 unknown; calibration: of people not learned from; labelled: pairs of
    places in them, the smaller first, not to be asked for.
    Returns (P, 2) places, the smaller first, and the distance of each; P is at most `limit`.
    """
    pairs, apart = _candidates(rows, subjects, metric)
    if not len(pairs):
        return pairs, apart
    told = (subjects[pairs] >= 0).all(1)
    if calibration is not None:
        doubt = _from_a_half(calibration.probability(apart.astype(np.float64)), answers)
    else:
        same = subjects[pairs[:, 0]] == subjects[pairs[:, 1]]
        known = Answers(np.concatenate([apart[told], answers.apart]), np.concatenate([same[told], answers.same]))
        doubt = _from_threshold(apart, known)
    doubt = doubt + KNOWN * told
    order = (k for k in np.argsort(doubt, kind="stable") if (int(pairs[k, 0]), int(pairs[k, 1])) not in labelled)
    chosen = np.array(list(_spread(subjects, pairs, order, limit)), np.int64)
    return pairs[chosen], apart[chosen]


def _sample(session: Session, champion: Model, wanted: SuggestIn) -> Sampled:
    """As many as fit the memory: a wide descriptor gives fewer."""
    here = (Embedding.generation_id == champion.id, Embedding.task == wanted.task)
    gallery = (Face.collection_id == wanted.collection, Face.role == "gallery")
    stored = select(Face.pk, Face.face_id, Face.subject_pk, Subject.id, Embedding.vector)
    stored = stored.join(Embedding, Embedding.face_pk == Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk)
    width = 4 * index_builder.width(champion, wanted.task)
    ids = select(Face.pk).join(Embedding, Embedding.face_pk == Face.pk).where(*gallery, *here)
    drawn = ids.order_by(func.random()).limit(min(SAMPLE, SAMPLE_BYTES // width))
    found = session.execute(stored.where(*here, Face.pk.in_(drawn)).order_by(Face.pk)).all()
    return Sampled(
        np.array([f[0] for f in found], np.int64),
        [f[1] for f in found],
        np.array([-1 if f[2] is None else f[2] for f in found], np.int64),
        [f[3] for f in found],
        _rows([f[4] for f in found], width),
    )


def _candidates(rows: Rows, subjects: Ids, metric: Distance) -> tuple[Ids, NDArray[np.float32]]:
    """(P, 2) places, the smaller first, with the distance of each: nearest neighbours, and neighbours within a
    subject, which may be far apart."""
    if len(rows) < 2:
        return np.empty((0, 2), np.int64), np.empty(0, np.float32)
    every = metric.distances(rows, rows)
    np.fill_diagonal(every, np.inf)
    count = min(NEIGHBOURS, len(every) - 1)
    near = np.argpartition(every, count - 1, axis=1)[:, :count]
    first = np.repeat(np.arange(len(every)), count)
    by_subject = np.argsort(subjects, kind="stable")
    within = np.stack([by_subject[:-1], by_subject[1:]], 1)
    within = within[(subjects[within[:, 0]] >= 0) & (subjects[within[:, 0]] == subjects[within[:, 1]])]
    pairs = np.unique(np.sort(np.concatenate([np.stack([first, near.ravel()], 1), within]), axis=1), axis=0)
    return pairs, every[pairs[:, 0], pairs[:, 1]]


def _from_a_half(even: NDArray[np.float64], answers: Answers) -> NDArray[np.float64]:
    """(P,) how far the probability is from a half at the prior that the answers tell, given that at even odds.

    Where few of the pairs asked about were the same, nearer pairs are asked for, until about half are: among all pairs
    the same are rare, and most is learned from them.
    """
    prior = (answers.same.sum() + 1) / (len(answers.same) + 2)
    found: NDArray[np.float64] = np.abs(prior * even / (prior * even + (1 - prior) * (1 - even)) - 0.5)
    return found


def _from_threshold(apart: NDArray[np.float32], known: Answers) -> NDArray[np.float64]:
    """(P,) how far from the threshold that tells the known pairs apart best; where they are of one kind, from where so
    few are nearer."""
    both = known.same.any() and not known.same.all()
    threshold = best_threshold(known.apart, known.same) if both else np.quantile(apart, RARE)
    return np.asarray(np.abs(apart - threshold) / (np.std(apart) or 1.0), np.float64)


def _labelled(session: Session, task: str, faces: Sampled) -> set[tuple[int, int]]:
    """Pairs of places in the sample, the smaller first."""
    place = {int(pk): i for i, pk in enumerate(faces.pks)}
    said = select(Label.face_a, Label.face_b).where(
        Label.task == task, Label.withdrawn_at.is_(None), Label.face_a.in_(place), Label.face_b.in_(place)
    )
    return {(min(place[a], place[b]), max(place[a], place[b])) for a, b in session.execute(said)}


def _answers(session: Session, champion: Model, wanted: SuggestIn) -> Answers:
    """Some of the collection's, wherever in it their faces are."""
    first, second = aliased(Embedding), aliased(Embedding)
    width = 4 * index_builder.width(champion, wanted.task)
    here = (Face.collection_id == wanted.collection, Label.task == wanted.task, Label.withdrawn_at.is_(None))
    most = min(ANSWERS, SAMPLE_BYTES // (2 * width))
    some = select(Label.pk).join(Face, Face.pk == Label.face_a).where(*here).order_by(func.random()).limit(most)
    said = select(first.vector, second.vector, Label.same).where(Label.pk.in_(some))
    for end, face in ((first, Label.face_a), (second, Label.face_b)):
        at = (end.face_pk == face, end.generation_id == champion.id, end.task == wanted.task)
        said = said.join(end, and_(*at))
    found = session.execute(said).all()
    one, other = _rows([f[0] for f in found], width), _rows([f[1] for f in found], width)
    return Answers(
        champion.metric.paired_distances(one, other).astype(np.float64), np.array([f[2] for f in found], np.bool_)
    )


def _rows(vectors: list[bytes], width: int) -> Rows:
    """width: of each, in bytes."""
    return np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), width // 4)


def _spread(subjects: Ids, pairs: Ids, order: Iterator[np.int64], limit: int) -> Iterator[np.int64]:
    """The first in order, but no face more than twice, and no two people more than once."""
    asked: Counter[int] = Counter()
    met: set[tuple[int, int]] = set()
    for k in order:
        first, second = (int(i) for i in pairs[k])
        people = tuple(sorted((int(subjects[first]), int(subjects[second]))))
        if max(asked[first], asked[second]) >= TWICE or (people[0] >= 0 and people in met):
            continue
        asked.update((first, second))
        met.add((people[0], people[1]))
        yield k
        limit -= 1
        if not limit:
            return


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

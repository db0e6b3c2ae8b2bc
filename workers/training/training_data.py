"""Read the data of a training from the database, as it was at one moment: faces, values, labels and people."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Face, Subject, Training, now
from app.galleries import label_consensus
from app.galleries.damaged_faces import is_intact
from app.galleries.label_consensus import ConsensusRule, LabelConsensus
from app.galleries.learned_collections import COLLECTIONS_CREATED_AT, READ_AT
from app.galleries.retention import may_be_used
from app.learning.plan import Plan, Source
from app.learning.refit import WITHOUT, list_left_out
from ml.embedder_training.examples import TaskExamples
from ml.files import hash_bytes
from ml.labeller_reliability import Votes
from ml.types import Ids
from workers.metadata_values import encode_values

MAX_DISTRACTORS = 3000
"""Distractors of each collection: enough to make the searches of a report realistically hard."""
LAST_LABELS = "last_labels"
"""The part of a training's snapshot that holds the pk of the last label of each task: it reads that one and older ones.

Numbers count for the whole installation, so that no model shows them.
"""
LABELS = "labels"
"""The part of a model's provenance that says from how many labelled pairs of each task it has learned.

Trainings and models of earlier versions list pks of labels there.
"""


@dataclass(frozen=True)
class FaceRecord:
    """A row of the table `faces`, with its own metadata over that of its subject."""

    pk: int
    collection_id: str
    image_id: str
    number: int
    subject_pk: int | None
    subject_id: str | None
    metadata: dict[str, Any]

    @property
    def person(self) -> str:
        """The person's name, or the photo's where the face is not named."""
        return f"{self.collection_id}\0{self.subject_id or f'{self.image_id}-{self.number}'}"


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What a training reads.

    faces: the N faces of the gallery; distractors: faces that are searched among and never learned from
    tasks: what is known for each task
    people: (N,) number of the person: see `number_people`
    holdout_draw: (N,) the person's draw in 0..1, the same in each training: people below the holdout are held out
    snapshot: see `record_snapshot`
    """

    faces: list[FaceRecord]
    distractors: list[FaceRecord]
    tasks: tuple[TaskExamples, ...]
    people: Ids
    holdout_draw: NDArray[np.float64]
    snapshot: dict[str, Any]

    @property
    def names(self) -> Ids:
        """(N,) pk of the subject of each face, -1 if it has none."""
        return np.array([-1 if face.subject_pk is None else face.subject_pk for face in self.faces], np.int64)

    @cached_property
    def collections(self) -> list[str]:
        """The collections whose faces it holds."""
        return sorted({face.collection_id for face in self.faces})

    def lies_in(self, collection: str) -> NDArray[np.bool_]:
        """Return (N,) which faces the collection holds."""
        return np.array([face.collection_id == collection for face in self.faces], np.bool_)

    def select_faces(self, chosen: NDArray[np.bool_]) -> list[FaceRecord]:
        """Return the faces that are chosen. chosen: (N,)."""
        return [face for face, is_chosen in zip(self.faces, chosen, strict=True) if is_chosen]


def record_snapshot(session: Session, training: Training, plan: Plan) -> dict[str, Any]:
    """Return what identifies the data of a training. Stored with the training: a second run reads the same.

    {"changes": {collection: number}, COLLECTIONS_CREATED_AT: {collection: seconds}, READ_AT: seconds, LAST_LABELS:
    {task: pk}}, for a refit also what `make_refit` adds
    """
    if not training.snapshot:
        chosen = select(Collection).where(Collection.id.in_(plan.collections))
        labelled = {s.task for s in plan.sources if s.origin == "labels"}
        training.snapshot = {
            **list_collection_versions(session.scalars(chosen)),
            READ_AT: now(),
            LAST_LABELS: {task: label_consensus.find_last_label(session, task) for task in sorted(labelled)},
        }
    return training.snapshot


def read_votes(session: Session, snapshot: Mapping[str, Any], task: str) -> Votes:
    """Read the votes of a task that a snapshot holds, less those that were withdrawn or removed since."""
    if LAST_LABELS in snapshot:
        last = snapshot[LAST_LABELS].get(task, 0)
        return label_consensus.read_votes_until(session, list(snapshot["changes"]), task, last)
    return label_consensus.read_listed_votes(session, snapshot.get(LABELS, {}).get(task, ()))


def describe_learned(data: TrainingData) -> dict[str, Any]:
    """Return what the provenance of a model says of the data of its training: the snapshot with `LABELS`."""
    labelled = data.snapshot.get(LAST_LABELS, data.snapshot.get(LABELS, {}))
    labels = {examples.task: {"pairs": len(examples.pairs)} for examples in data.tasks if examples.task in labelled}
    return {**{part: value for part, value in data.snapshot.items() if part != LAST_LABELS}, LABELS: labels}


def list_collection_versions(collections: Iterable[Collection]) -> dict[str, dict[str, Any]]:
    """Return what identifies the state of each collection: its change number, and when the collection was created.

    The creation time tells a collection from an earlier one of the same id, whose change numbers began at 0 too.
    """
    rows = list(collections)
    return {
        "changes": {row.id: row.change for row in rows},
        COLLECTIONS_CREATED_AT: {row.id: row.created_at for row in rows},
    }


def read_training_data(
    session: Session, plan: Plan, snapshot: dict[str, Any], limit: int | None = None
) -> TrainingData:
    """Read the faces of a snapshot, less those removed since and those with damaged crops; at most `limit` of each
    collection.

    Faces that were changed since are read as they are now. Of a collection that was deleted and created again since,
    all faces have been removed.
    """
    faces = list(_iterate_faces(session, snapshot, "gallery", limit))
    distractors = list(_iterate_faces(session, snapshot, "distractor", MAX_DISTRACTORS))
    index_of = {face.pk: i for i, face in enumerate(faces)}
    tasks = tuple(_read_task(session, plan, task, faces, index_of, snapshot) for task in plan.tasks)
    people, draws = number_people(faces, tasks)
    return TrainingData(faces, distractors, tasks, people, draws, snapshot)


def _iterate_faces(session: Session, snapshot: dict[str, Any], role: str, limit: int | None) -> Iterator[FaceRecord]:
    for collection, change in sorted(snapshot["changes"].items()):
        created_at = snapshot.get(COLLECTIONS_CREATED_AT, {}).get(collection)
        row = session.get(Collection, collection)
        if row is None or created_at not in (None, row.created_at):
            continue
        chosen = (
            select(Face, Subject).outerjoin(Subject, Subject.pk == Face.subject_pk).execution_options(yield_per=2000)
        )
        was_there = or_(Face.change <= change, Face.created_at <= snapshot.get(READ_AT, -math.inf))
        here = chosen.where(Face.collection_id == collection, was_there, Face.role == role)
        here = here.where(may_be_used(now()), is_intact())
        names = snapshot.get(WITHOUT, {}).get(collection, ())  # hashes, or names of a refit of an earlier version
        if names:
            is_kept = Subject.id.not_in(names) & Subject.pk.not_in(list_left_out(session, row, snapshot))
            here = here.where(or_(Subject.id.is_(None), is_kept))
        for face, subject in session.execute(here.order_by(Face.pk).limit(limit)):
            yield FaceRecord(
                face.pk,
                face.collection_id,
                face.image_id,
                face.number,
                subject.pk if subject else None,
                subject.id if subject else None,
                {**(subject.attributes if subject else {}), **face.attributes},
            )
            session.expunge(face)


def _read_task(
    session: Session,
    plan: Plan,
    task: str,
    faces: Sequence[FaceRecord],
    index_of: dict[int, int],
    snapshot: dict[str, Any],
) -> TaskExamples:
    sources = [s for s in plan.sources if s.task == task]
    derived = [s for s in sources if s.origin != "labels"]
    values = _read_values(faces, derived, plan) if derived else np.full(len(faces), np.nan)
    consensus = _read_consensus(session, plan, task, faces, index_of, snapshot)
    pairs = np.array([index_of[pk] for pk in consensus.pairs.ravel().tolist()], np.int64).reshape(-1, 2)
    collections = {plan.collection_of(s) for s in sources}
    member = np.array([f.collection_id in collections for f in faces], np.bool_)
    member[pairs.ravel()] = True
    if derived and derived[0].metadata:
        member &= ~np.isnan(values) | np.isin(np.arange(len(faces)), pairs)
    subjects = [Source(origin="subjects", collection=s.collection) for s in sources]
    limits = [s.max_pairs for s in derived if s.max_pairs]
    return TaskExamples(
        task=task,
        member=member,
        values=values,
        truth=values if derived or task != "identity" else _read_values(faces, subjects, plan),
        tolerance=float(next((s.tolerance for s in derived if s.tolerance), 0.0)),
        derived=derived[0].origin if derived else "labels",
        pairs=pairs,
        same=consensus.same,
        weights=consensus.weights,
        unsettled=consensus.unsettled,
        max_pairs=sum(limits) if limits else None,
    )


def _read_consensus(
    session: Session,
    plan: Plan,
    task: str,
    faces: Sequence[FaceRecord],
    index_of: Mapping[int, int],
    snapshot: Mapping[str, Any],
) -> LabelConsensus:
    """Decide the pairs that the labels of a task say something of, by the rule of its source; none without such a one.

    Both faces are of the training, and one lies in a collection whose labels are used. What labels say of other faces
    does not change the weights of labellers.
    """
    sources = [s for s in plan.sources if s.task == task and s.origin == "labels"]
    if not sources:
        return label_consensus.decide_consensus({})
    votes = read_votes(session, snapshot, task)
    judged = {pair: of_pair for pair, of_pair in votes.items() if pair[0] in index_of and pair[1] in index_of}
    rule = ConsensusRule(sources[0].rule.weigh(judged), sources[0].rule.quorum)
    labelled_in = {plan.collection_of(s) for s in sources}
    chosen = {
        pair: of_pair
        for pair, of_pair in judged.items()
        if any(faces[index_of[pk]].collection_id in labelled_in for pk in pair)
    }
    return label_consensus.decide_consensus(chosen, rule)


def _read_values(faces: Sequence[FaceRecord], sources: Sequence[Source], plan: Plan) -> NDArray[np.float64]:
    """Return (N,) values: a subject's pk, or what `encode_values` makes of the metadata. NaN where the sources say
    nothing."""
    collections, key = {plan.collection_of(s) for s in sources}, sources[0].metadata
    if key is None:
        pks = [f.subject_pk if f.collection_id in collections else None for f in faces]
        return np.array([np.nan if pk is None else pk for pk in pks], np.float64)
    values = [f.metadata.get(key) if f.collection_id in collections else None for f in faces]
    return encode_values(values, sources[0].tolerance is not None)


def number_people(faces: Sequence[FaceRecord], tasks: Iterable[TaskExamples]) -> tuple[Ids, NDArray[np.float64]]:
    """Return each face's person and holdout draw. Faces with one name, or that labels call the same, are one person.

    So are those with one photo, or one subject's id, in several collections: else a person might be held out by one
    name, and learned from by another.

    Of several names a person has the draw of the oldest, and of its photos only if it has no name. With the lowest of
    all draws, the more photos labels join, the more people would be held out.
    """
    names, first, number = np.unique(
        np.array([f.person for f in faces], np.str_), return_index=True, return_inverse=True
    )
    joins = [t.pairs[t.same] for t in tasks if t.task == "identity"]
    ends = number[np.concatenate([*joins, _find_same_elsewhere(faces)])]
    graph = scipy.sparse.coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(names), len(names)))
    of_name = (
        scipy.sparse.csgraph.connected_components(graph, directed=False)[1] if len(names) else np.empty(0, np.int64)
    )
    people = of_name[number].astype(np.int64)
    has_no_name = np.array([faces[i].subject_id is None for i in first], np.bool_)
    order = np.lexsort((first, has_no_name))
    oldest = order[np.unique(of_name[order], return_index=True)[1]]
    draws = np.array([_draw(str(names[i])) for i in oldest], np.float64)
    return people, draws[people]


def _find_same_elsewhere(faces: Sequence[FaceRecord]) -> Ids:
    """Return (P, 2) pairs of faces in different collections with one photo, or of subjects with one id."""
    firsts, pairs = dict[tuple[str, ...], int](), list[tuple[int, int]]()
    for i, face in enumerate(faces):
        keys = [(face.image_id, str(face.number))] + ([(face.subject_id,)] if face.subject_id is not None else [])
        earlier = (firsts.setdefault(key, i) for key in keys)
        pairs += [(j, i) for j in earlier if faces[j].collection_id != face.collection_id]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _draw(name: str) -> float:
    """Draw a number in 0..1 that depends on the name alone."""
    return int(hash_bytes(name.encode())[:16], 16) / 2**64

"""What the tables say that a training may learn from, at one moment: faces, values, settled labels, people."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Face, Subject, Training
from app.learning import label_consensus
from app.learning.plan import Plan, Source
from ml.types import Ids, Rows

DISTRACTORS = 3000
"""Of each collection, the first so many: enough to make a report's search realistically hard."""
CREATED_AT = "collections_created_at"
"""The fact of a model, beside `changes`, that says when each collection it has learned from was created."""


@dataclass(frozen=True)
class Told:
    """One face as the tables have it, with what its metadata or its subject's says."""

    pk: int
    collection_id: str
    image_id: str
    number: int
    subject_pk: int | None
    subject_id: str | None
    metadata: dict[str, Any]

    @property
    def person(self) -> str:
        """The person's name, or the photo's where nobody has named it."""
        return f"{self.collection_id}\0{self.subject_id or f'{self.image_id}-{self.number}'}"


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known for one task, over the N faces of the snapshot.

    member: (N,) whether the face lies in one of the task's sources; values: (N,) float64, NaN unknown
    truth: (N,) what a report judges by: the values, or the subjects where identity is learned from labels alone
    pairs: (P, 2) places in the snapshot; same: (P,); weights: (P,): the settled labels
    drawn: of the derived pairs only so many are to be used, None: all
    """

    task: str
    member: NDArray[np.bool_]
    values: NDArray[np.float64]
    truth: NDArray[np.float64]
    tolerance: float
    derived: str
    pairs: Ids
    same: NDArray[np.bool_]
    weights: Rows
    unsettled: int
    drawn: int | None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """faces: gallery, N of them; distractors: faces of nobody, who are searched among and never learned from.

    people: (N,) number of the person, so that "same" labels join them; chance: (N,) the person's place in 0..1, the
    same in each training: whoever lies below the hold-out is held out.
    """

    faces: list[Told]
    distractors: list[Told]
    tasks: tuple[Facts, ...]
    people: Ids
    chance: NDArray[np.float64]
    taken: dict[str, Any]


def taken(session: Session, training: Training, plan: Plan) -> dict[str, Any]:
    """The change numbers and the labels that count, kept with the training the first time that it is asked.

    {"changes": {collection: number}, CREATED_AT: {collection: seconds}, "labels": {task: [pk]}}
    """
    if not training.snapshot:
        chosen = select(Collection).where(Collection.id.in_(plan.collections))
        labelled = {s.task for s in plan.sources if s.origin == "labels"}
        training.snapshot = {
            **collection_versions(session.scalars(chosen)),
            "labels": {task: label_consensus.standing(session, task) for task in sorted(labelled)},
        }
    return training.snapshot


def collection_versions(collections: Iterable[Collection]) -> dict[str, dict[str, Any]]:
    """Return what identifies the state of each collection: its change number, and when the collection was created.

    The creation time tells a collection from an earlier one of the same id, whose change numbers began at 0 too.
    """
    rows = list(collections)
    return {"changes": {row.id: row.change for row in rows}, CREATED_AT: {row.id: row.created_at for row in rows}}


def read(session: Session, plan: Plan, at: dict[str, Any], limit: int | None = None) -> Snapshot:
    """The faces up to these change numbers, less those removed since; of each collection at most `limit`.

    Of a collection that was deleted and created again since, all faces have been removed.
    """
    faces = list(_faces(session, at, "gallery", limit))
    distractors = list(_faces(session, at, "distractor", DISTRACTORS))
    place = {face.pk: i for i, face in enumerate(faces)}
    tasks = tuple(_facts(session, plan, task, faces, place, at) for task in plan.tasks)
    people, chance = _people(faces, tasks)
    return Snapshot(faces, distractors, tasks, people, chance, at)


def _faces(session: Session, at: dict[str, Any], role: str, limit: int | None) -> Iterator[Told]:
    for collection, change in sorted(at["changes"].items()):
        created_at = at.get(CREATED_AT, {}).get(collection)
        row = session.get(Collection, collection)
        if row is None or created_at not in (None, row.created_at):
            continue
        chosen = (
            select(Face, Subject).outerjoin(Subject, Subject.pk == Face.subject_pk).execution_options(yield_per=2000)
        )
        here = chosen.where(Face.collection_id == collection, Face.change <= change, Face.role == role)
        for face, subject in session.execute(here.order_by(Face.pk).limit(limit)):
            yield Told(
                face.pk,
                face.collection_id,
                face.image_id,
                face.number,
                subject.pk if subject else None,
                subject.id if subject else None,
                {**(subject.attributes if subject else {}), **face.attributes},
            )
            session.expunge(face)


def _facts(
    session: Session, plan: Plan, task: str, faces: Sequence[Told], place: dict[int, int], at: dict[str, Any]
) -> Facts:
    mine = [s for s in plan.sources if s.task == task]
    derived = [s for s in mine if s.origin != "labels"]
    values = _values(faces, derived, plan) if derived else np.full(len(faces), np.nan)
    labels = next((s for s in mine if s.origin == "labels"), None)
    said = label_consensus.settle(
        session, at["labels"].get(task, []) if labels else [], labels.rule if labels else label_consensus.Rule()
    )
    collections = {plan.of(s) for s in mine}
    labelled_in = {plan.of(s) for s in mine if s.origin == "labels"}
    ends = [(place.get(int(a), -1), place.get(int(b), -1)) for a, b in said.pairs]
    kept = np.array([_counts(faces, a, b, labelled_in) for a, b in ends], np.bool_)
    pairs = np.array(ends, np.int64).reshape(-1, 2)[kept]
    member = np.array([f.collection_id in collections for f in faces], np.bool_)
    member[pairs.ravel()] = True
    if derived and derived[0].metadata:
        member &= ~np.isnan(values) | np.isin(np.arange(len(faces)), pairs)
    named = [Source(origin="subjects", collection=s.collection) for s in mine]
    truth = values if derived or task != "identity" else _values(faces, named, plan)
    drawn = [s.max_pairs for s in derived if s.max_pairs]
    return Facts(
        task, member, values, truth, float(next((s.tolerance for s in derived if s.tolerance), 0.0)),
        derived[0].origin if derived else "labels", pairs, said.same[kept], said.weights[kept], said.unsettled,
        sum(drawn) if drawn else None,
    )  # fmt: skip


def _counts(faces: Sequence[Told], a: int, b: int, collections: set[str]) -> bool:
    """A label belongs to a source if one of its faces lies in the source's collection, and both are to be had."""
    return a >= 0 and b >= 0 and bool({faces[a].collection_id, faces[b].collection_id} & collections)


def _values(faces: Sequence[Told], sources: Sequence[Source], plan: Plan) -> NDArray[np.float64]:
    """Subjects by number; metadata as numbers where there is a tolerance, else by the number of what it says."""
    collections, key = {plan.of(s) for s in sources}, sources[0].metadata
    if key is None:
        told = [f.subject_pk if f.collection_id in collections else None for f in faces]
        return np.array([np.nan if t is None else t for t in told], np.float64)
    said = [f.metadata.get(key) if f.collection_id in collections else None for f in faces]
    if sources[0].tolerance is not None:
        return np.array([_number(s) for s in said], np.float64)
    words = [None if s is None else str(s) for s in said]
    code = {word: i for i, word in enumerate(sorted({w for w in words if w is not None}))}
    return np.array([np.nan if w is None else code[w] for w in words], np.float64)


def _number(said: object) -> float:
    """NaN for what is no finite number."""
    try:
        found = float(said) if isinstance(said, str | int | float) and not isinstance(said, bool) else np.nan
    except ValueError:
        return np.nan
    return found if np.isfinite(found) else np.nan


def _people(faces: Sequence[Told], tasks: Iterable[Facts]) -> tuple[Ids, NDArray[np.float64]]:
    """Whoever is named the same, or joined by a label that says the same person, is one person."""
    names, number = np.unique(np.array([f.person for f in faces], np.str_), return_inverse=True)
    joins = [f.pairs[f.same] for f in tasks if f.task == "identity"]
    ends = number[np.concatenate([*joins, np.empty((0, 2), np.int64)])]
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(names), len(names)))
    of_name = connected_components(graph, directed=False)[1] if len(names) else np.empty(0, np.int64)
    people = of_name[number].astype(np.int64)
    own = np.array([_chance(str(name)) for name in names], np.float64)
    lowest = np.full(int(of_name.max(initial=-1)) + 1, 1.0)
    np.minimum.at(lowest, of_name, own)
    return people, lowest[people]


def _chance(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64

"""The data of an evaluation: a collection's faces under the names that protocols use, and the protocols."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Face, Subject, now
from app.errors import Invalid
from app.galleries.damaged_faces import is_intact
from app.galleries.erasures import ERASED
from app.galleries.retention import may_be_used
from app.learning.evaluation_request import EvaluationRequest, ProtocolFile
from ml.errors import Corrupt, WrongShape
from ml.evaluation import protocols
from ml.evaluation.protocols import Protocol, held_out_people, open_set_people
from ml.evaluation.verification_pairs import read_folds
from ml.types import Ids
from workers.metadata_values import encode_values

MIN_QUERY_PHOTOS = 5
"""Photos that a person needs to be searched for: 423 people of LFW have as many."""
TEMPORARY_FOLDER = "likeness-protocol-"
"""How the names of temporary folders begin; one that is left holds names of people."""
OPEN_SET_HOLDOUT = 0.4
"""Share of people held out of training; half of them are enrolled."""
HOLDOUT_RULES = {"disjoint": (0.5, MIN_QUERY_PHOTOS), "holdout": (0.2, 2)}


@dataclass(frozen=True)
class EvaluationFace:
    """A face with the name of its photo, `Name/Name_0001.jpg`: the last two parts of its external_image_id."""

    pk: int
    collection_id: str
    image_id: str
    number: int
    photo: str
    person: int  # the subject's pk, -1 where unknown
    value: object  # its metadata under the requested key


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """The faces of an evaluation.

    gallery: the N faces to search, in order of pk; distractors: faces of nobody, searched among
    values: (N,) faces with equal values match; None: faces of one person match
    tolerance: how far two values may differ and still match
    """

    gallery: list[EvaluationFace]
    distractors: list[EvaluationFace]
    values: NDArray[np.float64] | None
    tolerance: float

    @property
    def faces(self) -> Ids:
        return np.array([e.pk for e in self.gallery], np.int64)

    @property
    def people(self) -> Ids:
        return np.array([e.person for e in self.gallery], np.int64)


def read_evaluation_set(session: Session, request: EvaluationRequest) -> EvaluationSet:
    """Read all faces that may be used, or with protocol files the largest face of each photo.

    Raises Invalid where there is none.
    """
    key = request.by.removeprefix("metadata.") if request.by != "subjects" else None
    gallery = list(_iterate_faces(session, request.collection, "gallery", key))
    if request.files:
        first = {e.photo: e for e in sorted(gallery, key=lambda e: -e.number)}
        gallery = sorted(first.values(), key=lambda e: e.pk)
    if not gallery:
        raise Invalid(f"collection {request.collection!r} has no gallery faces to rank", code="NothingToEvaluate")
    distractors = list(_iterate_faces(session, request.collection, "distractor", None))
    values = None if key is None else encode_values([e.value for e in gallery], request.tolerance > 0)
    return EvaluationSet(gallery, distractors, values, request.tolerance)


def make_protocols(request: EvaluationRequest, evaluation_set: EvaluationSet) -> list[Protocol]:
    """Make one protocol for each file or draw.

    Raises Invalid where a protocol names no face of the collection, or has been erased.
    """
    if any(file.text == ERASED for file in request.files):
        raise Invalid(
            "a protocol file names somebody who was erased since; send a new evaluation without them",
            code="NothingToEvaluate",
        )
    try:
        if request.protocol == "verification":
            return _read_folds(request.files[0], [e.photo for e in evaluation_set.gallery], evaluation_set.people)
        if request.files:
            photos = [e.photo for e in evaluation_set.gallery]
            return [_read_file(file, photos) for file in request.files]
        return [_draw_protocol(request.protocol, evaluation_set.people, request.seed + i) for i in range(request.draws)]
    except (Corrupt, WrongShape) as error:
        raise Invalid(str(error), code="NothingToEvaluate") from error


def draw_closed_set(people: Ids, seed: int) -> Protocol:
    """Draw one photo of each person with five or more as a query; all others are gallery and training."""
    numbers, counts = np.unique(people[people >= 0], return_counts=True)
    eligible = numbers[counts >= MIN_QUERY_PHOTOS]
    if not len(eligible):
        raise WrongShape("people with five photos or more", "some", 0)
    draw = np.random.default_rng(seed)
    queries = np.sort([draw.choice(np.flatnonzero(people == person)) for person in eligible])
    others = np.setdiff1d(np.arange(len(people)), queries)
    return Protocol(f"retrieval-{seed}", people, training=others, queries=queries, gallery=others)


def _draw_protocol(kind: str, people: Ids, seed: int) -> Protocol:
    if kind == "retrieval":
        return draw_closed_set(people, seed)
    if kind == "openset":
        return open_set_people(people, OPEN_SET_HOLDOUT, seed=seed)
    share, photos = HOLDOUT_RULES[kind]
    return held_out_people(people, share, seed=seed, photos=photos)


def _read_folds(file: ProtocolFile, photos: Sequence[str], people: Ids) -> list[Protocol]:
    """Read the folds of a list of pairs. All people whom a fold does not name may be learned from for it.

    people: (N,) whose each photo is, as the collection says.
    """
    with TemporaryDirectory(prefix=TEMPORARY_FOLDER) as folder:
        path = Path(folder) / "pairs.txt"
        path.write_text(file.text, "utf-8")
        count = len(read_folds(path, photos))
        return [_without_judged(protocols.read(f"view2:{f}", Path(folder), photos), people) for f in range(count)]


def _without_judged(fold: Protocol, people: Ids) -> Protocol:
    """Remove from the training side all people who are judged, also under another name in the collection."""
    judged = np.isin(people, people[fold.pairs.index]) & (people >= 0)
    return replace(fold.narrowed(np.flatnonzero(~judged)), people=people)


def _read_file(file: ProtocolFile, photos: Sequence[str]) -> Protocol:
    with TemporaryDirectory(prefix=TEMPORARY_FOLDER) as folder:
        name = file.name.removesuffix(".txt")
        (Path(folder) / f"{name}.txt").write_text(file.text, "utf-8")
        return protocols.read(name, Path(folder), photos)


def _iterate_faces(session: Session, collection: str, role: str, key: str | None) -> Iterator[EvaluationFace]:
    chosen = select(
        Face.pk, Face.collection_id, Face.image_id, Face.number, Face.external_image_id, Face.subject_pk,
        Face.attributes, Subject.attributes,
    ).outerjoin(Subject, Subject.pk == Face.subject_pk)  # fmt: skip
    here = chosen.where(Face.collection_id == collection, Face.role == role, may_be_used(now()), is_intact())
    here = here.order_by(Face.pk)
    for pk, own, image, number, photo, subject, *metadata in session.execute(here):
        name = "/".join((photo or f"{image}-{number}").split("/")[-2:])
        value = {**(metadata[1] or {}), **(metadata[0] or {})}.get(key) if key else None
        yield EvaluationFace(pk, own, image, number, name, -1 if subject is None else subject, value)

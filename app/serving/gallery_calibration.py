"""What depends on a gallery and on this machine: its calibration, its cells, and the measured curve over m."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, aliased

from app.db.session import snapshot, writing
from app.db.tables import Collection, Deployment, Face, Job, now
from app.errors import NotFound
from app.queue.jobs import LIVE_STATES
from app.queue.messages import IngestBatch
from app.resources import Resources
from app.serving import index_builder
from app.serving.index_builder import Place
from app.serving.loaded_index import Held
from app.serving.open_set_measurement import measure_open_set
from app.serving.scores import DEFAULT_FMR
from ml.calibration import Calibration, draw_impostor_pairs, sample_genuine
from ml.distances import Distance
from ml.errors import TooFewPairs
from ml.identification.decision_rule import DecisionRule
from ml.identification.open_set import OpenSetCalibration
from ml.identification.searches import GalleryPeople
from ml.indexes import measure_curve
from ml.indexes.base import Index
from ml.model import Model
from ml.types import Ids, Rows

FEWEST = 100
"""Below so many faces nothing is measured by itself: a few pairs say little about a false-match rate."""
CHANGED = 0.1
SAMPLE_BYTES = 32 * 2**20
PEOPLE, PHOTOS = 2000, 4
RATES = (0.1, 0.01, 0.001, 0.0001)
QUERIES, COMPARED = 100, 2_000_000_000  # at most so many, and numbers compared for all of them in one pass


def due(faces: int, measured_on: int, quiet: bool) -> bool:
    """Whether a gallery is to be measured anew: at once when it has doubled, by a tenth's change when it is quiet."""
    if faces < FEWEST:
        return False
    return faces >= 2 * measured_on or (quiet and abs(faces - measured_on) > CHANGED * measured_on)


def importing(session: Session, collection: str) -> bool:
    """Whether photos of an import are still being enrolled."""
    parent = aliased(Job)
    parts = select(Job.id).join(parent, Job.parent_id == parent.id)
    live = parts.where(Job.kind == IngestBatch.kind, Job.state.in_(LIVE_STATES))
    return session.scalar(live.where(parent.body["collection"].as_string() == collection).limit(1)) is not None


def measure(resources: Resources, collection: str, task: str, generation: Model) -> dict[str, Any]:
    """The facts of a generation for a task of a collection, from its embeddings in the tables: what belongs into
    `Deployment.facts[generation.id]`.

    {"calibration": Calibration.to_dict() or None, "default_fmr", "thresholds": [{asked, distance, fmr, low, high,
    enough}], "open_set": {"calibration": OpenSetCalibration.to_dict(), "rates": [{fpir, distance, possible_distance,
    low, high, enough, named_rightly}]} or None, "cells": p, "curve": [{m, recall, fraction, ms}], "faces",
    "measured_at"}

    The calibration is None where this gallery cannot give one: too few pairs, or a task that subjects do not define;
    the generation's own then holds. The probability is of this gallery's own pairs, except where the generation has
    learned from them, which makes it too sure: then it is that of the people held out of its training, and only the
    impostors, that is the false-match rates, are this gallery's. Raises NotFound.
    """
    with snapshot(resources.database) as session:
        born = session.scalar(select(Collection.created_at).where(Collection.id == collection))
        if born is None:
            raise NotFound(f"no collection {collection!r}")
        place = Place(collection, task, generation.id, born)
        dim = index_builder.width(generation, task)
        index = index_builder.build(session, place, dim, generation.metric, resources.settings.index_device)
        faces = _people(session, collection)
    return _measured(Held(place, generation, index, 0), faces)


def renew(database: Engine, held: Held) -> bool:
    """Measures a deployment's champion anew, on the index that serves, and writes it down. False: it has moved on."""
    place = held.place
    with snapshot(database) as session:
        faces = _people(session, place.collection)
    measured = _measured(held, faces)
    with writing(database) as session:
        collection = session.get(Collection, place.collection, with_for_update=True, populate_existing=True)
        deployment = session.get(Deployment, (place.collection, place.task), populate_existing=True)
        if collection is None or collection.created_at != place.born or deployment is None:
            return False
        if deployment.champion != place.generation:
            return False
        deployment.facts = deployment.facts | {place.generation: measured}
        collection.change += 1  # who follows it has read these facts
    return True


@dataclass(frozen=True, eq=False)
class GalleryFaces:
    """Every face of a collection. ids: (n,) rising; subjects: (n,) a number a person, -1 none; is_distractor: (n,)"""

    ids: Ids
    subjects: Ids
    is_distractor: NDArray[np.bool_]

    def among(self, ids: Ids) -> "GalleryFaces":
        """Those that are among these ids."""
        there = np.isin(self.ids, ids, assume_unique=True)
        return GalleryFaces(self.ids[there], self.subjects[there], self.is_distractor[there])

    @property
    def people(self) -> Ids:
        """(n,) whose each face is, -1 unknown. A distractor is somebody else than everybody, which in a large set of
        strangers is as good as true."""
        people = self.subjects.copy()
        nobody = (people < 0) & self.is_distractor
        people[nobody] = people.max(initial=0) + 1 + np.arange(nobody.sum())
        return people


def _people(session: Session, collection: str) -> GalleryFaces:
    chosen = select(Face.pk, Face.subject_pk, Face.role).where(Face.collection_id == collection).order_by(Face.pk)
    rows = session.execute(chosen).all()
    ids = np.array([r.pk for r in rows], np.int64)
    subjects = np.array([-1 if r.subject_pk is None else r.subject_pk for r in rows], np.int64)
    return GalleryFaces(ids, subjects, np.array([r.role == "distractor" for r in rows], np.bool_))


def _measured(held: Held, faces: GalleryFaces) -> dict[str, Any]:
    index, rng = held.index, np.random.default_rng(0)
    most = max(100, SAMPLE_BYTES // (4 * index.dim))
    with held.lock.shared():
        faces = faces.among(index.ids())
        ids, people = faces.ids, faces.people
        drawn = np.sort(rng.permutation(len(ids))[:most])
        together = np.array(list(_several(people, rng)), np.int64)[:most]
        rows, alike = index.rows(ids[drawn]), index.rows(ids[together])
    queries = max(10, min(QUERIES, COMPARED // max(1, len(ids) * index.dim)))
    searchable = cast(Index, held)  # as an index is, but each search shares the lock
    curve = measure_curve(searchable, rows[rng.permutation(len(rows))[:queries]]) if len(rows) else ()
    calibration = _calibrated(rows, people[drawn], alike, people[together], index.metric)
    if held.place.task != "identity":
        calibration = None
    if calibration and (unseen := _of_strangers(held.generation, held.place)):
        calibration = replace(unseen, impostors=calibration.impostors)
    return {
        "calibration": calibration.to_dict() if calibration else None,
        "default_fmr": DEFAULT_FMR,
        "thresholds": [{"asked": f} | asdict(calibration.threshold(f)) for f in RATES] if calibration else [],
        "open_set": _open_set(held, faces) if held.place.task == "identity" else None,
        "cells": index.cells,
        "curve": [asdict(point) for point in curve],
        "faces": len(ids),
        "measured_at": now(),
    }


def _open_set(held: Held, faces: GalleryFaces) -> dict[str, Any]:
    """How strangers score here: by searches for people whom the model has not learned from."""
    people = GalleryPeople.from_rows(faces.ids, faces.subjects, faces.is_distractor)
    learned = _held_out_searches(held.generation, held.place)
    strangers = None if learned is None else learned.strangers
    return measure_open_set(held, people, strangers, learned.rule if learned else DecisionRule()).to_dict(
        len(faces.ids)
    )


def _held_out_searches(generation: Model, place: Place) -> OpenSetCalibration | None:
    """Searches for people held out of a training on this collection; None where the model learned nothing here."""
    if not _learned_here(generation, place):
        return None
    kept = generation.facts.get("open_set", {}).get(place.task)
    return OpenSetCalibration.from_dict(kept) if kept else OpenSetCalibration(DecisionRule())


def _of_strangers(generation: Model, place: Place) -> Calibration | None:
    """What a training measured on people held out, of a generation that it fitted to this collection's labels."""
    unseen = _learned_here(generation, place) and place.task in generation.facts.get("by_held_out", ())
    return generation.calibrations[place.task] if unseen else None


def _learned_here(generation: Model, place: Place) -> bool:
    """Whether a training fitted the model to people of this collection."""
    return "training" in generation.facts and place.collection in generation.facts["changes"]


def _calibrated(rows: Rows, people: Ids, alike: Rows, whose: Ids, metric: Distance) -> Calibration | None:
    """From a random sample, which gives the impostors, and from photos of the same people."""
    pairs = int(np.clip(2e8 / rows.shape[1], 20_000, 200_000))
    drawn = draw_impostor_pairs(people, pairs, 0)
    impostor = metric.pair_distances(rows, drawn)
    genuine = sample_genuine(alike, whose, pairs // 4, 0, metric)
    try:
        return Calibration.fit(genuine, impostor, people[drawn])
    except TooFewPairs:
        return None


def _several(people: Ids, rng: np.random.Generator) -> Iterator[np.int64]:
    """Places of a few photos each of people who have more than one."""
    order = np.argsort(people, kind="stable")
    numbers, start, photos = np.unique(people[order], return_index=True, return_counts=True)
    several: NDArray[np.int64] = np.flatnonzero((numbers >= 0) & (photos > 1))
    for person in rng.permutation(several)[:PEOPLE]:
        mine = order[start[person] : start[person] + photos[person]]
        yield from rng.permutation(mine)[:PHOTOS]

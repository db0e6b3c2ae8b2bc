"""Search for people of an index as if they were strangers, to see whether its measured thresholds still hold."""

import math
import time
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Face
from app.serving.calibration.gallery_faces import GalleryFaces, read_faces, read_refused_faces
from app.serving.calibration.learned_gallery import read_learned_gallery
from app.serving.calibration.measured import Losses, Measured, MeasuredLabels
from app.serving.calibration.open_set_measurement import LockedIndex
from app.serving.loaded_index import LoadedIndex
from app.storage.installation_key import InstallationKey
from ml.identification.new_hubs import StrangerProbes, exceed_rates, find_named_often, surely_exceed_rates
from ml.identification.open_set import MIN_GALLERY_SHARE
from ml.identification.searches import Flags, GalleryPeople, search_gallery
from ml.types import Ids

MIN_PROBES, MAX_PROBES = 200, 1000
MAX_MULTIPLICATIONS = 2e10
"""The limit of work of one check, unless it would leave fewer than MIN_PROBES."""
REST_RATIO = 20.0
"""A search waits so many times as long as the last one took. So does a check for what it took to count changes: what it
does for each new face it does once."""


@dataclass(frozen=True, eq=False)
class GallerySearch:
    """What searches for people of the gallery without their own faces have shown.

    probes: what new faces are compared with; losses: what was lost by then
    named_often: owners who are named too often since; exceeds_rates: whether all of them together surely are
    next_at: when it may be repeated, by the monotonic clock
    """

    probes: StrangerProbes
    losses: Losses
    named_often: frozenset[int]
    exceeds_rates: bool
    next_at: float


@dataclass(frozen=True)
class NewcomerSearch:
    """What searches for faces of people that were not measured, without the people's own faces, have shown.

    exceeds_rates: see `exceed_rates`; is_due: whether more have come or changed since the last one
    next_at: when it may be repeated, by the monotonic clock
    """

    exceeds_rates: bool = False
    is_due: bool = False
    next_at: float = -math.inf


@dataclass(frozen=True, eq=False)
class SearchableFaces:
    """The faces of an index that may be found now. usable: (n,) their pks; everybody: of the collection, as named"""

    index: LoadedIndex
    everybody: GalleryFaces
    usable: Ids
    indexed: int

    @classmethod
    def read(cls, session: Session, index: LoadedIndex) -> Self:
        """Read them from the index and the tables."""
        indexed, everybody = index.read_ids(), read_faces(session, index.key.collection)
        is_refused = np.isin(everybody.ids, read_refused_faces(session, index.key.collection))
        return cls(index, everybody, everybody.ids[np.isin(everybody.ids, indexed) & ~is_refused], len(indexed))

    def limit_probes(self) -> int:
        """Return for how many people to search."""
        work = max(1, len(self.usable) * self.index.dim)
        return int(np.clip(MAX_MULTIPLICATIONS / work, MIN_PROBES, MAX_PROBES))

    def find_probes(self, ids: Ids) -> Flags:
        """Return which of (n,) faces may stand for strangers: those that were enrolled with a name, and distractors."""
        faces = self.everybody.restrict_to(ids)
        return faces.is_named | faces.is_distractor

    def find_people(self, kept: Ids, named: GalleryFaces) -> tuple[GalleryPeople, Ids, LockedIndex]:
        """Return the people of the (n,) kept faces, the (n,) owners of these, and the index that finds only them.

        named: everybody, by the names that count
        """
        faces = named.restrict_to(kept)
        people = GalleryPeople.from_rows(faces.ids, faces.subjects, faces.is_distractor)
        return people, faces.owners, LockedIndex(self.index, kept if len(kept) < self.indexed else None)


def search_measured(
    session: Session,
    installation_key: InstallationKey,
    index: LoadedIndex,
    measured: Measured,
    losses: Losses,
    measured_labels: MeasuredLabels,
) -> GallerySearch:
    """Search for people of the measured gallery as if they were strangers.

    If people may have lost the next person, who kept them from being named, the gallery as it is now is searched, too;
    and so is one that the model has learned from elsewhere: who has come since counts as learned there.

    measured_labels: what labels said when it was measured
    """
    started = time.monotonic()
    faces = SearchableFaces.read(session, index)
    kept = _find_measured_faces(session, installation_key, index, measured, faces.usable)
    named = faces.everybody.name_labelled(measured_labels.labelled).join(measured_labels.joined)
    former, owners, searched = faces.find_people(kept, named)
    probes = StrangerProbes.draw(searched, former, owners, faces.limit_probes(), faces.find_probes(former.ids))
    is_due = bool(losses) or measured.trained_at == 0
    named_often, exceeds_rates = _search_for_everybody(faces, measured) if is_due else (frozenset[int](), False)
    ended = time.monotonic()
    return GallerySearch(probes, losses, named_often, exceeds_rates, ended + REST_RATIO * (ended - started))


def _search_for_everybody(faces: SearchableFaces, measured: Measured) -> tuple[frozenset[int], bool]:
    """Search for people of the gallery as it is now.

    Returns the owners who are named too often, whom no search names any more, and whether strangers are surely named
    as the others more often than is stated.
    """
    named = faces.everybody.name_labelled(measured.labelled).join(measured.joined)
    people, owners, searched = faces.find_people(faces.usable, named)
    positions = people.sample_rivals(faces.limit_probes(), faces.find_probes(people.ids))
    outcomes = search_gallery(searched, people, positions, measured.rule)
    owner_of = np.zeros(len(people.is_named), np.int64)
    owner_of[people.owners] = owners
    hubs = sorted(find_named_often(outcomes, measured.levels))
    others = replace(outcomes, stranger=np.where(np.isin(outcomes.nearest, hubs), np.inf, outcomes.stranger))
    exceeds_rates = surely_exceed_rates(others, measured.levels)
    return measured.list_owners(frozenset(owner_of[hubs].tolist())), exceeds_rates


def search_newcomers(
    session: Session, index: LoadedIndex, measured: Measured, measured_labels: MeasuredLabels
) -> NewcomerSearch:
    """Search for the faces of people that have come, been named, changed or been allowed since the measurement.

    measured_labels: what labels said when it was measured
    """
    started = time.monotonic()
    faces = SearchableFaces.read(session, index)
    named = faces.everybody.name_labelled(measured.labelled)
    people, _, searched = faces.find_people(faces.usable, named.join(measured.joined))
    later = [
        *_list_changed(session, index, measured.change),
        *(measured.labelled.keys() - measured_labels.labelled.keys()),
    ]
    is_later = np.isin(people.ids, later)
    new_counts = np.bincount(people.owners[is_later], minlength=len(people.is_named))
    shares = np.where(people.is_named, new_counts / people.face_counts, 0.0)
    positions = people.sample(shares > 0, faces.limit_probes(), np.random.default_rng(0), is_later)
    outcomes = search_gallery(searched, people, positions, measured.rule)
    exceeds_rates = exceed_rates(outcomes, shares, int(people.is_named.sum()), measured.levels)
    ended = time.monotonic()
    return NewcomerSearch(exceeds_rates, False, ended + REST_RATIO * (ended - started))


def _find_measured_faces(
    session: Session, installation_key: InstallationKey, index: LoadedIndex, measured: Measured, usable: Ids
) -> Ids:
    """Return those of (n,) usable faces that were measured and have not changed since.

    If most have changed, as when all are given a source, those that have changed count too.
    """
    changed = _list_changed(session, index, measured.since)
    if measured.trained_at is None:
        present = usable[usable <= measured.last_face]
    else:
        present = usable[read_learned_gallery(session, installation_key, index.model, index.key).find_learned(usable)]
    unchanged = usable[np.isin(usable, changed, invert=True)]
    return unchanged if len(unchanged) >= MIN_GALLERY_SHARE * len(present) else present


def _list_changed(session: Session, index: LoadedIndex, since: int) -> Ids:
    """Return the pks of the faces of a collection that were enrolled or changed after that change."""
    of_collection = select(Face.pk).where(Face.collection_id == index.key.collection)
    return np.array(session.scalars(of_collection.where(Face.change > since)).all(), np.int64)

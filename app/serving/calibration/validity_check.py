"""Check whether the measured thresholds of a deployment still hold.

Somebody may be enrolled for whom strangers would be taken (a hub), hubs may lose the next person, who kept them from
being named, labels may join the two, or most of the measured faces may be gone. New people may be of a poorer camera,
and be named for strangers like themselves: then the gallery is measured anew. A measurement does not search for faces
without a name, which may show anybody: all of them are checked.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from sqlalchemy import BindParameter, Integer, bindparam, func, select
from sqlalchemy.orm import Session

from app.db.id_lists import select_ids
from app.db.session import snapshot
from app.db.tables import Face
from app.resources import Resources
from app.serving.calibration.gallery_calibration import find_training_change
from app.serving.calibration.gallery_faces import GalleryFaces, read_faces, read_refused_faces
from app.serving.calibration.learned_gallery import read_learned_gallery
from app.serving.calibration.open_set_measurement import REPORTED_FPIRS, LockedIndex
from app.serving.deployments import ServedDeployment, Validity
from app.serving.faces.columns import DISTRACTOR
from app.serving.index_builder import COLLECTION
from app.serving.loaded_index import ROWS_PER_READ, LoadedIndex
from app.serving.scores import Scores
from app.storage.installation_key import InstallationKey
from ml.identification.new_hubs import (
    Level,
    NewHubs,
    StrangerProbes,
    exceed_rates,
    find_named_often,
    may_exceed_rates,
)
from ml.identification.open_set import MIN_GALLERY_SHARE
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import MAX_OWN_FACES, GalleryPeople, search_gallery
from ml.types import Ids, Rows

MIN_PROBES, MAX_PROBES, MAX_NEWCOMERS = 200, 1000, 200
MAX_MULTIPLICATIONS = 2e10
"""The limit of work of one check, unless it would leave fewer than MIN_PROBES."""
REST_RATIO = 20.0
"""A check waits so many times as long as the last one took to count what has changed. What it does for each new face it
does once. Searches of the gallery rest by themselves."""
SINCE: BindParameter[int] = bindparam("since", type_=Integer)
CHANGED_QUERY = select(Face.pk, Face.subject_pk, Face.role).where(Face.collection_id == COLLECTION, Face.change > SINCE)
IS_MEASURED = Face.pk <= bindparam("last_face")
COUNT_QUERY = select(func.count().filter(~IS_MEASURED), func.max(Face.change).filter(IS_MEASURED)).where(
    Face.collection_id == COLLECTION, Face.change > SINCE
)
NAMELESS_QUERY = select(Face.pk).where(
    Face.collection_id == COLLECTION, Face.role != DISTRACTOR, Face.subject_pk.is_(None)
)


@dataclass(frozen=True, eq=False)
class Measured:
    """What a measurement was made of.

    change: the collection's last change by then; faces: their number; last_face: their largest pk, 0 if not known
    people: how many with a name, 0 if not known
    trained_at: the change up to which the model has learned from this collection; None if it has not
    levels: the thresholds; rule: how people are scored; labelled: face without a name -> who labels say that it is
    is_labelled_alike: whether as many faces had names by labels alone
    joined: whom labels join now: see `ServedConstraints.joined_people`
    is_joined_alike: whether they joined as many
    ended: how many more faces than at the measurement may not be used now
    """

    change: int
    faces: int
    last_face: int
    people: int
    trained_at: int | None
    levels: Sequence[Level]
    rule: DecisionRule
    labelled: Mapping[int, int]
    is_labelled_alike: bool
    joined: Mapping[int, int]
    is_joined_alike: bool
    ended: int

    @classmethod
    def of(cls, served: ServedDeployment, index: LoadedIndex, scores: Scores, ended: int) -> Self:
        """Return what the thresholds of an index were measured of."""
        labelled = served.constraints.constraints.labelled_subjects
        rates = sorted({scores.default_fpir, *REPORTED_FPIRS})
        limits = [(fpir, scores.person_threshold(fpir, index.state.vectors)) for fpir in rates]
        levels = [
            Level(fpir, limit.person_distance, limit.nameless_distance, limit.rule, limit.high)
            for fpir, limit in limits
            if limit is not None
        ]
        return cls(
            scores.calibrated_at_change or 0,
            scores.calibrated_at_count,
            scores.calibrated_at_face or 0,
            scores.calibrated_at_people_count or 0,
            find_training_change(index.model, index.key),
            levels,
            scores.rule,
            labelled,
            scores.calibrated_at_labelled_count == len(labelled),
            served.constraints.joined_people,
            scores.calibrated_at_joined_count == len(served.constraints.joined_people),
            ended,
        )

    def find_labels(self) -> frozenset[int]:
        """Return the faces that labels named when this was measured, as far as that is known."""
        return frozenset(self.labelled if self.is_labelled_alike else ())

    def find_joined(self) -> AbstractSet[tuple[int, int]]:
        """Return whom labels joined when this was measured, as far as that is known."""
        return self.joined.items() if self.is_joined_alike else frozenset()

    def list_owners(self, people: frozenset[int]) -> frozenset[int]:
        """Return the numbers by which searches know these people: those of whom labels joined to them too."""
        joined = dict(self.joined) | {2 * pk + 1: 2 * person for pk, person in self.labelled.items()}
        return people | {owner for owner, person in joined.items() if person in people}

    @property
    def since(self) -> int:
        """Faces that were enrolled or changed later may be hubs that were not measured."""
        return self.change if self.trained_at is None else self.trained_at


@dataclass(frozen=True)
class Losses:
    """What may have taken the next person from somebody who was measured.

    deleted: how many of the measured faces; changed_at: the last change of one of them, 0 if there is none
    ended: see `Measured`; joined: whom labels joined since
    """

    deleted: int
    changed_at: int
    ended: int
    joined: AbstractSet[tuple[int, int]]

    def __bool__(self) -> bool:
        return bool(self.deleted or self.changed_at or self.ended or self.joined)


@dataclass(frozen=True, eq=False)
class GallerySearch:
    """What searches for people of the gallery without their own faces have shown.

    probes: what new faces are compared with; losses: what was lost by then
    named_often: owners who are named too often since; next_at: when it may be repeated, by the monotonic clock
    """

    probes: StrangerProbes
    losses: Losses
    named_often: frozenset[int]
    next_at: float


@dataclass(frozen=True)
class NewcomerSearch:
    """What searches for people who were enrolled since the measurement, without their own faces, have shown.

    exceeds_rates: see `exceed_rates`; is_due: whether more have come since the last one
    next_at: when it may be repeated, by the monotonic clock
    """

    exceeds_rates: bool = False
    is_due: bool = False
    next_at: float = -math.inf


@dataclass(frozen=True, eq=False)
class Checked:
    """What was found up to a change.

    measured_change: of the measurement; labelled, joined, ended: see `Measured`
    measured_labels, measured_joined: what labels said when it was first checked, if that was measured
    search: the last one; is_search_due: whether more was lost since; new: what the new faces do
    newcomers: the last search for new people
    next_at: when the next check may begin, by the monotonic clock
    """

    measured_change: int
    change: int
    labelled: Mapping[int, int]
    joined: Mapping[int, int]
    ended: int
    measured_labels: frozenset[int]
    measured_joined: AbstractSet[tuple[int, int]]
    search: GallerySearch
    is_search_due: bool
    new: NewHubs
    newcomers: NewcomerSearch
    validity: Validity
    next_at: float

    @property
    def next_search_at(self) -> float:
        """When a search that is due may begin, by the monotonic clock; infinity if none is."""
        gallery_at = self.search.next_at if self.is_search_due else math.inf
        return min(gallery_at, self.newcomers.next_at if self.newcomers.is_due else math.inf)


def check(resources: Resources, index: LoadedIndex, measured: Measured, known: Checked | None) -> Checked:
    """Check what has changed in an index since it was measured, or since it was last checked."""
    change, collection = index.state.change, index.key.collection
    params = {"collection": collection, "since": measured.change, "last_face": measured.last_face}
    measured_labels = known.measured_labels if known else measured.find_labels()
    measured_joined = known.measured_joined if known else measured.find_joined()
    with snapshot(resources.database) as session:
        started = time.monotonic()
        enrolled, changed_at = session.execute(COUNT_QUERY, params).one()
        counted = time.monotonic()
        left = index.state.vectors - enrolled
        joined = measured.joined.items() - measured_joined
        losses = Losses(max(0, measured.faces - left), changed_at or 0, measured.ended, joined)
        if known is None or (losses != known.search.losses and counted >= known.search.next_at):
            search = _search_gallery(session, resources.installation_key, index, measured, losses, measured_joined)
            new = NewHubs(search.probes)
            faces = _list_new_faces(session, collection, measured, measured.since, measured_labels)
            faces |= _list_nameless(session, collection, measured)
        else:
            search, new = known.search, known.new
            faces = _list_new_faces(session, collection, measured, known.change, known.labelled.keys())
        newcomers = known.newcomers if known else NewcomerSearch()
        has_come = any(person % 2 == 0 and pk > measured.last_face for pk, person in faces.items())
        if has_come and measured.last_face and may_exceed_rates(enrolled, measured.people, measured.levels):
            newcomers = replace(newcomers, is_due=not newcomers.exceeds_rates)
        if newcomers.is_due and counted >= newcomers.next_at:
            newcomers = _search_newcomers(session, index, measured)
    for rows, people in _iterate_people(index, faces):
        new = new.add(rows, people, index.index.metric, measured.levels)
    hubs = measured.list_owners(new.find(together=measured.trained_at is None)) | search.named_often
    return Checked(
        measured.change,
        change,
        measured.labelled,
        measured.joined,
        measured.ended,
        measured_labels,
        measured_joined,
        search,
        losses != search.losses,
        new,
        newcomers,
        _judge(measured, hubs, index.state.vectors, left, newcomers.exceeds_rates),
        time.monotonic() + REST_RATIO * (counted - started),
    )


def _judge(measured: Measured, hubs: frozenset[int], faces: int, left: int, exceeds_rates: bool) -> Validity:
    """Return what follows from the hubs, and from how many faces there are. left: of these, how many were measured

    Those who refused since count as measured. exceeds_rates: see `NewcomerSearch`
    """
    faces, left = faces - max(0, measured.ended), left - max(0, measured.ended)
    is_outdated = left < MIN_GALLERY_SHARE * min(measured.faces, faces)
    has_named = any(not owner % 2 or owner // 2 in measured.labelled for owner in hubs)
    return Validity(hubs, is_outdated, is_outdated or exceeds_rates or (has_named and measured.trained_at is None))


def _list_new_faces(
    session: Session, collection: str, measured: Measured, since: int, known_labels: AbstractSet[int]
) -> dict[int, int]:
    """Return face -> its person, of all faces of the people of whom some came, changed, were labelled or lost labels.

    A face without a name is a person by itself. known_labels: the faces that labels named before
    """
    changed = session.execute(CHANGED_QUERY, {"collection": collection, "since": since}).all()
    owners = {pk: 2 * pk + 1 if person is None else 2 * person for pk, person, role in changed if role != DISTRACTOR}
    owners |= {pk: 2 * pk + 1 for pk in known_labels - measured.labelled.keys()}
    new_labels = measured.labelled.keys() & (owners.keys() | (measured.labelled.keys() - known_labels))
    owners |= {pk: 2 * measured.labelled[pk] for pk in new_labels}
    faces = {pk: measured.joined.get(owner, owner) for pk, owner in owners.items()}
    return faces | _list_faces_of(session, measured, {person for person in faces.values() if person % 2 == 0})


def _list_faces_of(session: Session, measured: Measured, people: AbstractSet[int]) -> dict[int, int]:
    """Return face -> person, of all faces of these people, those that labels joined to them included."""
    person_of = {person: person for person in people}
    person_of |= {owner: person for owner, person in measured.joined.items() if person in people}
    subjects = [owner // 2 for owner in person_of if owner % 2 == 0]
    named = select(Face.pk, Face.subject_pk).where(Face.role != DISTRACTOR)
    rows = session.execute(named.where(Face.subject_pk.in_(select_ids(session, subjects)))) if subjects else ()
    faces = {pk: person_of[2 * subject] for pk, subject in rows if subject is not None}
    faces |= {owner // 2: person for owner, person in person_of.items() if owner % 2}
    return faces | {pk: 2 * subject for pk, subject in measured.labelled.items() if 2 * subject in people}


def _iterate_people(index: LoadedIndex, faces: Mapping[int, int]) -> Iterator[tuple[Rows, Ids]]:
    """Yield the (n, dim) rows of faces, and the (n,) people of these, all faces of a person at once."""
    by_person = np.array(sorted((person, pk) for pk, person in faces.items()), np.int64).reshape(-1, 2)
    people, firsts = np.unique(by_person[:, 0], return_index=True)
    batch_of = firsts // ROWS_PER_READ  # of the first face of each person
    for batch in np.unique(batch_of).tolist():
        part = by_person[np.isin(by_person[:, 0], people[batch_of == batch])]
        pks, rows = index.read_rows(np.sort(part[:, 1]))
        yield rows, np.array([faces[pk] for pk in pks.tolist()], np.int64)


def _list_nameless(session: Session, collection: str, measured: Measured) -> dict[int, int]:
    """Return face -> its person, which it is by itself, of all that have no name by labels either."""
    pks = session.scalars(NAMELESS_QUERY, {"collection": collection})
    return {pk: 2 * pk + 1 for pk in pks if pk not in measured.labelled}


def _search_gallery(
    session: Session,
    installation_key: InstallationKey,
    index: LoadedIndex,
    measured: Measured,
    losses: Losses,
    measured_joined: AbstractSet[tuple[int, int]],
) -> GallerySearch:
    """Search for people of the measured gallery as if they were strangers.

    If people may have lost the next person, who kept them from being named, the gallery as it is now is searched, too.

    measured_joined: see `Checked`
    """
    started = time.monotonic()
    indexed = index.read_ids()
    everybody = read_faces(session, index.key.collection)
    is_refused = np.isin(everybody.ids, read_refused_faces(session, index.key.collection))
    usable = everybody.ids[np.isin(everybody.ids, indexed) & ~is_refused]
    limit = int(np.clip(MAX_MULTIPLICATIONS / max(1, len(usable) * index.dim), MIN_PROBES, MAX_PROBES))
    kept = _find_measured_faces(session, installation_key, index, measured, usable)
    former, owners, searched = _find_people(index, everybody.join(dict(measured_joined)), kept, len(indexed))
    probes, named_often = StrangerProbes.draw(searched, former, owners, limit), frozenset[int]()
    if losses:
        present, owners, searched = _find_people(index, everybody.join(measured.joined), usable, len(indexed))
        outcomes = search_gallery(searched, present, present.sample_rivals(limit), measured.rule)
        owner_of = np.zeros(len(present.is_named), np.int64)
        owner_of[present.owners] = owners
        hubs = owner_of[sorted(find_named_often(outcomes, measured.levels))].tolist()
        named_often = measured.list_owners(frozenset(hubs))
    ended = time.monotonic()
    return GallerySearch(probes, losses, named_often, ended + REST_RATIO * (ended - started))


def _search_newcomers(session: Session, index: LoadedIndex, measured: Measured) -> NewcomerSearch:
    """Search for people all of whose faces have come since the measurement."""
    started = time.monotonic()
    indexed, everybody = index.read_ids(), read_faces(session, index.key.collection)
    is_refused = np.isin(everybody.ids, read_refused_faces(session, index.key.collection))
    usable = everybody.ids[np.isin(everybody.ids, indexed) & ~is_refused]
    named = everybody.name_labelled(measured.labelled).join(measured.joined)
    present, _, searched = _find_people(index, named, usable, len(indexed))
    was_measured = np.bincount(present.owners[present.ids <= measured.last_face], minlength=len(present.is_named)) > 0
    is_new = present.is_named & ~was_measured & (present.face_counts <= MAX_OWN_FACES)
    newcomers, rng = int(is_new.sum()), np.random.default_rng(0)
    positions = present.sample(is_new, min(newcomers, MAX_NEWCOMERS), rng)
    outcomes = search_gallery(searched, present, positions, measured.rule)
    exceeds_rates = exceed_rates(outcomes, newcomers, measured.people, measured.levels)
    ended = time.monotonic()
    return NewcomerSearch(exceeds_rates, False, ended + REST_RATIO * (ended - started))


def _find_measured_faces(
    session: Session, installation_key: InstallationKey, index: LoadedIndex, measured: Measured, usable: Ids
) -> Ids:
    """Return those of (n,) usable faces that were measured and have not changed since.

    If most have changed, as when all are given a source, those that have changed count too.
    """
    params = {"collection": index.key.collection, "since": measured.since}
    changed = np.array([pk for pk, _, _ in session.execute(CHANGED_QUERY, params)], np.int64)
    if measured.trained_at is None:
        present = usable[usable <= measured.last_face]
    else:
        present = usable[read_learned_gallery(session, installation_key, index.model, index.key).find_learned(usable)]
    unchanged = usable[np.isin(usable, changed, invert=True)]
    return unchanged if len(unchanged) >= MIN_GALLERY_SHARE * len(present) else present


def _find_people(
    index: LoadedIndex, everybody: GalleryFaces, kept: Ids, indexed: int
) -> tuple[GalleryPeople, Ids, LockedIndex]:
    """Return the people of the (n,) kept faces, the (n,) owners of these, and the index that finds only them."""
    faces = everybody.restrict_to(kept)
    people = GalleryPeople.from_rows(faces.ids, faces.subjects, faces.is_distractor)
    return people, faces.owners, LockedIndex(index, kept if len(kept) < indexed else None)

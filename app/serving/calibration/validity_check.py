"""Check whether the measured thresholds of a deployment still hold.

Somebody may be enrolled for whom strangers would be taken (a hub), hubs may lose the next person, who kept them from
being named, labels may join the two, or most of the measured faces may be gone. Many people may lose the next person,
so that each is named for a few strangers, and all of them for too many. New people may be of a poorer camera, and be
named for strangers like themselves: then the gallery is measured anew. A measurement does not search for faces without
a name, which may show anybody: all of them are checked.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import BindParameter, Integer, bindparam, func, select
from sqlalchemy.orm import Session

from app.db.id_lists import select_ids
from app.db.session import snapshot
from app.db.tables import Face
from app.resources import Resources
from app.serving.calibration.compared_faces import ComparedFaces
from app.serving.calibration.measured import Losses, Measured, MeasuredLabels, subtract
from app.serving.calibration.people_searches import (
    REST_RATIO,
    GallerySearch,
    NewcomerSearch,
    search_measured,
    search_newcomers,
)
from app.serving.deployments import Validity
from app.serving.faces.columns import DISTRACTOR
from app.serving.index_builder import COLLECTION, read_removed
from app.serving.loaded_index import ROWS_PER_READ, LoadedIndex
from ml.identification.new_hubs import NewHubs, may_exceed_rates
from ml.identification.open_set import MIN_GALLERY_SHARE
from ml.types import Ids, Rows

SINCE: BindParameter[int] = bindparam("since", type_=Integer)
CHANGED_QUERY = select(Face.pk, Face.subject_pk, Face.role).where(Face.collection_id == COLLECTION, Face.change > SINCE)
IS_MEASURED = Face.pk <= bindparam("last_face")
COUNT_QUERY = select(func.count(), func.count().filter(~IS_MEASURED), func.max(Face.change).filter(IS_MEASURED)).where(
    Face.collection_id == COLLECTION, Face.change > SINCE
)
NAMELESS_QUERY = select(Face.pk).where(
    Face.collection_id == COLLECTION, Face.role != DISTRACTOR, Face.subject_pk.is_(None)
)


@dataclass(frozen=True, eq=False)
class Checked:
    """What was found up to a change.

    measured_change: of the measurement; labelled, joined, ended: see `Measured`
    measured_labels: what labels said when it was measured
    search: the last one; is_search_due: whether more was lost since; new: what the new faces do
    compared: whom the faces showed that were compared
    newcomers: the last search for new people
    next_at: when the next check may begin, by the monotonic clock
    """

    measured_change: int
    change: int
    labelled: Mapping[int, int]
    joined: Mapping[int, int]
    ended: int
    measured_labels: MeasuredLabels
    search: GallerySearch
    is_search_due: bool
    new: NewHubs
    compared: ComparedFaces
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
    labels = known.measured_labels if known else measured.find_labels()
    with snapshot(resources.database) as session:
        started = time.monotonic()
        changed, enrolled, changed_at = session.execute(COUNT_QUERY, params).one()
        counted = time.monotonic()
        left = index.state.vectors - enrolled
        losses = measured.find_losses(labels, left, changed_at or 0)
        losers = _list_losers(session, index, measured, known) if known else frozenset[int]()
        is_search_due = known is None or _is_search_due(known, losses, losers)
        if known is None or (is_search_due and counted >= known.search.next_at):
            search = search_measured(session, resources.installation_key, index, measured, losses, labels)
            new, is_search_due = NewHubs(search.probes), False
            faces = _list_new_faces(session, collection, measured, measured.since, labels.labelled)
            faces |= _list_nameless(session, collection, measured)
            compared = ComparedFaces.of(faces)
        else:
            search, new = known.search, known.new.without(losers)
            faces = _list_new_faces(session, collection, measured, known.change, known.labelled)
            faces |= _list_faces_of(session, measured, {person for person in losers if person % 2 == 0})
            compared = known.compared.add(faces)
        newcomers = known.newcomers if known else NewcomerSearch()
        has_come = any(person % 2 == 0 for person in faces.values())
        max_newcomers = changed + len(measured.labelled.keys() - labels.labelled.keys())
        if has_come and may_exceed_rates(max_newcomers, measured.people, measured.levels):
            newcomers = replace(newcomers, is_due=not newcomers.exceeds_rates)
        if newcomers.is_due and counted >= newcomers.next_at:
            newcomers = search_newcomers(session, index, measured, labels)
    for rows, people in _iterate_people(index, faces):
        new = new.add(rows, people, index.index.metric, measured.levels)
    hubs = measured.list_owners(new.find(together=measured.trained_at is None)) | search.named_often
    return Checked(
        measured.change,
        change,
        measured.labelled,
        measured.joined,
        measured.ended,
        labels,
        search,
        is_search_due,
        new,
        compared,
        newcomers,
        _judge(measured, hubs, search, newcomers, index.state.vectors, left),
        time.monotonic() + REST_RATIO * (counted - started),
    )


def _judge(
    measured: Measured, hubs: frozenset[int], search: GallerySearch, newcomers: NewcomerSearch, faces: int, left: int
) -> Validity:
    """Return what follows from the hubs, the searches, and how many faces there are.

    left: of these, how many were measured. Those who refused since count as measured
    Hubs alone make no measurement due where the model was trained here: its strangers were searched for without them.
    """
    is_trained_here = measured.trained_at is not None
    faces, left = faces - max(0, measured.ended), left - max(0, measured.ended)
    is_replaced = left < MIN_GALLERY_SHARE * min(measured.faces, faces)
    is_outdated = is_replaced or search.exceeds_rates
    has_named = any(not owner % 2 or owner // 2 in measured.labelled for owner in hubs)
    return Validity(hubs, is_outdated, is_outdated or newcomers.exceeds_rates or (has_named and not is_trained_here))


def _list_new_faces(
    session: Session, collection: str, measured: Measured, since: int, labelled: Mapping[int, int]
) -> dict[int, int]:
    """Return face -> its person, of all faces of the people of whom some came, changed, were labelled or lost labels.

    A face without a name is a person by itself. labelled: whom labels named before: see `Measured`
    """
    changed = session.execute(CHANGED_QUERY, {"collection": collection, "since": since}).all()
    unlabelled, new_labels = subtract(labelled, measured.labelled), subtract(measured.labelled, labelled)
    owners = _list_nameless(session, collection, measured, [pk for pk, _ in unlabelled]) if unlabelled else {}
    owners |= {pk: 2 * pk + 1 if person is None else 2 * person for pk, person, role in changed if role != DISTRACTOR}
    owners |= {pk: 2 * measured.labelled[pk] for pk in measured.labelled.keys() & owners.keys()}
    owners |= {pk: 2 * person for pk, person in new_labels}
    faces = {pk: measured.joined.get(owner, owner) for pk, owner in owners.items()}
    losers = {measured.joined.get(2 * person, 2 * person) for _, person in unlabelled}
    return faces | _list_faces_of(session, measured, losers | {person for person in faces.values() if person % 2 == 0})


def _list_losers(session: Session, index: LoadedIndex, measured: Measured, known: Checked) -> frozenset[int]:
    """Return who has lost a face that was compared, a label or a join since the last check, as before and as now.

    Joins of before the measurement are left out: who lost one is searched for anew.
    """
    changed = session.execute(CHANGED_QUERY, {"collection": index.key.collection, "since": known.change}).all()
    pks = np.array([pk for pk, _, _ in changed], np.int64)
    people = set(known.compared.find_people(np.concatenate([pks, read_removed(session, index.key, known.change)])))
    people |= {2 * person for _, person in subtract(known.labelled, measured.labelled)}
    separated = subtract(known.joined, measured.joined) - known.measured_labels.joined.items()
    people |= {person for pair in separated for person in pair}
    return frozenset(people | {measured.joined.get(person, person) for person in people})


def _is_search_due(known: Checked, losses: Losses, losers: AbstractSet[int]) -> bool:
    """Whether more was lost since the last search, or by somebody whom it has shown to be named too often."""
    return known.is_search_due or losses != known.search.losses or bool(losers & known.search.named_often)


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


def _list_nameless(
    session: Session, collection: str, measured: Measured, chosen: Sequence[int] | None = None
) -> dict[int, int]:
    """Return face -> its person, which it is by itself, of all that have no name by labels either. chosen: of these"""
    query = NAMELESS_QUERY if chosen is None else NAMELESS_QUERY.where(Face.pk.in_(select_ids(session, chosen)))
    pks = session.scalars(query, {"collection": collection})
    return {pk: 2 * pk + 1 for pk in pks if pk not in measured.labelled}

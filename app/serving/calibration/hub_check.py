"""Notice people who were enrolled since the gallery was measured, and whom strangers would be taken for.

The measurement does not search for faces without a name, which may show anybody. All of them are checked.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from sqlalchemy import Engine, bindparam, select
from sqlalchemy.orm import Session

from app.db.session import snapshot
from app.db.tables import Face
from app.serving.background_tasks import BackgroundTasks
from app.serving.calibration.gallery_calibration import is_trained_here, read_faces, read_refused_faces
from app.serving.calibration.open_set_measurement import REPORTED_FPIRS, LockedIndex
from app.serving.deployments import DeploymentKey, ServedDeployment, drop_indexes_of
from app.serving.faces.columns import DISTRACTOR
from app.serving.index_builder import COLLECTION, IndexKey
from app.serving.loaded_index import LoadedIndex
from app.serving.scores import Scores
from ml.identification.new_hubs import Level, NewHubs, StrangerProbes
from ml.identification.searches import GalleryPeople
from ml.types import Ids

log = logging.getLogger("likeness.engine")

MIN_PROBES, MAX_PROBES = 200, 1000
MAX_MULTIPLICATIONS = 2e10
"""The limit of work to draw probes, unless it would leave fewer than MIN_PROBES."""
NO_HUBS = frozenset[int]()
CHANGED_QUERY = select(Face.pk, Face.subject_pk).where(
    Face.collection_id == COLLECTION, Face.role != DISTRACTOR, Face.change > bindparam("since")
)
NAMELESS_QUERY = select(Face.pk).where(
    Face.collection_id == COLLECTION, Face.role != DISTRACTOR, Face.subject_pk.is_(None)
)


@dataclass(frozen=True, eq=False)
class CheckedFaces:
    """What was found among faces without a name, and those that were enrolled or changed after `since`, up to `change`.

    hubs: their owners, see `ConstrainedFace.owner`
    """

    since: int
    change: int
    new: NewHubs
    hubs: frozenset[int]


class HubCheck:
    """Checks the new faces of champions in background tasks. Only the follower's thread calls it."""

    def __init__(self, database: Engine, tasks: BackgroundTasks) -> None:
        self.database, self.tasks = database, tasks
        self._checked: dict[IndexKey, CheckedFaces] = {}

    def find_hubs(self, served: ServedDeployment) -> frozenset[int]:
        """Return the hubs among the new faces of a deployment, as far as they are checked."""
        index, scores = served.champion, served.scores[served.champion.key.model_id]
        since = find_measured_change(index, scores)
        if since is None or not scores.calibrated_at_count:
            return NO_HUBS
        checked = self._checked.get(index.key)
        if checked is None or (checked.since, checked.change) != (since, index.state.change):
            known = checked if checked and checked.since == since else None
            work = partial(check_new_faces, self.database, index, known, since, list_levels(served, scores))
            result = self.tasks.result(("hubs", index.key), work)
            if result is None:
                return served.hubs
            if result.hubs - served.hubs:
                log.warning("gallery.new_hubs collection=%s count=%d", served.collection, len(result.hubs))
            self._checked[index.key] = checked = result
        return checked.hubs

    def forget(self, key: DeploymentKey) -> None:
        """Drop what is known of a deployment that is no longer served."""
        drop_indexes_of(key, self._checked)


def find_measured_change(index: LoadedIndex, scores: Scores) -> int | None:
    """Return the collection's last change by which its strangers were measured; None if they were not.

    If the model was trained here, these are people who were held out of its training.
    """
    if index.key.task != "identity":
        return None
    if is_trained_here(index.model, index.key):
        return int(index.model.provenance["changes"][index.key.collection])
    return scores.calibrated_at_change


def list_levels(served: ServedDeployment, scores: Scores) -> list[Level]:
    """Return the thresholds at which new faces are checked."""
    faces = served.champion.state.vectors
    rates = sorted({scores.default_fpir, *REPORTED_FPIRS})
    thresholds = [(fpir, scores.person_threshold(fpir, faces)) for fpir in rates]
    return [
        Level(fpir, limit.person_distance, limit.nameless_distance, limit.rule.margin_weight)
        for fpir, limit in thresholds
        if limit is not None
    ]


def check_new_faces(
    database: Engine, index: LoadedIndex, known: CheckedFaces | None, since: int, levels: Sequence[Level]
) -> CheckedFaces:
    """Check the faces of an index that came after those that are known, or all that are to be checked."""
    change = index.state.change
    params = {"collection": index.key.collection, "since": known.change if known else since}
    with snapshot(database) as session:
        changed = session.execute(CHANGED_QUERY, params).all()
        owners = {pk: 2 * pk + 1 if subject is None else 2 * subject for pk, subject in changed}
        if known is None:
            new = NewHubs(_draw_probes(session, index, np.array(sorted(owners), np.int64)))
            owners |= {pk: 2 * pk + 1 for pk in session.scalars(NAMELESS_QUERY, params)}
        else:
            new = known.new
    for pks, embeddings in index.iterate_rows(np.array(sorted(owners), np.int64)):
        new = new.add(embeddings, np.array([owners[pk] for pk in pks.tolist()], np.int64), index.index.metric, levels)
    return CheckedFaces(since, change, new, new.find(together=not is_trained_here(index.model, index.key)))


def _draw_probes(session: Session, index: LoadedIndex, changed: Ids) -> StrangerProbes:
    """Draw probes from the gallery without the (n,) changed faces."""
    with index.lock.gen_rlock():
        indexed = index.index.ids()
    faces, refused = read_faces(session, index.key.collection), read_refused_faces(session, index.key.collection)
    kept = np.setdiff1d(np.intersect1d(faces.ids, indexed), np.union1d(refused, changed))
    faces = faces.restrict_to(kept)
    limit = int(np.clip(MAX_MULTIPLICATIONS / max(1, len(kept) * index.dim), MIN_PROBES, MAX_PROBES))
    people = GalleryPeople.from_rows(faces.ids, faces.subjects, faces.is_distractor)
    owners = np.where(faces.is_named, 2 * faces.subjects, 2 * faces.ids + 1)
    return StrangerProbes.draw(LockedIndex(index, kept if len(kept) < len(indexed) else None), people, owners, limit)

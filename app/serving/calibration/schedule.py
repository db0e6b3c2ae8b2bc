"""Decide when to calibrate a deployment again. `gallery_calibration.py` measures."""

import math
import time
from dataclasses import dataclass
from functools import partial

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from app.db.tables import Face, Job, now
from app.queue.jobs import LIVE_STATES
from app.queue.messages import ImportEmbeddings, IngestBatch
from app.resources import Resources
from app.serving.background_tasks import BackgroundTasks
from app.serving.calibration.gallery_calibration import renew_calibration
from app.serving.calibration.gallery_faces import count_subjects
from app.serving.deployments import DeploymentKey, ServedDeployment, drop_indexes_of
from app.serving.index_builder import IndexKey
from app.serving.labels.constraints import ServedConstraints
from app.serving.loaded_index import LoadedIndex
from app.serving.scores import Scores

MIN_FACES_TO_CALIBRATE = 100
"""Smaller galleries have too few pairs to estimate a false-match rate. They are measured only if they were before, as
one that has shrunk: what was measured does not hold for another gallery, however small it is."""
RECALIBRATION_CHANGE_RATIO = 0.1
MIN_RETRY_SECONDS = 2.0
"""A calibration that has failed rests for as long as it took, and for so long at least."""
REST_RATIO = 2.0
"""One that does not wait for quiet, as strangers are named too often, rests so many times as long as the last took."""


@dataclass
class _Calibration:
    """A calibration that was started.

    due_by: the change of the one before, all faces, and the changed share
    retry_at: when it may be tried again, by the monotonic clock; None unless it has failed
    rests_until: when another may begin that does not wait for quiet. Its own thread writes both
    """

    due_by: tuple[int | None, int, float]
    retry_at: float | None = None
    rests_until: float = -math.inf


class CalibrationSchedule:
    """Starts calibrations as background tasks, one at a time for each deployment.

    Only the follower's thread calls it.
    """

    def __init__(self, resources: Resources, tasks: BackgroundTasks, idle_seconds: float) -> None:
        self.resources, self.tasks, self.idle_seconds = resources, tasks, idle_seconds
        self._started: dict[IndexKey, _Calibration] = {}  # the last one of each index
        self._changed_counts: dict[IndexKey, tuple[tuple[int, int, int], int, int, float]] = {}
        """Two changes of a collection and how many more faces may not be used, without a change too: how many faces and
        named faces, and which part of the people, have changed between them."""

    def renew_if_due(self, session: Session, served: ServedDeployment) -> None:
        """Start a new calibration of a model if enough faces or names have changed since the last one.

        Models are calibrated one at a time, the champion first. The calibration is written to the deployment's row, and
        read from there like any other change.
        """
        for index in sorted(served.indexes.values(), key=lambda index: index is not served.champion):
            if any(self.tasks.busy(("calibrate", other)) for other in served.indexes.values()):
                return
            self._renew_if_due(session, served, index, served.scores[index.key.model_id])

    def _renew_if_due(self, session: Session, served: ServedDeployment, index: LoadedIndex, scores: Scores) -> None:
        last, at = self._started.get(index.key), time.monotonic()
        failed_until = last.retry_at if last else None
        if failed_until is not None and at < failed_until:
            return
        labelled, joined = len(served.constraints.constraints.labelled_subjects), len(served.constraints.joined_people)
        validity = served.find_validity(index.key.model_id)
        is_urgent = validity.is_outdated or (validity.is_due and (last is None or at >= last.rests_until))
        is_idle = is_urgent or at - index.last_change_at > self.idle_seconds
        refused = served.faces.count_ended(now()) - scores.calibrated_at_refused_count if is_idle else 0
        changed_share = self._find_changed_share(session, index, scores, labelled, joined, refused) if is_idle else 0.0
        if validity.is_due:
            changed_share = 1.0
        faces = index.state.vectors
        due_by = scores.calibrated_at_change, faces, changed_share
        if last and last.due_by == due_by and failed_until is None:
            return
        if not is_calibration_due(faces, scores, is_idle, changed_share):
            return
        if not is_urgent and is_importing_vectors(session, index.key.collection):
            return
        is_idle = is_urgent or not is_importing(session, index.key.collection)
        if is_calibration_due(faces, scores, is_idle, changed_share):
            self._started[index.key] = started = _Calibration(due_by)
            self.tasks.start(("calibrate", index), partial(self._renew, index, served.constraints, started))

    def forget(self, key: DeploymentKey) -> None:
        """Drop what is known of a deployment that is no longer served."""
        for known in (self._started, self._changed_counts):
            drop_indexes_of(key, known)

    def _renew(self, index: LoadedIndex, constraints: ServedConstraints, calibration: _Calibration) -> None:
        """Calibrate a model. If this fails, it is tried again later, though nothing changes until then."""
        started, is_stored = time.monotonic(), False
        try:
            is_stored = renew_calibration(self.resources, index, constraints)
        finally:
            ended = time.monotonic()
            calibration.rests_until = ended + REST_RATIO * (ended - started)
            if not is_stored:
                calibration.retry_at = ended + max(MIN_RETRY_SECONDS, ended - started)

    def _find_changed_share(
        self,
        session: Session,
        index: LoadedIndex,
        scores: Scores,
        labelled_count: int,
        joined_count: int,
        refused_count: int,
    ) -> float:
        """Return the part of the faces, of those with a name, or of the people that has changed since the calibration.

        A gallery may be replaced face by face, and its faces be named, or be named by labels, while their
        number stays, and labels may join people. Strangers are named after the faces with a name, however few they are,
        and are taken to be like the people, of whom some may have many more faces than others.

        labelled_count: faces that labels alone name; joined_count: people whom labels joined to others
        refused_count: how many more faces may not be used than at the calibration
        """
        since, change = scores.calibrated_at_change, index.state.change
        named_count = max(MIN_FACES_TO_CALIBRATE, scores.calibrated_at_named_count or 0)
        if since is None or not (scores.calibrated_at_count or index.state.vectors >= MIN_FACES_TO_CALIBRATE):
            return 0.0
        face_count = max(MIN_FACES_TO_CALIBRATE, scores.calibrated_at_count)
        known, changed, named, people = self._changed_counts.get(index.key, (None, 0, 0, 0.0))
        if known != (since, change, refused_count):
            changed = count_changed_faces(session, index.key.collection, since, face_count)
            named = count_changed_faces(session, index.key.collection, since, named_count, only_named=True)
            gone = scores.calibrated_at_count + changed - index.state.vectors
            people = find_changed_people(session, index.key.collection, since, scores, gone + named + refused_count)
            self._changed_counts[index.key] = (since, change, refused_count), changed, named, people
        of_all = max(people, changed / face_count)
        if scores.calibrated_at_named_count is None:  # by an earlier version, which took no labels into account
            return 1.0 if labelled_count else of_all
        named += abs(labelled_count - scores.calibrated_at_labelled_count)
        joined = abs(joined_count - scores.calibrated_at_joined_count)
        people += joined / max(MIN_FACES_TO_CALIBRATE, scores.calibrated_at_people_count or named_count)
        return max(of_all, people, (named + joined) / named_count)


def is_calibration_due(face_count: int, scores: Scores, is_idle: bool, changed_share: float) -> bool:
    """Whether to calibrate now: at once if what was measured is superseded, otherwise see `needs_recalibration`."""
    return scores.is_superseded or needs_recalibration(face_count, scores.calibrated_at_count, is_idle, changed_share)


def needs_recalibration(face_count: int, calibrated_at_count: int, is_idle: bool, changed_share: float = 0.0) -> bool:
    """Whether to calibrate again: at once if the gallery has doubled, and after a change of 10 % if it is idle.

    Ten per cent of MIN_FACES_TO_CALIBRATE at least. A smaller gallery never has doubled.

    changed_share: of the faces, what has changed otherwise since the last calibration
    """
    if face_count < MIN_FACES_TO_CALIBRATE and not calibrated_at_count:
        return False
    growth = abs(face_count - calibrated_at_count) / max(MIN_FACES_TO_CALIBRATE, calibrated_at_count)
    is_changed = max(changed_share, growth) > RECALIBRATION_CHANGE_RATIO
    return face_count >= max(MIN_FACES_TO_CALIBRATE, 2 * calibrated_at_count) or (is_idle and is_changed)


def count_changed_faces(
    session: Session, collection: str, since: int, calibrated_at_count: int, *, only_named: bool = False
) -> int:
    """Count the faces that were enrolled or changed after that change, up to those that make a calibration due.

    calibrated_at_count: the faces, or the named faces, of the last calibration
    """
    limit = int(RECALIBRATION_CHANGE_RATIO * calibrated_at_count) + 1
    changed = select(Face.pk).where(Face.collection_id == collection, Face.change > since)
    if only_named:
        changed = changed.where(Face.subject_pk.is_not(None), Face.role != "distractor")
    return session.scalar(select(func.count()).select_from(changed.limit(limit).subquery())) or 0


def find_changed_people(session: Session, collection: str, since: int, scores: Scores, max_gone: int) -> float:
    """Return the part of the people whose faces were enrolled or changed after that change, or who have gone; 0 if it
    is not known how many there were. It is not counted beyond what makes a calibration due.

    max_gone: how many may have gone, been merged or have refused at most. Subjects are counted if this is a tenth of
        the people: a million take 0.25 s, while the follower waits
    """
    if scores.calibrated_at_people_count is None:
        return 0.0
    people = max(MIN_FACES_TO_CALIBRATE, scores.calibrated_at_people_count)
    limit = int(RECALIBRATION_CHANGE_RATIO * people) + 1
    is_changed = Face.collection_id == collection, Face.change > since, Face.role != "distractor"
    changed = select(Face.subject_pk).where(*is_changed, Face.subject_pk.is_not(None)).distinct().limit(limit)
    come = session.scalar(select(func.count()).select_from(changed.subquery())) or 0
    if max_gone < limit:
        return come / people
    return max(come, abs(count_subjects(session, collection) - scores.calibrated_at_subject_count)) / people


def is_importing(session: Session, collection: str) -> bool:
    """Whether an import into the collection is still enrolling photos."""
    parent = aliased(Job)
    parts = select(Job.id).join(parent, Job.parent_id == parent.id)
    live = parts.where(Job.kind == IngestBatch.kind, Job.state.in_(LIVE_STATES))
    return session.scalar(live.where(parent.body["collection"].as_string() == collection).limit(1)) is not None


def is_importing_vectors(session: Session, collection: str) -> bool:
    """Whether an import of vectors into the collection has begun and is not at its last row, which takes seconds."""
    is_begun = (Job.kind == ImportEmbeddings.kind, Job.state.in_(LIVE_STATES), Job.started_at.is_not(None))
    live = session.execute(select(Job.body, Job.result).where(*is_begun)).all()
    return any(row.body["collection"] == collection and not row.result for row in live)

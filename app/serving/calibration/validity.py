"""Notice when the measured thresholds of a deployment no longer hold, before it is measured again."""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

from app.db.session import snapshot
from app.db.tables import now
from app.resources import Resources
from app.serving.background_tasks import BackgroundTasks
from app.serving.calibration.measured import Measured
from app.serving.calibration.saved_checks import load_check, save_check
from app.serving.calibration.validity_check import CHANGED_QUERY, Checked, check
from app.serving.deployments import VALID, DeploymentKey, ServedDeployment, Validity
from app.serving.index_builder import IndexKey
from app.serving.index_snapshots import MIN_SAVED_VECTORS, SnapshotStore
from app.serving.loaded_index import LoadedIndex
from app.serving.scores import Scores
from ml.errors import WrongShape

log = logging.getLogger("likeness.engine")

MIN_QUIET_SECONDS = 2.0
"""Before a check is saved. Of a gallery that changes all the time none is: the next start checks it in any case."""


class ValidityChecks:
    """Checks the measurements of all loaded indexes in background tasks. Only the follower's thread calls it."""

    def __init__(self, resources: Resources, tasks: BackgroundTasks, snapshots: SnapshotStore) -> None:
        self.resources, self.tasks, self.snapshots = resources, tasks, snapshots
        self._checked: dict[DeploymentKey, dict[IndexKey, Checked | None]] = {}
        self._saved: WeakKeyDictionary[LoadedIndex, Checked | None] = WeakKeyDictionary()
        """The check of each index that is on disk, or None once it was looked for there."""

    def find(self, served: ServedDeployment) -> Mapping[str, Validity]:
        """Return of each model of a deployment what is known of its measurement; nothing of one that awaits a check."""
        key = served.collection, served.task
        former = self._checked.get(key, {})
        self._checked[key] = checked = {
            index.key: self._check(served, index, former.get(index.key)) for index in served.indexes.values()
        }
        validities = {one.model_id: self._find_validity(served, one.model_id, checked[one]) for one in checked}
        return {model_id: validity for model_id, validity in validities.items() if validity is not None}

    def forget(self, key: DeploymentKey) -> None:
        """Drop what is known of a deployment that is no longer served."""
        self._checked.pop(key, None)

    def _check(self, served: ServedDeployment, index: LoadedIndex, former: Checked | None) -> Checked | None:
        """Return what is known of an index: what was known before while it is being checked, None if it was not."""
        scores, labelled = served.scores[index.key.model_id], served.constraints.constraints.labelled_subjects
        if not served.can_be_checked(index.key.model_id):
            return None
        known = former if former and former.measured_change == scores.calibrated_at_change else None
        at, joined = time.monotonic(), served.constraints.joined_people
        ended = served.faces.count_ended(now()) - scores.calibrated_at_refused_count
        is_same = known and (known.change, known.ended) == (index.state.change, ended)
        if known and is_same and known.labelled is labelled and known.joined is joined:
            if at < known.next_search_at:
                self._save_if_quiet(served, index, scores, known)
                return known
        elif known and at < known.next_at:
            return known
        work = partial(check, self.resources, index, Measured.of(served, index, scores, ended), known)
        try:
            checked = self.tasks.result(("validity", index.key), work, is_urgent=True)
        except WrongShape:  # faces were removed meanwhile: the next step begins anew
            return former
        if checked is None:
            return former
        if checked.validity.hubs - (former.validity.hubs if former else frozenset()):
            log.warning("gallery.new_hubs collection=%s count=%d", served.collection, len(checked.validity.hubs))
        return checked

    def _find_validity(self, served: ServedDeployment, model_id: str, checked: Checked | None) -> Validity | None:
        """Return what is known of a model; None if it awaits its first check.

        Where nothing was measured, all that is measured later is valid until it is checked. So the last check also
        counts for the next measurement and the next compensation. Only a measurement that was due is due no more.
        """
        if checked is not None:
            is_of_this = checked.measured_change == served.scores[model_id].calibrated_at_change
            return checked.validity if is_of_this else replace(checked.validity, is_due=False)
        known = served.validities.get(model_id)
        if known is not None and served.can_be_checked(model_id):
            return known
        if not served.can_be_checked(model_id) or self._is_as_measured(served, served.indexes[model_id]):
            return VALID
        if served.find_validity(model_id).is_unchecked:
            return self._load(served, served.indexes[model_id])
        log.error("gallery.not_checked collection=%s model=%s", served.collection, model_id)
        return VALID

    def _load(self, served: ServedDeployment, index: LoadedIndex) -> Validity | None:
        """Return what was known of an index when the process ended before; None if something has changed since."""
        if index in self._saved or index.state.vectors < MIN_SAVED_VECTORS:
            return None
        self._saved[index] = None
        scores = served.scores[index.key.model_id]
        ended = served.faces.count_ended(now()) - scores.calibrated_at_refused_count
        return load_check(self.snapshots, index, served.faces, Measured.of(served, index, scores, ended))

    def _save_if_quiet(self, served: ServedDeployment, index: LoadedIndex, scores: Scores, checked: Checked) -> None:
        """Save a check to which nothing is to be added, once nothing has changed for a while."""
        is_complete = math.isinf(checked.next_search_at) and index.state.vectors >= MIN_SAVED_VECTORS
        if not is_complete or self._saved.get(index) is checked:
            return
        if time.monotonic() - index.last_change_at < MIN_QUIET_SECONDS:
            return
        self._saved[index] = checked
        measured = Measured.of(served, index, scores, checked.ended)
        self.tasks.start(
            ("save check", index), partial(save_check, self.snapshots, index, served.faces, measured, checked)
        )

    def _is_as_measured(self, served: ServedDeployment, index: LoadedIndex) -> bool:
        """Whether nothing has changed since the measurement, so that a check would find nothing.

        A check would also look at faces without a name, and at what came after a training in the collection.
        """
        scores = served.scores[index.key.model_id]
        ended = served.faces.count_ended(now()) - scores.calibrated_at_refused_count
        measured = Measured.of(served, index, scores, ended)
        named_faces, faces = scores.calibrated_at_named_count, index.state.vectors
        if not faces == measured.faces == named_faces or ended or measured.trained_at is not None:
            return False
        if not measured.are_labels_alike:
            return False
        with snapshot(self.resources.database) as session:
            params = {"collection": index.key.collection, "since": measured.change}
            return session.scalar(CHANGED_QUERY.limit(1), params) is None

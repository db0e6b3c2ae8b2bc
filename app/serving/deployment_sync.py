"""Bring one served deployment in line with its row: swap in a new champion, update its indexes, recalibrate it."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import snapshot
from app.db.tables import DEFAULT_FPIR, Deployment, Face
from app.errors import AppError
from app.resources import Resources
from app.serving.background_tasks import BackgroundTasks, start_thread
from app.serving.calibration.schedule import CalibrationSchedule, is_importing_vectors
from app.serving.calibration.validity import ValidityChecks
from app.serving.compensation.schedule import RenewalSchedule
from app.serving.compensation.store import read_compensation
from app.serving.deployment_rows import DeploymentRow
from app.serving.deployments import DeploymentKey, RecentlyRequested, Registry, ServedDeployment, drop_indexes_of
from app.serving.faces.face_table import FaceTable
from app.serving.faces.face_table_loader import CollectionKey, FaceTables
from app.serving.faces.lost_faces import hash_contents, take_out_lost
from app.serving.index_builder import COLLECTION, TASK, IndexKey
from app.serving.index_loader import IndexLoader
from app.serving.index_snapshots import MIN_SAVED_VECTORS, SnapshotStore
from app.serving.labels.reader import read_constraints
from app.serving.labels.updates import LabelUpdates
from app.serving.loaded_index import LoadedIndex
from app.serving.reporter import Reporter
from app.serving.scores import Scores
from ml.errors import LikenessError
from ml.indexes import MAX_FLAT_FACES

log = logging.getLogger("likeness.engine")

MIN_SAVE_INTERVAL_SECONDS = 300.0
LOAD_RETRY_SECONDS = 60.0
IDLE_SECONDS = 0.5
MAX_PRELOADED_BYTES = 256 * 2**20
"""How many bytes more than the champion's index a preloaded index may take."""
LATER_FACE_QUERY = select(Face.pk).where(Face.collection_id == COLLECTION).limit(1).offset(MAX_FLAT_FACES)
MEASUREMENTS_QUERY = select(Deployment.measurements, Deployment.default_fpir).where(
    Deployment.collection_id == COLLECTION, Deployment.task == TASK
)


class DeploymentSync:
    """What the follower does for one deployment. Only the follower's thread calls it; requests read the registry.

    Each step is short: slow work runs as a background task, and a later step takes its result.

    prepared: deployments that can be served for the first time once `reporter` has reported them. From then on erasures
        wait for this process, so the step that follows reads all that has been erased without waiting for it
    """

    def __init__(
        self,
        resources: Resources,
        registry: Registry,
        recently_requested: RecentlyRequested,
        snapshots: SnapshotStore,
        reporter: Reporter,
    ) -> None:
        self.resources, self.registry, self.reporter = resources, registry, reporter
        self.prepared: dict[DeploymentKey, ServedDeployment] = {}
        self.recently_requested, self.snapshots = recently_requested, snapshots
        self.loader = IndexLoader(resources, snapshots)
        self.tasks = BackgroundTasks(lambda: resources.notifier.notify("changes"))
        self.face_tables = FaceTables(resources)
        self.compensation = RenewalSchedule(resources, self.tasks, IDLE_SECONDS)
        self.calibration = CalibrationSchedule(resources, self.tasks, IDLE_SECONDS)
        self.validity_checks = ValidityChecks(resources, self.tasks, snapshots)
        self.label_updates = LabelUpdates(resources.database, lambda: resources.notifier.notify("changes"))
        self._load_retry_at: dict[IndexKey, float] = {}  # after a failed load, by the monotonic clock

    def synchronise(self, session: Session, row: DeploymentRow) -> None:
        """Make the served deployment agree with its row. Raises OperationalError, NotFound, ml.Corrupt.

        After an error, the deployment is served as before.
        session: sees the state of the row or a later one, for all deployments of a step
        """
        served = self.registry.get(row.key)
        if served is None or (served.version, served.updated_at) != (row.version, row.updated_at):
            self._swap_champion(session, served, row)
        served = self.registry.get(row.key)
        if served is None:
            return
        served = self._update_faces(session, served, row)
        for index in served.indexes.values():
            self._update_index(session, index, row.change)
            self._swap_compensation(session, index, row)
        self._name_new_faces(row)
        is_current = served.champion.key.model_id == row.champion
        if is_current:
            self._preload_models(session, row)
            self.compensation.renew_if_due(served.champion)
        served = self._check_validity(served)
        if is_current:
            self.calibration.renew_if_due(session, served)
            for index in served.indexes.values():
                if index.state.vectors < MIN_SAVED_VECTORS or index.saved_change == index.state.change:
                    continue
                if time.monotonic() - index.save_tried_at > MIN_SAVE_INTERVAL_SECONDS:
                    index.save_tried_at = time.monotonic()
                    self.tasks.start(("save", index), partial(self.save, index))

    def take_out_lost(self, session: Session, row: DeploymentRow) -> None:
        """Take out what the database does not hold any more, and read names and labels again: see `lost_faces`.

        What is being loaded begins anew, since it may have been read before.
        """
        keys = [row.index_key(model_id) for model_id in row.pointers.values() if model_id]
        for key in keys:
            self.tasks.discard(("load", key))
            self.tasks.discard(("build", key))
        self.prepared.pop(row.key, None)
        self.label_updates.forget(row.key)
        served = self.registry.get(row.key)
        if served is None or served.collection_created_at != row.collection_created_at:
            self.face_tables.forget(row.collection_key)
            return
        stored = self.face_tables.load_again(session, row.collection_key)
        lost_counts = [take_out_lost(index, served.faces, stored) for index in served.indexes.values()]
        for index in served.indexes.values():
            stored_compensation = read_compensation(session, *row.key, index.key.model_id)
            index.is_stale |= stored_compensation.is_another_of_this_version(index.compensation)
        if any(lost_counts):
            log.warning("index.lost_faces collection=%s task=%s", *row.key)
            for key in keys:
                self.snapshots.delete(key)
        constraints = read_constraints(session, *row.key, row.change)
        self.registry.put(replace(served, faces=stored, constraints=constraints))

    def drop_all_but(self, known: set[tuple[str, str, float]]) -> None:
        """Stop serving collections that were deleted, and delete their snapshots. known: those that still exist"""
        self.face_tables.drop_all_but({CollectionKey(collection, created_at) for collection, _, created_at in known})
        self.label_updates.drop_all_but(known)
        self.prepared = {key: one for key, one in self.prepared.items() if (*key, one.collection_created_at) in known}
        for served in self.registry.all():
            if (served.collection, served.task, served.collection_created_at) not in known:
                key = served.collection, served.task
                for part in (self.calibration, self.compensation, self.validity_checks, self.recently_requested):
                    part.forget(key)
                drop_indexes_of(key, self._load_retry_at)
                self.registry.drop(key)
                self.resources.blobs.close(served.collection)
                for index in served.indexes.values():
                    self.snapshots.delete(index.key)

    def save(self, index: LoadedIndex) -> None:
        """Write a snapshot if the index has changed since the last one and agrees with its table.

        Not if faces are deleted meanwhile: their erasure does not wait for an index that is served no more.
        """
        with index.update_lock:
            if index.saved_change == index.state.change or index.state.vectors < MIN_SAVED_VECTORS:
                return
            if self.loader.update(index, compare=True):
                collection = CollectionKey(index.key.collection, index.key.collection_created_at)
                contents = hash_contents(index, self.face_tables.read_newest(collection))
                if self.loader.has_deleted_faces(index):
                    return
                if self.snapshots.save(index.key, index.index, index.state.change, contents):
                    index.saved_change = index.state.change
            else:
                index.is_stale = True
                log.warning("index.disagrees collection=%s task=%s", index.key.collection, index.key.task)

    def _load(self, key: IndexKey, change: int) -> LoadedIndex | None:
        """Return the loaded index, with the table of its faces at hand; None while it is loading.

        change: the collection's last change
        """
        if change == 0 and key.compensation == 0:
            return self.loader.make_empty(key)
        loaded = self.tasks.result(("load", key), partial(self._load_with_faces, key))
        if loaded is not None and loaded.state.change != change:
            self.loader.update(loaded)
        return loaded

    def _load_with_faces(self, key: IndexKey) -> LoadedIndex:
        """Load the index and the table of its faces, of many faces at once.

        On a thread of its own or on several cores, a few faces take several times as long.
        """
        with snapshot(self.resources.database) as session:
            if session.scalar(LATER_FACE_QUERY, {"collection": key.collection}) is None:
                faces = self.face_tables.load(session, CollectionKey(key.collection, key.collection_created_at))
                return self.loader.load(session, key, lambda: faces)
        reading = start_thread(partial(self._load_faces, key), "face-table")
        with snapshot(self.resources.database) as session:
            loaded = self.loader.load(session, key, reading.result, on_all_cores=not self.registry.all())
        reading.result()
        return loaded

    def _load_faces(self, key: IndexKey) -> FaceTable:
        with snapshot(self.resources.database) as session:
            return self.face_tables.load(session, CollectionKey(key.collection, key.collection_created_at))

    def _swap_champion(self, session: Session, served: ServedDeployment | None, row: DeploymentRow) -> None:
        """Swap in the champion once it is loaded and its threshold checked, which a first champion is not waited for.

        While it loads, only the old champion stays in memory.
        """
        known = served or self._take_prepared(row)
        constraints = known.constraints if known else self.label_updates.read_first(row)
        if constraints is None:
            return
        indexes = dict(known.indexes) if known else {}
        if row.champion not in indexes:
            if served is not None and len(indexes) > 1:
                indexes = {model_id: index for model_id, index in indexes.items() if index is served.champion}
                self.registry.put(replace(served, indexes=indexes))
            loaded = self._load(row.index_key(row.champion), row.change)
            if loaded is None:
                return
            indexes[row.champion] = loaded
            if served is not None:
                self._publish(session, served, indexes)
                known = served = self.registry.get(row.key)
        if served is not None and served.find_validity(row.champion).is_unchecked:
            return
        kept = {model_id: indexes[model_id] for model_id in row.pointers.values() if model_id in indexes}
        swapped = ServedDeployment(
            *row.key,
            row.collection_created_at,
            row.version,
            row.pointers,
            kept,
            {},
            row.updated_at,
            served.faces if served else self.face_tables.bring_to(row.collection_key, row.change),
            constraints,
            row.shadow_share,
            served.validities if served else {},
        )
        if served is None and swapped.champion.state.change and not self.reporter.has_reported(swapped):
            self.prepared[row.key] = swapped
            return
        self._publish(session, swapped, kept)
        log.info("index.served collection=%s task=%s model=%s", *row.key, row.champion)

    def _take_prepared(self, row: DeploymentRow) -> ServedDeployment | None:
        """Return what is prepared of a deployment. It is reported no more unless it is prepared again or served."""
        prepared = self.prepared.pop(row.key, None)
        return prepared if prepared is not None and row.champion in prepared.indexes else None

    def _update_faces(self, session: Session, served: ServedDeployment, row: DeploymentRow) -> ServedDeployment:
        """Bring what is known of the faces to the collection's last change, before the index.

        A face that is only in the index is left out of answers, so a deleted one is gone at once.
        """
        faces = self.face_tables.bring_to(row.collection_key, row.change)
        constraints = served.constraints
        if constraints.change != row.change:
            constraints = self.label_updates.update(constraints, row)
        if faces is not served.faces or constraints is not served.constraints:
            served = replace(served, faces=faces, constraints=constraints)
            self.registry.put(served)
        return served

    def _check_validity(self, served: ServedDeployment) -> ServedDeployment:
        """Note what no longer holds of what was measured."""
        served = self.registry.get((served.collection, served.task)) or served
        validities = self.validity_checks.find(served)
        if validities != served.validities:
            served = replace(served, validities=validities)
            self.registry.put(served)
        return served

    def _name_new_faces(self, row: DeploymentRow) -> None:
        """Read the names of faces that were enrolled since the row was read, and that an index has already."""
        served = self.registry.get(row.key)
        change = max(index.state.change for index in served.indexes.values()) if served and served.indexes else 0
        if served is not None and change > served.faces.change:
            self.registry.put(replace(served, faces=self.face_tables.bring_to(row.collection_key, change)))

    def _update_index(self, session: Session, index: LoadedIndex, change: int) -> None:
        """Bring an index to the collection's last change, unless it is being saved.

        An index that disagrees with its table, keeps values of lost rows, or has outgrown its cells, is rebuilt and
        replaced. While vectors are imported, cells wait: they would be outgrown again soon.
        """
        if index.state.change != change or index.comparison_due:
            if not index.update_lock.acquire(blocking=False):
                return
            try:
                index.is_stale = not self.loader.update(index, compare=index.comparison_due) or index.is_stale
            finally:
                index.update_lock.release()
            self.registry.announce()
        is_urgent = index.is_stale or index.index.has_lost_rows()
        if is_urgent or (index.has_outgrown_cells() and not is_importing_vectors(session, index.key.collection)):
            rebuilt = self.tasks.result(("build", index.key), partial(self.loader.rebuild, index))
            served = self.registry.get((index.key.collection, index.key.task))
            if rebuilt is not None and served is not None:
                self.loader.update(rebuilt)
                self._publish(session, served, {**served.indexes, index.key.model_id: rebuilt})

    def _swap_compensation(self, session: Session, index: LoadedIndex, row: DeploymentRow) -> None:
        """Replace an index by one with the current source compensation once it is loaded."""
        model_id = index.key.model_id
        if index.key.compensation == row.compensations.get(model_id, 0) or model_id not in row.pointers.values():
            return
        loaded = self._load(row.index_key(model_id), row.change)
        served = self.registry.get(row.key)
        if loaded is not None and served is not None:
            self._publish(session, served, {**served.indexes, model_id: loaded})
            self.snapshots.delete(index.key)
            log.info("index.compensated collection=%s task=%s version=%d", *row.key, loaded.key.compensation)

    def _publish(self, session: Session, served: ServedDeployment, indexes: Mapping[str, LoadedIndex]) -> None:
        """Serve the deployment with these indexes, scored by its row's calibrations, as far as these hold."""
        params = {"collection": served.collection, "task": served.task}
        row = session.execute(MEASUREMENTS_QUERY, params).one_or_none()
        calibrations, fpir = (row.measurements, row.default_fpir) if row else ({}, DEFAULT_FPIR)
        scores = {
            model_id: self._read_scores(served, index, calibrations.get(model_id), fpir)
            for model_id, index in indexes.items()
        }
        published = replace(served, indexes=indexes, scores=scores)
        self.registry.put(replace(published, validities=self.validity_checks.find(published)))

    def _read_scores(
        self, served: ServedDeployment, index: LoadedIndex, measured: Mapping[str, Any] | None, fpir: float
    ) -> Scores:
        """Return the scores of an index. Those of another compensation do not fit; the ones that served so far do."""
        model_id = index.key.model_id
        current = self.registry.get((served.collection, served.task))
        kept = current.scores.get(model_id) if current and current.indexes.get(model_id) is index else None
        if (measured or {}).get("compensation", 0) == index.key.compensation:
            return Scores.of(measured, index.model, served.task, fpir)
        if kept is not None:
            return replace(kept, default_fpir=fpir)
        return replace(Scores.of(None, index.model, served.task, fpir), is_superseded=bool(measured))

    def _preload_models(self, session: Session, row: DeploymentRow) -> None:
        """Keep the previous model's index loaded for a roll back, and those of models that requests named recently."""
        served = self.registry.get(row.key)
        assert served is not None, "only this thread drops a deployment"
        indexes = {row.champion: served.champion}
        for model_id in {row.previous, row.challenger} - {None} - indexes.keys():
            key = row.index_key(str(model_id))
            try:
                retry_at = self._load_retry_at.get(key, 0.0)
                if time.monotonic() >= retry_at and self._is_worth_preloading(served, row, key):
                    index = served.indexes.get(key.model_id) or self._load(key, row.change)
                    indexes |= {} if index is None else {key.model_id: index}
            except (AppError, LikenessError) as error:
                self._load_retry_at[key] = time.monotonic() + LOAD_RETRY_SECONDS
                log.warning("index.not_preloaded model=%s error=%s", model_id, error)
        if indexes.keys() != served.indexes.keys():
            self._publish(session, served, indexes)

    def _is_worth_preloading(self, served: ServedDeployment, row: DeploymentRow, key: IndexKey) -> bool:
        """Whether somebody will want the index soon, and for a roll back alone, whether it is not too large."""
        if key.model_id == row.challenger and row.shadow_share > 0:
            return True
        champion = served.champion
        needed_bytes = 4 * champion.state.vectors * self.loader.embedding_size(key)
        is_rollback = key.model_id == row.previous and needed_bytes <= champion.bytes + MAX_PRELOADED_BYTES
        return is_rollback or self.recently_requested.contains(row.key, key.model_id)

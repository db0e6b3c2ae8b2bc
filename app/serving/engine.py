"""The search engine of an API process: the models it serves and the limit on concurrent work."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from app.db.immediate import DatabaseNeeded
from app.db.lookups import get_collection, make_not_found
from app.db.session import reading
from app.db.tables import POINTERS, Deployment, now
from app.db.written_changes import find_written_change
from app.errors import Busy, Invalid, NotFound
from app.resources import Resources
from app.serving.batching import Slots
from app.serving.deployments import RecentlyRequested, Registry, ServedDeployment, ServedModel
from app.serving.follower import IndexFollower
from app.serving.labels.constraints import find_left_out, leave_out, leave_out_refused
from app.serving.limits.photo_admission import LARGE_PHOTO_PIXELS, PhotoAdmission
from app.serving.limits.photo_failures import report_photo_failure
from app.serving.loaded_index import LoadedIndex
from app.serving.shadow.comparison_queue import ComparisonQueue
from ml.errors import Corrupt
from ml.images import OpenedPhoto

log = logging.getLogger("likeness.engine")

MAX_LOAD_WAIT_SECONDS = 2.0
MAX_CHANGE_WAIT_SECONDS = 2.0
MAX_IMMEDIATE_SECONDS = 0.003
"""A search that takes longer in the index goes to a thread, which costs it 1 to 4 ms more."""
"""The processor time of a search in an index up to which the event loop may search it itself."""


class Engine:
    """The models that this process serves. Requests read them; only the follower changes them.

    count_queued: returns how many requests wait to be admitted, before they come here
    """

    def __init__(self, resources: Resources, count_queued: Callable[[], int] = lambda: 0) -> None:
        self.resources, self._count_queued = resources, count_queued
        settings = resources.settings
        self.slots = Slots(settings.slots, settings.patience_seconds)
        self.large_photos = PhotoAdmission(max(settings.max_image_pixels, LARGE_PHOTO_PIXELS * settings.slots))
        self.registry, self.recently_requested = Registry(), RecentlyRequested()
        self.comparisons = ComparisonQueue(resources.database, self.count_waiting)
        self.follower = IndexFollower(resources, self.registry, self.recently_requested)

    def count_waiting(self) -> int:
        """Return how many requests wait for a slot, of the process or for inference."""
        return self._count_queued() + self.slots.waiting

    @contextmanager
    def use(
        self, collection: str, task: str = "identity", model: str | None = None, change: int | None = None
    ) -> Iterator[ServedModel]:
        """Use one model for the whole request, whatever is published meanwhile.

        Labels of people who may not be searched for, as of now, have no part in it. While a model is loaded for the
        request, and its threshold is checked, it waits for MAX_LOAD_WAIT_SECONDS at most.
        model: champion (default), challenger, previous, or the id of one of these
        change: the change of the collection that it must contain
        Raises NotFound, ml.Corrupt if its files are damaged and it is not loaded, or Busy if its index is not loaded
        yet, or does not contain the change yet.
        """
        key = collection, task
        serving = self._serving(key, model, self.slots)
        if serving is None:
            model_id = self._resolve_model(collection, task, model)
            damage = self.resources.models.find_damage(model_id)
            if damage is not None:
                raise Corrupt(f"model {model_id} cannot be loaded: {damage}. Restore its folder, or publish another")
            self.recently_requested.record(key, model_id)
            self.resources.notifier.notify("changes")
        if serving is None or (model is not None and serving.validity.is_unchecked):
            self.registry.wait(lambda: self._is_checked(key, model), MAX_LOAD_WAIT_SECONDS)
            serving = self._serving(key, model, self.slots)
        if serving is None:
            raise Busy(f"the index of collection {collection!r} for {model or 'its champion'} is being loaded")
        if model is not None:
            self.recently_requested.record(key, serving.model.id)
        if change is not None and serving.change < change:
            serving = self._wait_for_change(key, model, change)
        yield self._leave_out_refused(serving)

    def renew(self, serving: ServedModel) -> ServedModel:
        """Return the same model and index with the names, refusals and labels that are known now, after slow work.

        What was measured of the model is renewed too, unless the model is no longer deployed or its index was built
        anew. Raises NotFound if the collection was deleted meanwhile.
        """
        key = serving.deployment.collection, serving.task
        current = self.registry.get(key)
        if current is None or current.collection_created_at != serving.deployment.collection_created_at:
            raise make_not_found("collection", key[0])
        if current.find_index(serving.model.id) is not serving.loaded_index:
            current = replace(serving.deployment, faces=current.faces, constraints=current.constraints)
        return self._leave_out_refused(self._describe_served(current, serving.loaded_index, serving.slots))

    def _wait_for_change(self, key: tuple[str, str], model: str | None, change: int) -> ServedModel:
        """Wait until what is served contains the change.

        Raises Busy, Invalid at once if nobody has made it, since the request has a slot, or NotFound if the
        collection was deleted meanwhile.
        """
        with reading(self.resources.database) as session:
            newest = get_collection(session, key[0]).change
        if change > newest:
            raise Invalid(f"change {change} of collection {key[0]!r} has not been made: its last one is {newest}")
        self.resources.notifier.notify("changes")

        def contains_change() -> bool:
            serving = self._serving(key, model, self.slots)
            return serving is not None and serving.change >= change

        self.registry.wait(contains_change, MAX_CHANGE_WAIT_SECONDS)
        serving = self._serving(key, model, self.slots)
        if serving is None:
            self._resolve_model(*key, model)
        if serving is None or serving.change < change:
            raise Busy(f"change {change} of collection {key[0]!r} has not reached this process yet; try again shortly")
        return serving

    def find_immediate(self, collection: str, task: str, model: str | None, change: int | None) -> ServedModel:
        """Return a model to search with on the event loop. Raises DatabaseNeeded if that might take long, or wait.

        Its searches need no slot: each of them is short.
        """
        serving = self._serving((collection, task), model, None)
        if serving is None or model is not None or not _knows_refusals(serving) or serving.change < (change or 0):
            raise DatabaseNeeded
        index = serving.loaded_index
        if index.search_seconds > MAX_IMMEDIATE_SECONDS or index.update_lock.locked():
            raise DatabaseNeeded
        return self._leave_out_refused(serving)

    @contextmanager
    def admit_photo(self, data: bytes) -> Iterator[OpenedPhoto]:
        """Hold a slot for the analysis of a photo, once the photo's header is checked and its pixels have room.

        Raises ml.Unreadable, Busy, and PhotoFailed in place of an error that the photo may have caused.
        """
        photo = OpenedPhoto(data, self.resources.image_limits)
        with self.large_photos.reserve(photo.pixels), self.slots.reserve(), report_photo_failure("analyse"):
            yield photo

    def list_deployments(self) -> tuple[ServedDeployment, ...]:
        """Every deployment that this process serves."""
        return self.registry.all()

    def _serving(self, key: tuple[str, str], model: str | None, slots: Slots | None) -> ServedModel | None:
        served = self.registry.get(key)
        index = served.find_index(model) if served else None
        return None if served is None or index is None else self._describe_served(served, index, slots)

    def _is_checked(self, key: tuple[str, str], model: str | None) -> bool:
        serving = self._serving(key, model, self.slots)
        return serving is not None and not serving.validity.is_unchecked

    def _describe_served(self, served: ServedDeployment, index: LoadedIndex, slots: Slots | None) -> ServedModel:
        written = find_written_change(self.resources.database, served.collection, served.collection_created_at)
        faces, indexed = served.faces, index.state.change
        is_current = faces.change >= max(written, indexed)
        change = min(indexed, faces.change, served.constraints.change)
        return ServedModel(served, index, slots, change, faces if is_current else None)

    def _leave_out_refused(self, serving: ServedModel) -> ServedModel:
        """Leave out the labels of people who may not be searched for now.

        Raises DatabaseNeeded on the event loop if that takes more than a look at what is known.
        """
        known = serving.deployment.constraints
        if not known.settled.labels:
            return serving
        ended = known.settled.list_ended(now()) if _knows_refusals(serving) else None
        if serving.slots is None and (ended is None or find_left_out(known, ended) is None):
            raise DatabaseNeeded
        if ended is not None:
            constraints = leave_out(known, ended)
        else:
            with reading(self.resources.database) as session:
                constraints = leave_out_refused(session, serving.deployment.collection, known)
        if constraints is known:
            return serving
        return replace(serving, deployment=replace(serving.deployment, constraints=constraints))

    def _resolve_model(self, collection: str, task: str, model: str | None) -> str:
        """Return the id of the model by the tables. Raises NotFound."""
        with reading(self.resources.database) as session:
            get_collection(session, collection)
            row = session.get(Deployment, (collection, task))
            if row is None:
                raise NotFound(f"collection {collection!r} has no model for the task {task!r}", code="UnknownTask")
            named: dict[str, str | None] = {name: getattr(row, name) for name in POINTERS}
        model_id = named.get(model or "champion", model)
        if model_id is None or model_id not in named.values():
            deployed = ", ".join(f"{name} {pointed}" for name, pointed in named.items() if pointed)
            raise NotFound(f"{model!r} is not deployed in {collection!r}; deployed: {deployed}", code="UnknownModel")
        return model_id


def _knows_refusals(serving: ServedModel) -> bool:
    """Whether its constraints contain every change of consent and retention that is known to this process."""
    return serving.faces is not None and serving.deployment.constraints.change >= serving.faces.change


@contextmanager
def open_engine(resources: Resources, count_queued: Callable[[], int] = lambda: 0) -> Iterator[Engine]:
    """Start the follower and the queue of comparisons, and stop them when the block ends. count_queued: as `Engine`"""
    engine = Engine(resources, count_queued)
    engine.follower.start()
    engine.comparisons.start()
    try:
        yield engine
    finally:
        engine.comparisons.stop()
        engine.follower.stop()

"""The search engine of an API process: the models it serves and the limit on concurrent work."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from app.db.lookups import get_collection
from app.db.session import reading
from app.db.tables import POINTERS, Deployment
from app.errors import Busy, NotFound
from app.resources import Resources
from app.serving.batching import Slots
from app.serving.deployments import RecentlyRequested, Registry, ServedDeployment, ServedModel
from app.serving.follower import IndexFollower

log = logging.getLogger("likeness.engine")

MAX_LOAD_WAIT_SECONDS = 2.0


class Engine:
    """The models that this process serves. Requests read them; only the follower changes them."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.slots = Slots(resources.settings.slots, resources.settings.patience_seconds)
        self.registry, self.recently_requested = Registry(), RecentlyRequested()
        self.follower = IndexFollower(resources, self.registry, self.recently_requested)

    @contextmanager
    def use(self, collection: str, task: str = "identity", model: str | None = None) -> Iterator[ServedModel]:
        """Use one model for the whole request, whatever is published meanwhile.

        model: champion (default), challenger, previous, or the id of one of these
        Raises NotFound, or Busy if its index is not loaded yet.
        """
        key = collection, task
        if self._serving(key, model) is None:
            self.recently_requested.record(key, self._resolve_model(collection, task, model))
            self.resources.notifier.notify("changes")
            self.registry.wait(lambda: self._serving(key, model) is not None, MAX_LOAD_WAIT_SECONDS)
        serving = self._serving(key, model)
        if serving is None:
            raise Busy(f"the index of collection {collection!r} for {model or 'its champion'} is being loaded")
        if model is not None:
            self.recently_requested.record(key, serving.model.id)
        yield serving

    def list_deployments(self) -> tuple[ServedDeployment, ...]:
        """Every deployment that this process serves."""
        return self.registry.all()

    def _serving(self, key: tuple[str, str], model: str | None) -> ServedModel | None:
        served = self.registry.get(key)
        index = served.find_index(model) if served else None
        if served is None or index is None:
            return None
        return ServedModel(served, index, self.slots, min(index.state.change, served.constraints.change))

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


@contextmanager
def open_engine(resources: Resources) -> Iterator[Engine]:
    """Start the follower, and stop it when the block ends."""
    engine = Engine(resources)
    engine.follower.start()
    try:
        yield engine
    finally:
        engine.follower.stop()

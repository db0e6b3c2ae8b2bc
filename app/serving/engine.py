"""The search engine of an API process: what it serves, and how much of it at once."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from app.db.session import reading
from app.db.tables import Collection, Deployment
from app.errors import Busy, NotFound
from app.resources import Resources
from app.serving.batching import Slots
from app.serving.deployments import Registry, Served, Serving, Wishes
from app.serving.follower import Follower

log = logging.getLogger("likeness.engine")

WAIT_SECONDS = 2.0
POINTERS = ("champion", "challenger", "previous")


class Engine:
    """Read by requests; its follower alone changes what is served."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.slots = Slots(resources.settings.slots, resources.settings.patience_seconds)
        self.registry, self.wishes = Registry(), Wishes()
        self.follower = Follower(resources, self.registry, self.wishes)

    @contextmanager
    def use(self, collection: str, task: str = "identity", model: str | None = None) -> Iterator[Serving]:
        """One generation for the whole of a request, whatever is published meanwhile.

        model: champion (default), challenger, previous, or the id of one of these.
        Raises NotFound; Busy where it is not loaded yet.
        """
        key = collection, task
        if self._serving(key, model) is None:
            generation = self._deployed(collection, task, model)
            self.wishes.ask(key, generation)
            self.resources.bell.ring("changes")
            self.registry.wait(lambda: self._serving(key, model) is not None, WAIT_SECONDS)
        serving = self._serving(key, model)
        if serving is None:
            raise Busy(f"the index of collection {collection!r} for {model or 'its champion'} is being loaded")
        if model is not None:
            self.wishes.ask(key, serving.generation.id)
        yield serving

    def all(self) -> tuple[Served, ...]:
        """To look at."""
        return self.registry.all()

    def _serving(self, key: tuple[str, str], model: str | None) -> Serving | None:
        served = self.registry.get(key)
        held = served.named(model) if served else None
        return Serving(served, held, self.slots, held.standing.change) if served and held else None

    def _deployed(self, collection: str, task: str, model: str | None) -> str:
        """The generation that the tables name. Raises NotFound."""
        with reading(self.resources.database) as session:
            if session.get(Collection, collection) is None:
                raise NotFound(f"no collection {collection!r}")
            row = session.get(Deployment, (collection, task))
            if row is None:
                raise NotFound(f"collection {collection!r} has no model for the task {task!r}", code="UnknownTask")
            named = {name: getattr(row, name) for name in POINTERS}
        found = named.get(model or "champion", model)
        if found is None or found not in named.values():
            there = ", ".join(f"{name} {g}" for name, g in named.items() if g)
            raise NotFound(f"{model!r} is not deployed in {collection!r}; there: {there}", code="UnknownModel")
        return str(found)


@contextmanager
def open_engine(resources: Resources) -> Iterator[Engine]:
    """Starts following at once; ends it, and signs off, when the block does."""
    engine = Engine(resources)
    engine.follower.start()
    try:
        yield engine
    finally:
        engine.follower.stop()

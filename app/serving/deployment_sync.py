"""One deployment kept as its tables say: its champion loaded and swapped in, its indexes brought up to date."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import select

from app.db.session import snapshot
from app.db.tables import DEFAULT_FPIR, Deployment
from app.errors import AppError
from app.resources import Resources
from app.serving import gallery_calibration
from app.serving.background_tasks import Chores
from app.serving.deployments import Key, Registry, Served, Wishes
from app.serving.index_builder import Place
from app.serving.index_loader import Opener
from app.serving.loaded_index import Held
from app.serving.scores import Scores
from app.serving.snapshots import Shelf
from ml.errors import LikenessError

log = logging.getLogger("likeness.engine")

SAVE_SECONDS = 300.0
COLD_SECONDS = 60.0
QUIET_SECONDS = 0.5
WARM_BYTES = 256 * 2**20
"""What an index that does not serve may take beyond the champion's own bytes, and still be kept at hand."""


@dataclass(frozen=True)
class Told:
    """A deployment as the tables have it."""

    collection: str
    task: str
    born: float
    change: int
    version: int
    told_at: float
    champion: str
    challenger: str | None
    previous: str | None

    @property
    def key(self) -> Key:
        return self.collection, self.task

    @property
    def pointers(self) -> Mapping[str, str | None]:
        return {"champion": self.champion, "challenger": self.challenger, "previous": self.previous}

    def place(self, generation: str) -> Place:
        return Place(self.collection, self.task, generation, self.born)


class Keeper:
    """What the follower does for one deployment. Only its thread comes here; requests read the registry.

    Each step is short: whatever takes long is a chore, which is asked after at the next step.
    """

    def __init__(self, resources: Resources, registry: Registry, wishes: Wishes, shelf: Shelf) -> None:
        self.resources, self.registry, self.wishes, self.shelf = resources, registry, wishes, shelf
        self.opener = Opener(resources, shelf)
        self.chores = Chores(lambda: resources.bell.ring("changes"))
        self._cold: dict[Place, float] = {}  # could not be loaded; not tried before then
        self._measured: dict[Place, int] = {}  # how many faces there were when facts were last looked for

    def keep(self, told: Told) -> None:
        """Raises OperationalError, NotFound, ml.Corrupt; what was served before still is."""
        served = self.registry.get(told.key)
        if served is None or (served.version, served.told_at) != (told.version, told.told_at):
            self._point(served, told)
        served = self.registry.get(told.key)
        if served is None:
            return
        for held in served.held.values():
            self._follow(held, told.change)
        if served.champion.place.generation == told.champion:
            self._warm(told)
            self._measure(served.champion, served.facts[told.champion].measured_on)
            for held in served.held.values():
                if held.saved != held.standing.change and time.monotonic() - held.saved_at > SAVE_SECONDS:
                    held.saved_at = time.monotonic()
                    self.chores.start(("save", held), partial(self.save, held))

    def forget_all_but(self, known: set[tuple[str, str, float]]) -> None:
        """A collection that is gone is not served, nor kept on the disk."""
        for served in self.registry.all():
            if (served.collection, served.task, served.born) not in known:
                self.registry.drop((served.collection, served.task))
                for held in served.held.values():
                    self.shelf.forget(held.place)

    def save(self, held: Held) -> None:
        """A snapshot of what has changed since the last, after it was compared with its table. A chore."""
        with held.changing:
            if held.saved == held.standing.change:
                return
            if self.opener.follow(held, compare=True):
                self.shelf.save(held.place, held.index, held.standing.change)
                held.saved = held.standing.change
            else:
                held.wrong = True
                log.warning("index.disagrees collection=%s task=%s", held.place.collection, held.place.task)

    def _load(self, place: Place) -> Held | None:
        """None while it is under way."""
        loaded = self.chores.result(("open", place), partial(self.opener.open, place))
        if loaded is not None:
            self.opener.follow(loaded)
        return loaded

    def _point(self, served: Served | None, told: Told) -> None:
        """The swap. While a new champion is loaded, only the old one stays beside it."""
        held = dict(served.held) if served else {}
        if told.champion not in held:
            if served is not None and len(held) > 1:
                held = {g: h for g, h in held.items() if h is served.champion}
                self.registry.put(replace(served, held=held))
            loaded = self._load(told.place(told.champion))
            if loaded is None:
                return
            held[told.champion] = loaded
        kept = {g: held[g] for g in told.pointers.values() if g in held}
        self._put(Served(*told.key, told.born, told.version, told.pointers, {}, {}, told.told_at), kept)
        log.info("index.served collection=%s task=%s model=%s", *told.key, told.champion)

    def _follow(self, held: Held, change: int) -> None:
        """Brings it to the last change, unless it is being saved; where it disagrees or has outgrown its cells,
        another is built, and takes its place when it is done."""
        if held.standing.change != change or held.suspected:
            if not held.changing.acquire(blocking=False):
                return
            try:
                held.wrong = not self.opener.follow(held, compare=held.suspected) or held.wrong
            finally:
                held.changing.release()
        if held.wrong or held.outgrown():
            anew = self.chores.result(("build", held.place), partial(self.opener.build, held.place))
            served = self.registry.get((held.place.collection, held.place.task))
            if anew is not None and served is not None:
                self.opener.follow(anew)
                self._put(served, {**served.held, held.place.generation: anew})

    def _put(self, served: Served, held: Mapping[str, Held]) -> None:
        here = (Deployment.collection_id == served.collection, Deployment.task == served.task)
        with snapshot(self.resources.database) as session:
            row = session.execute(select(Deployment.facts, Deployment.default_fpir).where(*here)).one_or_none()
        measured, fpir = (row.facts, row.default_fpir) if row else ({}, DEFAULT_FPIR)
        scores = {g: Scores.of(measured.get(g), h.generation, served.task, fpir) for g, h in held.items()}
        self.registry.put(replace(served, held=held, facts=scores))

    def _warm(self, told: Told) -> None:
        """Keeps at hand what a roll back would need, and what was asked for by name lately."""
        served = self.registry.get(told.key)
        assert served is not None, "nobody but this thread drops it"
        held = {told.champion: served.champion}
        for generation in {told.previous, told.challenger} - {None} - held.keys():
            place = told.place(str(generation))
            try:
                if time.monotonic() >= self._cold.get(place, 0.0) and self._worth_it(served, told, place):
                    kept = served.held.get(place.generation) or self._load(place)
                    held |= {} if kept is None else {place.generation: kept}
            except (AppError, LikenessError) as error:
                self._cold[place] = time.monotonic() + COLD_SECONDS
                log.warning("index.not_kept_at_hand model=%s error=%s", generation, error)
        if held.keys() != served.held.keys():
            self._put(served, held)

    def _worth_it(self, served: Served, told: Told, place: Place) -> bool:
        champion = served.champion
        takes = 4 * champion.standing.vectors * self.opener.width(place)
        warm = place.generation == told.previous and takes <= champion.bytes + WARM_BYTES
        return warm or self.wishes.lately(told.key, place.generation)

    def _measure(self, held: Held, measured_on: int) -> None:
        """Thresholds and the curve anew, where the gallery is another than they were measured on. What is written
        down is read as any change of the deployment is."""
        here, quiet = held.standing.vectors, time.monotonic() - held.moved_at > QUIET_SECONDS
        done = self._measured.get(held.place) == here or self.chores.busy(("measure", held))
        if done or not gallery_calibration.due(here, measured_on, quiet):
            return
        with snapshot(self.resources.database) as session:
            quiet = not gallery_calibration.importing(session, held.place.collection)
        if gallery_calibration.due(here, measured_on, quiet):
            self._measured[held.place] = here
            self.chores.start(("measure", held), partial(gallery_calibration.renew, self.resources.database, held))

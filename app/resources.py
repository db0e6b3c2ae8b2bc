"""Open in one place; the API, the workers and the tests use the same door."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sqlalchemy import Engine

from app.config import Settings
from app.db.session import open_database
from app.queue.notifier import Notifier
from app.storage.blob_store import Blobs
from app.storage.model_cache import ModelStore
from app.storage.recognisers.default_recogniser import DefaultRecogniser, choose_default
from ml.pipeline import FrontEnd, default_front_end

YUNET = "face_detection_yunet_2023mar.onnx"


@dataclass(frozen=True, eq=False)
class Resources:
    """All that a process holds open. The search engine is the API's alone and is opened by `app.main`."""

    settings: Settings
    database: Engine
    blobs: Blobs
    notifier: Notifier
    generations: ModelStore
    front_end: FrontEnd

    @cached_property
    def default_recogniser(self) -> DefaultRecogniser:
        """What new collections are served by. Raises Unavailable, Corrupt where the settings name one that cannot be
        built."""
        return choose_default(self.settings)

    @property
    def uploads(self) -> Path:
        """Where archives lie between their arrival and the end of their import."""
        return self.settings.home / "uploads"

    @property
    def indexes(self) -> Path:
        return self.settings.home / "indexes"


@contextmanager
def open_resources(settings: Settings) -> Iterator[Resources]:
    """Raises ml.Unavailable where the settings name a detector that is not installed."""
    for folder in ("blobs", "generations", "uploads", "indexes", "models"):
        (settings.home / folder).mkdir(parents=True, exist_ok=True)
    database, bell = open_database(settings.database), Notifier(settings.redis_url)
    try:
        yield Resources(
            settings=settings,
            database=database,
            blobs=Blobs(settings.home / "blobs"),
            notifier=bell,
            generations=ModelStore(settings.generations),
            front_end=default_front_end(settings.detector, settings.home / "models" / YUNET),
        )
    finally:
        bell.close()
        database.dispose()

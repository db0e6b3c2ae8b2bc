"""Open what a process holds: the settings, the database, the stored files and the models."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sqlalchemy import Engine

from app.config import DETECTOR_FOLDER, MODEL_FOLDER, Settings
from app.db.session import close_database, open_database
from app.queue.notifier import Notifier
from app.storage.blob_store import Blobs
from app.storage.home_upgrade import upgrade_home
from app.storage.model_cache import ModelStore
from app.storage.recognisers.default_recogniser import DefaultRecogniser, choose_default
from ml.pipeline import FrontEnd, default_front_end

YUNET_FILE = "face_detection_yunet_2023mar.onnx"


@dataclass(frozen=True, eq=False)
class Resources:
    """What every process holds open. Only the API has a search engine, which `app.main` opens."""

    settings: Settings
    database: Engine
    blobs: Blobs
    notifier: Notifier
    models: ModelStore
    front_end: FrontEnd

    @cached_property
    def default_recogniser(self) -> DefaultRecogniser:
        """The recogniser of new collections.

        Raises Unavailable or Corrupt if the settings name a recogniser that cannot be built.
        """
        return choose_default(self.settings)

    @property
    def uploads(self) -> Path:
        """The folder that holds uploaded archives until their import has ended."""
        return self.settings.home / "uploads"

    @property
    def indexes(self) -> Path:
        """The folder of index snapshots."""
        return self.settings.home / "indexes"


@contextmanager
def open_resources(settings: Settings) -> Iterator[Resources]:
    """Open the resources, and close them at the end of the block.

    The home of an earlier version is brought to the folder names of this one first.
    Raises ml.Unavailable if the settings name a detector that is not installed, OSError if a folder cannot be made.
    """
    upgrade_home(settings.home)
    for folder in ("blobs", MODEL_FOLDER, DETECTOR_FOLDER, "uploads", "indexes"):
        (settings.home / folder).mkdir(parents=True, exist_ok=True)
    database, notifier = open_database(settings.database), Notifier(settings.redis_url)
    try:
        yield Resources(
            settings=settings,
            database=database,
            blobs=Blobs(settings.home / "blobs"),
            notifier=notifier,
            models=ModelStore(settings.model_folder),
            front_end=default_front_end(settings.detector, settings.detector_folder / YUNET_FILE),
        )
    finally:
        notifier.close()
        close_database(database)

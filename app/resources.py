"""Open what a process holds: the settings, the database, the stored files and the models."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sqlalchemy import Engine

from app.allocator import tune_allocator
from app.config import AUDIT_FOLDER, DETECTOR_FOLDER, MODEL_FOLDER, SNAPSHOT_FOLDER, Settings
from app.db.database_file import find_database_path
from app.db.servers.reach import DatabaseReach, find_reach
from app.db.session import REQUEST_THREADS, close_database, open_database
from app.queue.notifier import Notifier
from app.startup import CannotStart
from app.storage.audit_log.chain import AuditChain
from app.storage.blob_store import Blobs
from app.storage.home.upgrade import upgrade_home
from app.storage.home.watch import HomeWatch
from app.storage.installation_key import KEY_FILE, InstallationKey, read_installation_key
from app.storage.model_cache import ModelStore
from app.storage.model_signatures import open_model_signer
from app.storage.recognisers.default_recogniser import DefaultRecogniser, choose_default
from app.storage.unfinished_photos import UNFINISHED_FOLDER, UnfinishedPhotos
from ml.images import ImageLimits
from ml.pipeline import FrontEnd, default_front_end

YUNET_FILE = "face_detection_yunet_2023mar.onnx"
KEPT_FOLDERS = ("blobs", "uploads", AUDIT_FOLDER, SNAPSHOT_FOLDER)
"""What is written there is kept nowhere else. Each may be a mount of its own."""
FOLDERS = (*KEPT_FOLDERS, MODEL_FOLDER, DETECTOR_FOLDER, "indexes")


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

    @cached_property
    def installation_key(self) -> InstallationKey:
        """The key that signs receipts."""
        return read_installation_key(self.settings.home)

    @cached_property
    def audit_chain(self) -> AuditChain:
        """The audit log. Entries of requests go through the spool of `app.main`."""
        return AuditChain(self.settings.home)

    @cached_property
    def home(self) -> HomeWatch:
        """What notices that the home is not the one that was opened.

        The models are not compared: each is known by its hashes, and their folder may be restored beside searches.
        """
        database = find_database_path(self.settings.database)
        opened = [self.settings.home, *_list_kept_folders(self.settings), *([database] if database is not None else [])]
        written = [self.settings.model_folder, self.indexes, self.settings.home / UNFINISHED_FOLDER]
        return HomeWatch(opened, written)

    @cached_property
    def reach(self) -> DatabaseReach | None:
        """What notices that this process does not hear of changes."""
        return find_reach(self.database)

    @property
    def image_limits(self) -> ImageLimits:
        """The limits of a photo."""
        return ImageLimits(self.settings.max_image_bytes, self.settings.max_image_pixels)

    @cached_property
    def unfinished_photos(self) -> UnfinishedPhotos:
        """Which files are written for faces that have no row yet."""
        return UnfinishedPhotos(self.settings.home)

    @property
    def uploads(self) -> Path:
        """The folder that holds uploaded archives until their import has ended."""
        return self.settings.home / "uploads"

    @property
    def audit(self) -> Path:
        """The folder of the audit log's key and of entries that are not in the database yet."""
        return self.settings.home / AUDIT_FOLDER

    @property
    def indexes(self) -> Path:
        """The folder of index snapshots."""
        return self.settings.home / "indexes"


@contextmanager
def open_resources(
    settings: Settings, is_running: bool = False, kept_connections: int = REQUEST_THREADS
) -> Iterator[Resources]:
    """Open the resources, and close them at the end of the block.

    The home of an earlier version is brought to the folder names of this one first.
    is_running: the service runs already, so its home is not made anew if it is gone
    kept_connections: as `open_database`
    Raises CannotStart if it is, ml.Unavailable if the settings name a detector that is not installed, OSError if a
    folder cannot be made.
    """
    tune_allocator()
    if is_running:
        _check_home_exists(settings)
    upgrade_home(settings.home)
    for folder in FOLDERS:
        (settings.home / folder).mkdir(parents=True, exist_ok=True)
    database = open_database(settings.database, settings.home, kept_connections)
    notifier = Notifier(settings.redis_url)
    try:
        resources = Resources(
            settings=settings,
            database=database,
            blobs=Blobs(settings.home / "blobs"),
            notifier=notifier,
            models=ModelStore(settings.model_folder, open_model_signer(settings.home, settings.model_folder)),
            front_end=default_front_end(settings.detector, settings.detector_folder / YUNET_FILE),
        )
        resources.home.find_fault()
        resources.audit_chain.names  # noqa: B018  # the key is read or made now, and never while the service runs
        resources.installation_key  # noqa: B018
        yield resources
    finally:
        notifier.close()
        close_database(database)


def _list_kept_folders(settings: Settings) -> list[Path]:
    return [settings.home / folder for folder in KEPT_FOLDERS]


def _check_home_exists(settings: Settings) -> None:
    paths = (settings.home / KEY_FILE, *_list_kept_folders(settings), find_database_path(settings.database))
    for path in paths:
        if path is not None and not path.exists():
            raise CannotStart(f"{path} is missing: the home was moved or deleted while the service ran. Put it back")

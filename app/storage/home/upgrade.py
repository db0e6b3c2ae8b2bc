"""Bring the home of an earlier version to the folder names of this one.

Models were in `generations/`, and the files of detectors in `models/`. Now models are in `models/`, and the files of
detectors in `detectors/`.
"""

import logging
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from app.config import DETECTOR_FOLDER, MODEL_FOLDER
from app.storage.atomic_write import sync_paths

EARLIER_MODEL_FOLDER = "generations"
LOCK_FILE = "upgrade.lock"
log = logging.getLogger("likeness.storage")


def upgrade_home(home: Path) -> None:
    """Rename the folders of an earlier version in this home; nothing happens if there are none.

    Each step is one rename. If the process dies between two steps, the next start does the rest. Several processes may
    run this at once. Raises OSError if a folder cannot be renamed, for example if `generations/` is a mount.
    """
    if (home / EARLIER_MODEL_FOLDER).is_dir():
        with FileLock(home / LOCK_FILE):
            _rename_folders(home)


def _rename_folders(home: Path) -> None:
    earlier = home / EARLIER_MODEL_FOLDER
    if not earlier.is_dir():
        return  # another process renamed it while this one waited
    models, detectors = home / MODEL_FOLDER, home / DETECTOR_FOLDER
    models.mkdir(exist_ok=True)
    detectors.mkdir(exist_ok=True)
    for path in [path for path in models.iterdir() if path.is_file()]:
        _move(path, detectors)
    try:
        models.rmdir()
        earlier.rename(models)
    except OSError:  # models are there already
        models.mkdir(exist_ok=True)
        _move_content(earlier, models)
    sync_paths(home, [str(home), str(models), str(detectors)])
    log.info("home.upgraded models=%s", models)


def _move_content(earlier: Path, models: Path) -> None:
    for path in list(earlier.iterdir()):
        _move(path, models)
    with suppress(OSError):  # what could not be moved is still in it
        earlier.rmdir()


def _move(path: Path, folder: Path) -> None:
    """Move a file or a folder into a folder, unless it has one of this name already: models never change."""
    if (folder / path.name).exists():
        log.warning("home.kept path=%s reason=%s", path, "it exists in the new folder too")
        return
    path.rename(folder / path.name)

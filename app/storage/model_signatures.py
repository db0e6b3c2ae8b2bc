"""Sign models with a key of the installation, so that a model that somebody altered on disk is not loaded.

The manifest of a model has the hashes of its files, and the file `signature` beside it signs the manifest.
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from filelock import FileLock

from app.storage.home.upgrade import LOCK_FILE
from app.storage.installation_key import read_installation_key
from ml.errors import Corrupt
from ml.files import atomic_write
from ml.model import MANIFEST, SIGNATURE, Sign, read_manifest, sign_model

PURPOSE = "model manifest"
FIRST_START_FILE = "models-signed"
"""Says, under the installation's key, that the first start is over: no model is signed by a start any more."""
UNFINISHED_FILE = "models-being-signed"
"""Exists in the home while the first start signs the models, so that the next one goes on if it is killed."""

log = logging.getLogger("likeness.storage")


def open_model_signer(home: Path, models: Path) -> Sign:
    """Return what signs manifests. The first start of this version signs the models that exist.

    That is where no model has a signature: those that were signed with a key that is lost are not signed anew, see
    `sign_models`. It leaves a file, without which somebody could have altered models signed by removing all signatures.
    Raises OSError.
    """
    key = read_installation_key(home)
    sign: Sign = lambda manifest: key.hash_bytes(PURPOSE, manifest).hex()  # noqa: E731
    first_start = home / FIRST_START_FILE
    mark = sign(FIRST_START_FILE.encode())
    if not _has_text(first_start, mark):
        with FileLock(home / LOCK_FILE):
            if not _has_text(first_start, mark):
                _sign_unsigned(home / UNFINISHED_FILE, models, sign)
                with atomic_write(first_start) as file:
                    file.write(mark.encode())
    return sign


def _has_text(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _sign_unsigned(unfinished: Path, models: Path, sign: Sign) -> None:
    """Sign the models if none has a signature, or if an earlier start was killed while it signed them."""
    if unfinished.exists() or _are_unsigned(models):
        unfinished.touch()
        count = sign_models(iterate_model_folders(models), sign)
        unfinished.unlink()
        log.warning("models.signed count=%d reason=they were made by an earlier version", count)


def _are_unsigned(models: Path) -> bool:
    """Whether there are models, and none of them has a signature."""
    folders = list(iterate_model_folders(models))
    return bool(folders) and not any((folder / SIGNATURE).exists() for folder in folders)


def sign_models(folders: Iterable[Path], sign: Sign) -> int:
    """Sign each of these models whose files have the hashes in its manifest, and return their number."""
    count = 0
    for folder in folders:
        try:
            read_manifest(folder)
            sign_model(folder, sign)
            count += 1
        except Corrupt as error:
            log.warning("model.damaged model=%s error=%s", folder.name, error)
    return count


def iterate_model_folders(models: Path) -> Iterator[Path]:
    """Yield the folder of each model, by name."""
    yield from (path.parent for path in sorted(models.glob(f"[!.]*/{MANIFEST}")))

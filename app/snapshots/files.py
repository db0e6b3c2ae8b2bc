"""The files of a snapshot: one uncompressed tar, since photos and crops are compressed already."""

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.errors import Invalid, NotFound
from app.snapshots.blanks import BLANKED, BLANKING
from app.snapshots.tar_members import forget_members, iterate_members
from app.storage.blob_store import Blobs
from app.storage.recognisers.component_files import VOCABULARIES, VOCABULARY_FILE
from ml.files import hash_bytes, sync_path

BLOBS, MODELS, RECOGNISERS = "blobs", "models", "recognisers"
MAX_NAMED_FILES = 5
PATH_PARTS = {BLOBS: 3, MODELS: 3, RECOGNISERS: 2, VOCABULARIES: 2}
"""Kind of a file -> the least number of parts of its path."""


@dataclass(frozen=True)
class SnapshotFile:
    """A file in the tar.

    path: blobs/<collection>/<name>, models/<id>/<name>, recognisers/<name> or vocabularies/<SHA-256>.safetensors
    """

    path: str
    bytes: int
    sha256: str


def check_path(path: str) -> None:
    """Raises Invalid if a file with this path would lie outside of its folder in the home, or is no vocabulary there.

    Other files among the vocabularies say which of them a training takes.
    """
    kind, *rest = path.split("/")
    inner = rest[1:] if kind == BLOBS else rest  # a collection may be called "." or "..": its folder has a prefix
    is_short = len(rest) + 1 < PATH_PARTS.get(kind, len(path))
    is_unfit = kind == VOCABULARIES and not VOCABULARY_FILE.fullmatch("/".join(rest))
    if is_short or is_unfit or {"", ".", ".."} & {*inner} or "\0" in path or not rest[0]:
        raise Invalid(f"the snapshot holds a file that does not belong there: {path!r}")


def list_blobs(blobs: Blobs, collection: str, faces: set[tuple[str, int]]) -> list[str]:
    """List the names of all files of these faces and of their photos, sorted. faces: (image, number)"""
    images = {image for image, _ in faces}

    def is_named(image: str, number: int | None) -> bool:
        return image in images if number is None else (image, number) in faces

    return sorted({name for name in blobs.names(collection) if is_named(*Blobs.parse_name(name))})


def iterate_blobs(blobs: Blobs, collection: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the paths and bytes of these files; a file that is deleted meanwhile is left out."""
    for name in names:
        try:
            yield f"{BLOBS}/{collection}/{name}", blobs.get(collection, name)
        except NotFound:
            continue


def list_folder(folder: Path) -> list[Path]:
    """List all files below a folder, if it exists, sorted; links are left out.

    So is what has a name with a dot in front: another process is writing it.
    """
    paths = list[Path]()
    for path, folders, names in os.walk(folder, onerror=_pass_over_gone):
        folders[:] = (name for name in folders if not name.startswith("."))
        paths += (Path(path, name) for name in names if not name.startswith("."))
    return [path for path in sorted(paths) if path.is_file() and not path.is_symlink()]


def _pass_over_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def iterate_others(others: dict[str, Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the paths and bytes of these files; a file that is deleted meanwhile is left out."""
    for name, path in others.items():
        with suppress(FileNotFoundError):
            yield name, path.read_bytes()


def measure_others(others: dict[str, Path]) -> int:
    """Return the size of these files in bytes. What does not exist counts nothing."""
    size = 0
    for path in others.values():
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def write_files(path: Path, files: Iterable[tuple[str, bytes]]) -> Iterator[SnapshotFile]:
    """Write files to a tar one by one, and yield what was written. Raises OSError."""
    with path.open("xb") as target, tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for count, (name, data) in enumerate(files, 1):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
            forget_members(tar, count)
            yield SnapshotFile(name, len(data), hash_bytes(data))
    sync_path(path)


def read_files(path: Path, expected: dict[str, SnapshotFile]) -> Iterator[tuple[str, bytes]]:
    """Yield the path and bytes of every file that was expected, in the order of the tar.

    Members that an erasure has overwritten are passed over. Raises Invalid if a file is missing or has changed.
    """
    remaining, damaged = dict(expected), []
    try:
        with tarfile.open(path, "r:") as tar:
            for member in iterate_members(tar):
                if member.name in (BLANKED, BLANKING):
                    continue
                file = remaining.pop(member.name, None)
                content = tar.extractfile(member) if member.isreg() else None  # a link would be looked for elsewhere
                if file is None or content is None or member.size != file.bytes:
                    damaged.append(member.name)
                    continue
                data = content.read()
                if hash_bytes(data) != file.sha256:
                    damaged.append(member.name)
                    continue
                yield member.name, data
    except (OSError, tarfile.TarError, EOFError, MemoryError) as error:
        raise Invalid(f"{path} cannot be read: {error}; use another snapshot") from error
    damaged += remaining
    if damaged:
        named = ", ".join(sorted(damaged)[:MAX_NAMED_FILES])
        raise Invalid(f"{path} is damaged: {len(damaged)} of its files are missing or changed ({named} ...)")

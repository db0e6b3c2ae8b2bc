"""Fingerprint and remove the files of an erasure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from app.db.session import writing
from app.db.tables import Erasure, now
from app.errors import NotFound
from app.resources import Resources
from app.storage.blob_store import Blobs
from app.storage.fingerprints import MAX_BYTES, Fingerprinter, PatternKind
from workers.cleanup.steps import iterate_steps
from workers.cleanup.stored_files import remove_collection_files, remove_photo_files, remove_unnamed
from workers.context import JobContext

MAX_ROUNDING_SECONDS = 1.0
"""By how much the time of a new file may seem to be ahead."""
FileFingerprints = dict[str, dict[str, Any]]


def remove_erased_files(context: JobContext, erasure: Erasure) -> None:
    """Remove the files that no row names any more, and store their fingerprints and numbers in the targets.

    A second run finds the numbers and fingerprints of the first. Raises Interrupted.
    """
    resources, collection = context.resources, erasure.collection_id
    if "file_counts" not in erasure.targets:
        names = list(_iterate_names(context, erasure))
        prints = _fingerprint_files(resources, erasure)
        _store(resources, erasure, {"file_counts": _count_kinds(names), "fingerprints": prints})
    if erasure.target != "collection":
        remove_photo_files(context, collection, erasure.targets["images"])
    elif not remove_collection_files(resources, collection):  # a new collection has its name
        for names in iterate_steps(_iterate_names(context, erasure)):
            remove_unnamed(resources, collection, names)
    kept = _count_kinds(_iterate_names(context, erasure))
    counts = {kind: count - kept[kind] for kind, count in erasure.targets["file_counts"].items()}
    prints = erasure.targets["fingerprints"]
    gone = {name: value for name, value in prints.items() if not resources.blobs.has(collection, [name])}
    counts["photos_kept"] = kept["photos"]
    _store(resources, erasure, {"removed_files": counts, "fingerprints": gone})


def _store(resources: Resources, erasure: Erasure, values: dict[str, Any]) -> None:
    """Add values to the targets of the row, and of this copy of it."""
    with writing(resources.database) as session:
        row = session.get_one(Erasure, erasure.id, with_for_update=True)
        row.targets = erasure.targets = row.targets | values


def _iterate_names(context: JobContext, erasure: Erasure) -> Iterator[str]:
    """Yield the names of the files that exist. Those of a collection are older than its deletion.

    So are files whose time lies in the future: they were written before the clock was set back.
    """
    blobs, collection = context.resources.blobs, erasure.collection_id
    if erasure.target == "collection":
        for name in blobs.names(collection):
            context.check()
            age = blobs.age(collection, name)
            if age > now() - erasure.requested_at or age < -MAX_ROUNDING_SECONDS:
                yield name
        return
    for image in erasure.targets["images"]:
        context.check()
        yield from (name for name in blobs.files_of(collection, image) if blobs.has(collection, [name]))


def _count_kinds(names: Iterable[str]) -> dict[str, int]:
    """Return the numbers of photos, crops and cached descriptors."""
    counts = Counter(get_kind(name) for name in names)
    return {"photos": counts["photo"], "crops": counts["crop"], "descriptors": counts["descriptor"]}


def get_kind(name: str) -> PatternKind:
    """Return what a file of the store holds."""
    if not name.startswith("crops/"):
        return "photo"
    return "descriptor" if name.endswith(".f16") else "crop"


def _fingerprint_files(resources: Resources, erasure: Erasure) -> FileFingerprints:
    """Return name -> fingerprint of the files of the faces that are fingerprinted."""
    made: FileFingerprints = {}
    fingerprinter = Fingerprinter(resources.installation_key)
    for image, number in erasure.targets["files"]:
        for name in resources.blobs.files_of(erasure.collection_id, image):
            if Blobs.parse_name(name) in ((image, None), (image, number)):
                sample = read_sample(resources.blobs, erasure.collection_id, name)
                fingerprint = fingerprinter.make(get_kind(name), sample)
                if fingerprint is not None:
                    made[name] = fingerprint.to_dict()
    return made


def read_sample(blobs: Blobs, collection: str, name: str) -> bytes:
    """Return bytes from the middle of a file, where files of one format differ; empty if it does not exist."""
    try:
        data = blobs.get(collection, name)
    except NotFound:
        return b""
    start = max(0, len(data) // 2 - MAX_BYTES // 2)
    return data[start : start + MAX_BYTES]

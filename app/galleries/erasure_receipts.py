"""The receipt of an erasure: what was removed, by counts, ids and keyed hashes, signed by the installation.

What was erased is recognised by it when it is enrolled again.
"""

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, select, true
from sqlalchemy.orm import Session

from app.db.tables import Erasure
from app.storage.installation_key import InstallationKey
from ml.files import hash_bytes

PURPOSE = "erasure"
MAX_LISTED_IDS = 10_000
"""Faces and photos that a receipt lists; the counts are of all."""
ANY_ERASURE = true()


def hash_subject(key: InstallationKey, collection: str, subject: str) -> str:
    """Return the keyed hash that stands for a subject's id in receipts: 32 hex digits."""
    return key.hash_text("subject", collection, subject)


def hash_photo(key: InstallationKey, image_id: str) -> str:
    """Return the keyed hash that stands for a photo in receipts. image_id: its SHA-256"""
    return key.hash_text("photo", image_id)


def build_receipt(erasure: Erasure) -> dict[str, Any]:
    """Return the record that is signed, as values for JSON."""
    contents = erasure.contents
    return {
        "id": erasure.id,
        "collection": erasure.collection_id,
        "target": erasure.target,
        "state": erasure.state,
        "requested_at": erasure.requested_at,
        "finished_at": erasure.finished_at,
        "removed": contents.get("removed", {}),
        "subject": contents.get("subject"),
        "faces": contents.get("faces", []),
        "photos": contents.get("photos", []),
        "models": contents.get("models", []),
        "fingerprints": len(erasure.fingerprints),
        "fingerprints_sha256": hash_bytes(json.dumps(erasure.fingerprints, sort_keys=True).encode()),
    }


def sign_receipt(key: InstallationKey, erasure: Erasure) -> str:
    """Return the signature of a receipt."""
    return key.sign(PURPOSE, build_receipt(erasure))


def is_receipt_signed(key: InstallationKey, receipt: dict[str, Any], signature: str) -> bool:
    """Whether this installation has signed the receipt, a record that `build_receipt` returned."""
    return key.is_signed(PURPOSE, receipt, signature)


@dataclass(frozen=True)
class ErasedPhotos:
    """The photos that were erased from some collections, and the subjects that were erased from one of them.

    hashes: keyed ones, as receipts hold them; collection: that of the subjects
    lists_all: whether the receipts list all photos: each lists the first `MAX_LISTED_IDS`, none of a whole collection
    """

    key: InstallationKey
    collection: str
    hashes: Set[str]
    lists_all: bool

    def include(self, photo: str | None, subject: str | None) -> bool:
        """Whether this photo was erased, or the subject of this id in the collection."""
        if not self.hashes:
            return False
        is_photo = photo is not None and hash_photo(self.key, photo) in self.hashes
        return is_photo or (subject is not None and hash_subject(self.key, self.collection, subject) in self.hashes)


def read_erased_photos(
    session: Session,
    key: InstallationKey,
    collection: str,
    since: Mapping[str, int],
    condition: ColumnElement[bool] = ANY_ERASURE,
    *,
    without: Set[int] = frozenset(),
) -> ErasedPhotos:
    """Read what was erased by the receipts, and by the names where these are not sealed yet.

    collection: whose subjects are read too; since: collection -> the change after which its erasures count
    without: changes of erasures that do not count
    """
    hashes, lists_all = set[str](), True
    for name, change in since.items():
        chosen = select(Erasure.change, Erasure.target, Erasure.contents, Erasure.targets)
        chosen = chosen.where(Erasure.collection_id == name, Erasure.change > change, condition)
        for at, target, contents, targets in session.execute(chosen.execution_options(yield_per=1000)):
            if at in without:
                continue
            photos, images = contents.get("photos", ()), targets.get("images", ())
            lists_all &= target != "collection" and len(photos) < MAX_LISTED_IDS
            hashes.update(photos)
            hashes.update(hash_photo(key, photo) for photo in images)
            if name == collection:
                subject = targets.get("subject")
                hashes.update([] if subject is None else [hash_subject(key, collection, subject)])
                hashes.update(filter(None, [contents.get("subject")]))
    return ErasedPhotos(key, collection, hashes, lists_all)

"""The receipt of an erasure: what was removed, by counts, ids and keyed hashes, signed by the installation."""

import json
from typing import Any

from app.db.tables import Erasure
from app.storage.installation_key import InstallationKey
from ml.files import hash_bytes

PURPOSE = "erasure"
MAX_LISTED_IDS = 10_000
"""Faces and photos that a receipt lists; the counts are of all."""


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

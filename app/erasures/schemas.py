"""Answers of the routes for erasures."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from app.db.tables import Erasure
from app.galleries.erasure_receipts import build_receipt

HASH = "5f3a9c0be1d24877a6e1c09d3b5f8e21"
REMOVED: dict[str, int] = {
    "answers": 1, "coordinates": 3, "crops": 6, "descriptors": 3, "embeddings": 6, "faces": 3, "index_entries": 3,
    "job_items": 2, "labels": 2, "photos": 3, "photos_kept": 0, "reports": 1, "snapshots": 1,
}  # fmt: skip
OUT: dict[str, Any] = {
    "id": examples.ERASURE,
    "collection": examples.COLLECTION,
    "target": "subject",
    "state": "final",
    "requested_at": examples.MOMENT,
    "finished_at": examples.MOMENT + 2.5,
    "removed": REMOVED,
    "subject": HASH,
    "faces": [examples.FACE],
    "photos": ["0c4e1f6b7a8d92e35b60d1f4a7c8e9b2"],
    "models": [examples.MODEL],
    "fingerprints": 17,
    "fingerprints_sha256": 32 * "5e",
    "signature": 32 * "a7",
}


class ErasureOut(BaseModel):
    """The receipt of an erasure. It names no person: subject and photos are keyed hashes of the installation."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    id: str
    collection: str
    target: Literal["face", "subject", "collection"]
    state: Literal["pending", "scrubbed", "final"] = Field(
        description="final: nothing is left, and the receipt is signed; the numbers may rise before that"
    )
    requested_at: float
    finished_at: float | None
    removed: dict[str, int] = Field(
        description="how many of each kind were removed; `photos_kept`: photos from which somebody else is enrolled too"
    )
    subject: str | None = Field(description="keyed hash of the subject's id; null: no subject, or not final")
    faces: list[str] = Field(description="ids of the faces, the first 10,000; none for a collection")
    photos: list[str] = Field(description="keyed hashes of the photos, the first 10,000; none for a collection")
    models: list[str] = Field(description="models that have learned from the faces")
    fingerprints: int = Field(description="how many pieces of what was erased a scan can recognise")
    fingerprints_sha256: str
    signature: str = Field(description="of all other fields, by the key of the installation; empty until it is final")

    @classmethod
    def of(cls, erasure: Erasure) -> Self:
        return cls(**build_receipt(erasure), signature=erasure.signature)


class ErasuresOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"erasures": [OUT], "next_token": None}]})
    erasures: list[ErasureOut]
    next_token: str | None = None

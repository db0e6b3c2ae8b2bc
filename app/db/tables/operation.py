"""Tables of jobs, keys, answers, erasures and the audit log."""

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, String, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base, BigId, new_id, now

ERASED_STATUS = 410
"""The status of a stored answer that named somebody who was erased."""
RESERVATION_SECONDS = 300.0
"""How long an idempotency key stays reserved for a request that is not answered, unless its process was killed."""


IS_REPORT = text("report_number IS NOT NULL")


class Job(Base):
    """A job for the workers.

    collection_id: whose turn it takes in the queue; None: it works for no collection
    lock: a job waits for earlier live ones of the same lock
    lease_until: the worker that runs it renews this time while it lives
    report_number: of a report; among those of its kind and collection, the last one has the highest
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index("jobs_to_claim", "queue", "state", "not_before"),
        Index("jobs_of_a_lock", "lock", "state", "id"),
        Index(
            "reports_of_a_collection",
            "collection_id",
            "kind",
            "state",
            "report_number",
            sqlite_where=IS_REPORT,
            postgresql_where=IS_REPORT,
        ),
        Index("parts_of_a_job", "parent_id", "id"),
    )
    id: Mapped[str] = mapped_column(String(64), primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(32))
    body: Mapped[dict[str, Any]]
    queue: Mapped[str] = mapped_column(String(16), default="default")  # or training
    state: Mapped[str] = mapped_column(String(16), default="queued")
    collection_id: Mapped[str | None] = mapped_column(String(255))
    report_number: Mapped[int | None]
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    lock: Mapped[str | None] = mapped_column(String(300))
    tries: Mapped[int] = mapped_column(default=0)
    not_before: Mapped[float] = mapped_column(default=0.0)
    lease_until: Mapped[float | None]
    worker: Mapped[str | None] = mapped_column(String(64))
    cancel: Mapped[bool] = mapped_column(default=False)
    done: Mapped[int] = mapped_column(default=0)
    total: Mapped[int | None]
    failed: Mapped[int] = mapped_column(default=0)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    problem: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(default=now)
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]


class JobItem(Base):
    """One photo of an import, which is queued, done or failed."""

    __tablename__ = "job_items"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(1024))
    state: Mapped[str] = mapped_column(String(16), default="queued")
    detail: Mapped[dict[str, Any]] = mapped_column(
        default=dict
    )  # of a queued item its archive entry, later its face ids or reasons


class Key(Base):
    """A key with its role. Only the hash of its secret is stored.

    collections: empty means all; previous_until: the time from which the secret before the last rotation is refused
    """

    __tablename__ = "keys"
    __table_args__ = (Index("keys_of_previous_secrets", "previous_digest"),)
    id: Mapped[str] = mapped_column(String(64), primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(255), default="")
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[str] = mapped_column(String(16))  # reader, operator, admin
    collections: Mapped[list[str]] = mapped_column(default=list)
    created_at: Mapped[float] = mapped_column(default=now)
    revoked_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    previous_digest: Mapped[str | None] = mapped_column(String(64))  # of the secret before the rotation
    previous_until: Mapped[float | None]


class StoredResponse(Base):
    """The answer to a request with an Idempotency-Key, stored for 24 hours.

    idempotency_key: a keyed hash of what the client sent; collection: the one in the path of the request, None if
        there is none
    process: the one that answers it, as its files of the audit log are named; None: an earlier version of the service
    status: None while it is being answered, ERASED_STATUS if its body was erased
    """

    __tablename__ = "answers"
    __table_args__ = (Index("answers_by_age", "created_at"),)
    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))  # of method, path and body
    collection: Mapped[str | None] = mapped_column(String(255))
    process: Mapped[str | None] = mapped_column(String(64))
    status: Mapped[int | None]
    headers: Mapped[dict[str, Any]] = mapped_column(default=dict)
    body: Mapped[bytes] = mapped_column(LargeBinary, default=b"")
    created_at: Mapped[float] = mapped_column(default=now)


class Erasure(Base):
    """The erasure of a face, a subject or a collection, and its receipt. It outlives the collection.

    state: pending, until files, answers and jobs hold nothing of it any more; scrubbed; final, once the database has
        been compacted and the receipt is signed
    change: the collection's change that removed the faces; first_change: the first of the last changes of these
    targets: what is to be erased, in plain; emptied when the state becomes scrubbed
    contents: what the receipt says: counts, ids and keyed hashes, and no name
    fingerprints: keyed hashes of what was erased, by which a scan recognises it
    signature: of the receipt, by the key of the installation; empty until it is final
    """

    __tablename__ = "erasures"
    __table_args__ = (Index("erasures_of_a_collection", "collection_id", "id"),)
    id: Mapped[str] = mapped_column(String(64), primary_key=True, default=new_id)
    collection_id: Mapped[str] = mapped_column(String(255))
    collection_created_at: Mapped[float]
    target: Mapped[str] = mapped_column(String(16))  # face, subject or collection
    state: Mapped[str] = mapped_column(String(16), default="pending", index=True)
    change: Mapped[int] = mapped_column(BigInteger)
    first_change: Mapped[int] = mapped_column(BigInteger)
    targets: Mapped[dict[str, Any]] = mapped_column(default=dict)
    contents: Mapped[dict[str, Any]] = mapped_column(default=dict)
    fingerprints: Mapped[list[Any]] = mapped_column(default=list)
    signature: Mapped[str] = mapped_column(String(64), default="")
    requested_at: Mapped[float] = mapped_column(default=now)
    finished_at: Mapped[float | None]


class KeptSnapshot(Base):
    """A snapshot in the home. It outlives its collection, but what is erased in the service is erased from it too.

    collection_id: the only one that it holds; None: the whole service
    finished_at: None while it is being written; erased_at: when something was last erased from it
    faces, files, bytes: what it holds; 0 until it is finished
    """

    __tablename__ = "snapshots"
    __table_args__ = (Index("snapshots_of_a_collection", "collection_id", "id"),)
    id: Mapped[str] = mapped_column(String(64), primary_key=True, default=new_id)
    collection_id: Mapped[str | None] = mapped_column(String(255))
    job_id: Mapped[str | None] = mapped_column(String(64))
    faces: Mapped[int] = mapped_column(BigInteger, default=0)
    files: Mapped[int] = mapped_column(BigInteger, default=0)
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[float] = mapped_column(default=now)
    finished_at: Mapped[float | None]
    erased_at: Mapped[float | None]


class AuditEntry(Base):
    """Who did what, when, on what. It holds ids, but no names of subjects: see app/storage/audit_log.

    mac: over this entry and the `mac` of the one before
    """

    __tablename__ = "audit_entries"
    __table_args__ = (Index("audit_entries_of_collection", "collection_id", "number"),)
    number: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    id: Mapped[str] = mapped_column(String(64), unique=True)
    at: Mapped[float]
    action: Mapped[str] = mapped_column(String(64))
    key_id: Mapped[str | None] = mapped_column(String(64))  # None: a command, or the service itself
    address: Mapped[str | None] = mapped_column(String(64))
    collection_id: Mapped[str | None] = mapped_column(String(255))
    resource: Mapped[str | None] = mapped_column(String(255))
    status: Mapped[int | None]
    mac: Mapped[str] = mapped_column(String(64))


class AuditHead(Base):
    """The only row: the last entry of the audit log and the last one that was removed from its start, signed."""

    __tablename__ = "audit_heads"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, default=1)
    number: Mapped[int] = mapped_column(BigId)
    mac: Mapped[str] = mapped_column(String(64))
    cut_number: Mapped[int] = mapped_column(BigId)
    cut_mac: Mapped[str] = mapped_column(String(64))
    signature: Mapped[str] = mapped_column(String(64))


class ServerToken(Base):
    """A token by which the processes of a home know a server of PostgreSQL again: see app/db/servers."""

    __tablename__ = "server_tokens"
    token: Mapped[str] = mapped_column(String(32), primary_key=True)
    created_at: Mapped[float] = mapped_column(default=now)

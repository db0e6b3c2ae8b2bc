"""All tables. Times are in seconds since 1970 (UTC)."""

import secrets
import time
import uuid
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

DEFAULT_FPIR = 0.01
BUILT_IN_TASK = "identity"
POINTERS = ("champion", "challenger", "previous")
"""The columns of a deployment that name a model."""
BigId = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers only INTEGER keys by itself


def now() -> float:
    return time.time()


def new_id() -> str:
    """Return a new unique id. Ids sort by the time at which they were made."""
    return f"{time.time_ns() // 1000:014x}{secrets.token_hex(5)}"


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON, list[str]: JSON}  # noqa: RUF012


class Collection(Base):
    """A set of faces that is searched as one.

    change: the number of its last change; it is raised, and copied to the changed rows, while this row is locked
    """

    __tablename__ = "collections"
    id: Mapped[str] = mapped_column(String(255), primary_key=True)
    description: Mapped[str] = mapped_column(default="")
    change: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[float] = mapped_column(default=now)


class Subject(Base):
    """A person. `id` is chosen by the client and unique in the collection."""

    __tablename__ = "subjects"
    __table_args__ = (UniqueConstraint("collection_id", "id"),)
    pk: Mapped[int] = mapped_column(BigId, primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"))
    id: Mapped[str] = mapped_column(String(255))
    external_id: Mapped[str | None] = mapped_column(String(255))
    attributes: Mapped[dict[str, Any]] = mapped_column("metadata", default=dict)
    consent: Mapped[bool | None]
    retain_until: Mapped[float | None]
    created_at: Mapped[float] = mapped_column(default=now)


class Face(Base):
    """An enrolled face. `pk` is its id in every index, and is never used again."""

    __tablename__ = "faces"
    __table_args__ = (
        UniqueConstraint("collection_id", "image_id", "number"),
        Index("faces_in_order_of_change", "collection_id", "change"),
        Index("faces_of_a_source", "collection_id", "source"),
        {"sqlite_autoincrement": True},
    )
    pk: Mapped[int] = mapped_column(BigId, primary_key=True)
    face_id: Mapped[str] = mapped_column(String(36), unique=True, default=lambda: str(uuid.uuid4()))
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"))
    subject_pk: Mapped[int | None] = mapped_column(ForeignKey("subjects.pk"), index=True)
    role: Mapped[str] = mapped_column(String(16), default="gallery")  # or distractor
    image_id: Mapped[str] = mapped_column(String(64))  # SHA-256 of the photo
    number: Mapped[int] = mapped_column(default=0)  # of the face in the photo, the largest is 0
    external_image_id: Mapped[str | None] = mapped_column(String(1024))
    source: Mapped[str | None] = mapped_column(String(64))  # what the photo comes from: a camera, a scanner, "masked"
    bounding_box: Mapped[dict[str, Any]]
    landmarks: Mapped[list[Any]]
    quality: Mapped[dict[str, Any]]
    attributes: Mapped[dict[str, Any]] = mapped_column("metadata", default=dict)
    change: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(default=now)


class Removal(Base):
    """A face that was deleted. Followers read these rows to remove it from their indexes."""

    __tablename__ = "removals"
    __table_args__ = (Index("removals_in_order_of_change", "collection_id", "change"),)
    pk: Mapped[int] = mapped_column(BigId, primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"))
    face_pk: Mapped[int] = mapped_column(BigInteger)
    change: Mapped[int] = mapped_column(BigInteger)


class ModelRecord(Base):
    """A model: recipe, embedder, calibration and report. It is immutable and has a folder of its own."""

    __tablename__ = "models"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    manifest: Mapped[dict[str, Any]]
    report: Mapped[dict[str, Any]] = mapped_column(default=dict)
    training_id: Mapped[str | None] = mapped_column(String(64), index=True)
    archived_at: Mapped[float | None]
    created_at: Mapped[float] = mapped_column(default=now)


class Embedding(Base):
    """The embedding of a face by one model for one task. vector: float32, little-endian"""

    __tablename__ = "embeddings"
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), primary_key=True)
    task: Mapped[str] = mapped_column(String(64), primary_key=True)
    face_pk: Mapped[int] = mapped_column(ForeignKey("faces.pk", ondelete="CASCADE"), primary_key=True, index=True)
    vector: Mapped[bytes] = mapped_column(LargeBinary)


class Deployment(Base):
    """The models that serve a task in a collection.

    version: the ETag; every move of a pointer raises it
    default_fpir: the share of strangers' searches that may name somebody, unless a search states another
    label_policy: whether a candidate that breaks labels is refused: `refuse`, or `list` them in the verdict only
    measurements: model id -> what was measured of it here: thresholds, cells, curve
    """

    __tablename__ = "deployments"
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True)
    task: Mapped[str] = mapped_column(String(64), primary_key=True)
    champion: Mapped[str] = mapped_column(ForeignKey("models.id"))
    challenger: Mapped[str | None] = mapped_column(ForeignKey("models.id"))
    previous: Mapped[str | None] = mapped_column(ForeignKey("models.id"))
    version: Mapped[int] = mapped_column(default=1)
    default_fpir: Mapped[float] = mapped_column(default=DEFAULT_FPIR, server_default=str(DEFAULT_FPIR))
    label_policy: Mapped[str] = mapped_column(String(16), default="list", server_default="list")
    measurements: Mapped[dict[str, Any]] = mapped_column(default=dict)
    history: Mapped[list[Any]] = mapped_column(default=list)  # {"at", "model", "by", "reason", "overridden"}
    updated_at: Mapped[float] = mapped_column(default=now, onupdate=now)


class StoredCompensation(Base):
    """The source compensation of a model in a deployment: see `ml.compensation`.

    version: raised when the corrections change; an index holds the rows as one version corrects them
    data: the corrections that are on; decisions: source -> why its correction is on or off; faces: source -> the number
        of its faces when this was measured, "" for faces without a source
    """

    __tablename__ = "source_compensations"
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True)
    task: Mapped[str] = mapped_column(String(64), primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(default=0)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    decisions: Mapped[dict[str, Any]] = mapped_column(default=dict)
    faces: Mapped[dict[str, Any]] = mapped_column(default=dict)
    measured_at: Mapped[float] = mapped_column(default=now)


class Follower(Base):
    """What one API process serves of one deployment, and up to which change."""

    __tablename__ = "followers"
    process: Mapped[str] = mapped_column(String(64), primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True)
    task: Mapped[str] = mapped_column(String(64), primary_key=True)
    model_id: Mapped[str] = mapped_column(String(64))
    change: Mapped[int] = mapped_column(BigInteger)
    vectors: Mapped[int]
    seen_at: Mapped[float] = mapped_column(default=now)


class Task(Base):
    """A criterion of likeness."""

    __tablename__ = "tasks"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    description: Mapped[str] = mapped_column(default="")
    enabled: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[float] = mapped_column(default=now)


class Label(Base):
    """One person's statement about a pair of faces, face_a < face_b. It is never edited; a later one supersedes it.

    withdrawn_at: when all labels of this person were withdrawn; withdrawn labels are stored but no longer count
    """

    __tablename__ = "labels"
    __table_args__ = (Index("labels_of_a_pair", "task", "face_a", "face_b"),)
    pk: Mapped[int] = mapped_column(BigId, primary_key=True)
    task: Mapped[str] = mapped_column(ForeignKey("tasks.name"))
    face_a: Mapped[int] = mapped_column(ForeignKey("faces.pk", ondelete="CASCADE"), index=True)
    face_b: Mapped[int] = mapped_column(ForeignKey("faces.pk", ondelete="CASCADE"), index=True)
    same: Mapped[bool]
    by: Mapped[str] = mapped_column(String(255), index=True)
    note: Mapped[str] = mapped_column(default="")
    withdrawn_at: Mapped[float | None]
    created_at: Mapped[float] = mapped_column(default=now)


class FaceCluster(Base):
    """Faces without a name that seem to show one person, offered to be named.

    state: open, or dismissed, which is not offered again
    probability: the least probability at which two parts of it were joined, 0..1
    suggested_subject_pk: the person with a name who seems to be the same
    edited_at: when somebody merged or dismissed it; a later search for people then leaves its faces together
    """

    __tablename__ = "face_clusters"
    __table_args__ = ({"sqlite_autoincrement": True},)
    pk: Mapped[int] = mapped_column(BigId, primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"), index=True)
    state: Mapped[str] = mapped_column(String(16), default="open")
    probability: Mapped[float]
    suggested_subject_pk: Mapped[int | None] = mapped_column(ForeignKey("subjects.pk", ondelete="SET NULL"), index=True)
    edited_at: Mapped[float | None]
    created_at: Mapped[float] = mapped_column(default=now)


class ClusteredFace(Base):
    """A face of a cluster. A face lies in at most one; once it has a name, it no longer counts."""

    __tablename__ = "clustered_faces"
    face_pk: Mapped[int] = mapped_column(
        BigId, ForeignKey("faces.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    cluster_pk: Mapped[int] = mapped_column(ForeignKey("face_clusters.pk", ondelete="CASCADE"), index=True)


class PeopleSearch(Base):
    """The last search for people among the faces of a collection. change: the last change of the collection it saw"""

    __tablename__ = "people_searches"
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[str] = mapped_column(String(64))
    min_probability: Mapped[float]
    change: Mapped[int] = mapped_column(BigInteger)
    finished_at: Mapped[float] = mapped_column(default=now)


class Training(Base):
    """A training: its request, learning curve, report and candidate model.

    snapshot: the data that it learns from: {"changes": {collection: number}, "collections_created_at": {collection:
        seconds}, "labels": {task: [pk]}}; written once, so that a training that is started again learns from the same
    """

    __tablename__ = "trainings"
    id: Mapped[str] = mapped_column(String(64), primary_key=True, default=new_id)
    request: Mapped[dict[str, Any]]
    job_id: Mapped[str | None] = mapped_column(String(64))
    snapshot: Mapped[dict[str, Any]] = mapped_column(default=dict)
    curve: Mapped[list[Any]] = mapped_column(default=list)
    report: Mapped[dict[str, Any]] = mapped_column(default=dict)
    model: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(default=now)


class Evaluation(Base):
    """The measurement of a model or a method by a protocol."""

    __tablename__ = "evaluations"
    id: Mapped[str] = mapped_column(String(64), primary_key=True, default=new_id)
    request: Mapped[dict[str, Any]]
    job_id: Mapped[str | None] = mapped_column(String(64))
    report: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[float] = mapped_column(default=now)


class Job(Base):
    """A job for the workers. lease_until: the worker that runs it renews this time while it lives"""

    __tablename__ = "jobs"
    __table_args__ = (Index("jobs_to_claim", "queue", "state", "not_before"),)
    id: Mapped[str] = mapped_column(String(64), primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(32))
    body: Mapped[dict[str, Any]]
    queue: Mapped[str] = mapped_column(String(16), default="default")  # or training
    state: Mapped[str] = mapped_column(String(16), default="queued")
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    lock: Mapped[str | None] = mapped_column(String(300), index=True)  # waits for earlier jobs of the same lock
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
    """A key with its role. Only the hash of its secret is stored. collections: empty means all"""

    __tablename__ = "keys"
    id: Mapped[str] = mapped_column(String(64), primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(255), default="")
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[str] = mapped_column(String(16))  # reader, operator, admin
    collections: Mapped[list[str]] = mapped_column(default=list)
    created_at: Mapped[float] = mapped_column(default=now)
    revoked_at: Mapped[float | None]


class StoredResponse(Base):
    """The answer to a request with an Idempotency-Key, stored for 24 hours. status: None while it is being answered"""

    __tablename__ = "answers"
    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))  # of method, path and body
    status: Mapped[int | None]
    headers: Mapped[dict[str, Any]] = mapped_column(default=dict)
    body: Mapped[bytes] = mapped_column(LargeBinary, default=b"")
    created_at: Mapped[float] = mapped_column(default=now)

"""Tables of people, faces and what is known about them."""

import uuid
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base, BigId, MetadataColumn, now


class Collection(Base):
    """A set of faces that is searched as one.

    change: the number of its last change; it is raised, and copied to the changed rows, while this row is locked
    label_change: the last change of labels, or of the person that a face shows
    label_reread_change: the last of these changes but for added labels: all labels have to be read anew after it
    external_model: the built-in model whose embeddings are the imported vectors; None: faces come from photos. See
        docs/decisions/0037-imported-vectors.md
    copied_from: the collections that it is a copy of, as a snapshot was restored under another name
    is_deleted: its deletion was accepted: nobody finds it any more, and a job deletes its rows
    """

    __tablename__ = "collections"
    id: Mapped[str] = mapped_column(String(255), primary_key=True)
    description: Mapped[str] = mapped_column(default="")
    change: Mapped[int] = mapped_column(BigInteger, default=0)
    label_change: Mapped[int] = mapped_column(BigInteger, default=0)
    label_reread_change: Mapped[int] = mapped_column(BigInteger, default=0)
    external_model: Mapped[str | None] = mapped_column(String(64))
    copied_from: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
    is_deleted: Mapped[bool] = mapped_column(default=False, server_default=false())
    created_at: Mapped[float] = mapped_column(default=now)

    def have_labels_reread(self) -> None:
        """Note that the collection's last change may change what any label means. The collection is locked."""
        self.label_change = self.label_reread_change = self.change


class Subject(Base):
    """A person. `id` is chosen by the client and unique in the collection; `pk` is never used again.

    merged_subjects: who was merged into this one, [{"pk", "id", "external_id", "created_at", "merged_at"}]: see
    `absorb`. Merges of earlier versions have no pk, and a restored collection has those that they had before
    """

    __tablename__ = "subjects"
    __table_args__ = (UniqueConstraint("collection_id", "id"), {"sqlite_autoincrement": True})
    pk: Mapped[int] = mapped_column(BigId, primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"))
    id: Mapped[str] = mapped_column(String(255))
    external_id: Mapped[str | None] = mapped_column(String(255))
    attributes: Mapped[dict[str, Any]] = mapped_column("metadata", MetadataColumn, default=dict)
    consent: Mapped[bool | None]
    retain_until: Mapped[float | None]
    merged_subjects: Mapped[list[Any]] = mapped_column(default=list, server_default="[]", deferred=True)
    created_at: Mapped[float] = mapped_column(default=now)

    def absorb(self, other: "Subject", merged_at: float) -> None:
        """Record by which names a subject was known that is merged into this one, and those merged into it before.

        An erasure of this one erases their names too.
        """
        merged = {
            "pk": other.pk, "id": other.id, "external_id": other.external_id, "created_at": other.created_at,
            "merged_at": merged_at,
        }  # fmt: skip
        added = [one for one in (*other.merged_subjects, merged) if one not in self.merged_subjects]
        self.merged_subjects = [*self.merged_subjects, *added]


class Face(Base):
    """An enrolled face. `pk` is its id in every index, and is never used again."""

    __tablename__ = "faces"
    __table_args__ = (
        UniqueConstraint("collection_id", "image_id", "number"),
        Index("faces_of_a_collection", "collection_id", "pk"),
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
    attributes: Mapped[dict[str, Any]] = mapped_column("metadata", MetadataColumn, default=dict)
    change: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(default=now)


class DamagedFace(Base):
    """A face with a stored crop that is damaged or missing. Jobs leave it out until the crop can be read again.

    file: the name of the crop; reason: what is wrong with it
    """

    __tablename__ = "damaged_faces"
    face_pk: Mapped[int] = mapped_column(
        BigId, ForeignKey("faces.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"), index=True)
    file: Mapped[str] = mapped_column(String(255))
    reason: Mapped[str] = mapped_column(String(255))
    found_at: Mapped[float] = mapped_column(default=now)


class Removal(Base):
    """A face that was deleted. Followers read these rows to remove it from their indexes."""

    __tablename__ = "removals"
    __table_args__ = (Index("removals_in_order_of_change", "collection_id", "change"),)
    pk: Mapped[int] = mapped_column(BigId, primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"))
    face_pk: Mapped[int] = mapped_column(BigInteger)
    change: Mapped[int] = mapped_column(BigInteger)


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
    __table_args__ = (
        Index("labels_of_a_task", "task", "pk"),
        Index("labels_of_a_pair", "task", "face_a", "face_b"),
        {"sqlite_autoincrement": True},
    )
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
    __table_args__ = (
        Index("face_clusters_of_a_collection", "collection_id", "pk"),
        {"sqlite_autoincrement": True},
    )
    pk: Mapped[int] = mapped_column(BigId, primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"))
    state: Mapped[str] = mapped_column(String(16), default="open")
    probability: Mapped[float]
    suggested_subject_pk: Mapped[int | None] = mapped_column(ForeignKey("subjects.pk", ondelete="SET NULL"), index=True)
    edited_at: Mapped[float | None]
    created_at: Mapped[float] = mapped_column(default=now)


class ClusteredFace(Base):
    """A face of a cluster. A face lies in at most one; once it has a name or is a distractor, it no longer counts."""

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

"""Tables of models, where they serve, and how they come about."""

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import DEFAULT_FPIR, Base, BigId, new_id, now


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
    label_weights: `equal`, or `agreement`: votes weigh by how well their labeller agrees with others
    label_quorum: how many labellers a majority needs
    shadow_share: the share of searches that the challenger answers too, to be compared with the champion's answer
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
    label_weights: Mapped[str] = mapped_column(String(16), default="equal", server_default="equal")
    label_quorum: Mapped[int] = mapped_column(default=1, server_default="1")
    shadow_share: Mapped[float] = mapped_column(default=0.0, server_default="0")
    measurements: Mapped[dict[str, Any]] = mapped_column(default=dict)
    history: Mapped[list[Any]] = mapped_column(default=list)  # {"at", "model", "by", "reason", "overridden"}
    updated_at: Mapped[float] = mapped_column(default=now, onupdate=now)


class ShadowTotals(Base):
    """How a challenger's answers compare with the champion's: sums over searches, and nothing of any search.

    compared: query faces that both have answered; same_first: with the same person first
    decided: query faces with a decision by both; same_decision: with the same one, about the same person
    named_by_both, named_by_champion_only, named_by_challenger_only: with a match; named_differently: two people
    overlap, probability_difference: sums, with the sums of their squares; probabilities: how many of the latter
    labels: settled labels of query faces that both have judged; broken_labels: right by the champion alone;
        mended_labels: right by the challenger alone
    vectors, not_ready, failed, dropped: query faces that were not compared, by reason
    """

    __tablename__ = "shadow_totals"
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True)
    task: Mapped[str] = mapped_column(String(64), primary_key=True)
    champion: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), primary_key=True)
    challenger: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), primary_key=True)
    compared: Mapped[int] = mapped_column(BigInteger, default=0)
    same_first: Mapped[int] = mapped_column(BigInteger, default=0)
    decided: Mapped[int] = mapped_column(BigInteger, default=0)
    same_decision: Mapped[int] = mapped_column(BigInteger, default=0)
    named_by_both: Mapped[int] = mapped_column(BigInteger, default=0)
    named_differently: Mapped[int] = mapped_column(BigInteger, default=0)
    named_by_champion_only: Mapped[int] = mapped_column(BigInteger, default=0)
    named_by_challenger_only: Mapped[int] = mapped_column(BigInteger, default=0)
    overlap: Mapped[float] = mapped_column(default=0.0)
    overlap_squares: Mapped[float] = mapped_column(default=0.0)
    probabilities: Mapped[int] = mapped_column(BigInteger, default=0)
    probability_difference: Mapped[float] = mapped_column(default=0.0)
    probability_difference_squares: Mapped[float] = mapped_column(default=0.0)
    labels: Mapped[int] = mapped_column(BigInteger, default=0)
    broken_labels: Mapped[int] = mapped_column(BigInteger, default=0)
    mended_labels: Mapped[int] = mapped_column(BigInteger, default=0)
    vectors: Mapped[int] = mapped_column(BigInteger, default=0)
    not_ready: Mapped[int] = mapped_column(BigInteger, default=0)
    failed: Mapped[int] = mapped_column(BigInteger, default=0)
    dropped: Mapped[int] = mapped_column(BigInteger, default=0)
    since: Mapped[float] = mapped_column(default=now)
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


class Training(Base):
    """A training: its request, learning curve, report and candidate model.

    snapshot: the data that it learns from: {"changes": {collection: number}, "collections_created_at": {collection:
        seconds}, "read_at": seconds, "last_labels": {task: pk}}; written once, so that a training that is started
        again learns from the same. Earlier versions list the pks of all labels: "labels": {task: [pk]}
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


class TrainingPolicy(Base):
    """When a deployment is trained again without being asked: see `app.learning.training_policy`.

    version: the ETag; every change raises it
    trigger: on_demand, schedule or labels; hours: between two trainings; at: time of day in UTC, HH:MM
    labels: how many further settled pairs start a training
    max_trainings, max_seconds: budget of a day, None meaning no limit; publish: never, or if_better
    request: fields of the training request other than the collection
    last_*: of the last training that the policy started: its id, when, and the settled pairs and change then
    problem: why the last one could not be started; since: when the trigger was set
    """

    __tablename__ = "training_policies"
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True)
    task: Mapped[str] = mapped_column(String(64), primary_key=True)
    version: Mapped[int] = mapped_column(default=1)
    trigger: Mapped[str] = mapped_column(String(16), default="on_demand")
    hours: Mapped[float] = mapped_column(default=24.0)
    at: Mapped[str | None] = mapped_column(String(5))
    labels: Mapped[int] = mapped_column(default=100)
    max_trainings: Mapped[int | None]
    max_seconds: Mapped[float | None]
    publish: Mapped[str] = mapped_column(String(16), default="never")
    request: Mapped[dict[str, Any]] = mapped_column(default=dict)
    last_training: Mapped[str | None] = mapped_column(String(64))
    last_at: Mapped[float | None]
    last_labels: Mapped[int] = mapped_column(default=0)
    last_change: Mapped[int | None] = mapped_column(BigInteger)
    problem: Mapped[str | None] = mapped_column(String(1024))
    since: Mapped[float] = mapped_column(default=now)
    updated_at: Mapped[float] = mapped_column(default=now, onupdate=now)


class Evaluation(Base):
    """The measurement of a model or a method by a protocol."""

    __tablename__ = "evaluations"
    id: Mapped[str] = mapped_column(String(64), primary_key=True, default=new_id)
    request: Mapped[dict[str, Any]]
    job_id: Mapped[str | None] = mapped_column(String(64))
    report: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[float] = mapped_column(default=now)


class Atlas(Base):
    """A map of the faces of a deployment. The newest finished one is shown.

    version: of the deployment when it was drawn; compensation: the version of the source compensation of its rows
    projection: what places new faces exactly (a finished pca); empty for tsne, which uses the faces on the map
    measurements: how far the map can be believed; fitted_faces: the faces in the gallery when it was fitted
    change: the collection's last change that it shows; finished_at: None while it is being drawn
    """

    __tablename__ = "atlases"
    __table_args__ = (Index("atlases_of_a_deployment", "collection_id", "task"), {"sqlite_autoincrement": True})
    pk: Mapped[int] = mapped_column(BigId, primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"))
    task: Mapped[str] = mapped_column(String(64))
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"))
    version: Mapped[int]
    compensation: Mapped[int] = mapped_column(default=0)
    method: Mapped[str] = mapped_column(String(16))
    seed: Mapped[int] = mapped_column(BigInteger, default=0)
    projection: Mapped[bytes] = mapped_column(LargeBinary, default=b"")
    measurements: Mapped[dict[str, Any]] = mapped_column(default=dict)
    fitted_faces: Mapped[int]
    change: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(default=now)
    finished_at: Mapped[float | None]


class FaceCoordinates(Base):
    """Where a face lies on an atlas. display_rank: a mixture of the faces; the first n of it are shown as points"""

    __tablename__ = "face_coordinates"
    __table_args__ = (Index("face_coordinates_in_display_order", "atlas_pk", "display_rank"),)
    atlas_pk: Mapped[int] = mapped_column(
        BigId, ForeignKey("atlases.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    face_pk: Mapped[int] = mapped_column(
        BigId, ForeignKey("faces.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False, index=True
    )
    x: Mapped[float]
    y: Mapped[float]
    display_rank: Mapped[int] = mapped_column(BigInteger)

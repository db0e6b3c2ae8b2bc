"""The kinds of jobs. A message holds ids, never rows: the worker reads the current rows."""

from typing import ClassVar, Literal

from pydantic import BaseModel

QueueName = Literal["default", "training"]

POLICY = "policy"
"""Who asks for what a training policy starts."""


class Message(BaseModel, frozen=True, extra="forbid"):
    """The parameters of a job.

    bound_to: collection -> when it was created, of those that the job works for; see `jobs.is_bound`. `enqueue` sets it
    """

    kind: ClassVar[str]
    queue: ClassVar[QueueName] = "default"
    bound_to: dict[str, float] = {}

    @property
    def collections(self) -> tuple[str, ...]:
        """The collections named here that the job works for."""
        named = getattr(self, "collection", None)
        return () if named is None else (named,)

    @property
    def lock(self) -> str | None:
        """Jobs with the same lock run one after the other, in the order of their creation."""
        return None

    @property
    def report_number(self) -> int | None:
        """The number of a report, by which the last one of a collection is found."""
        return None


class ImportArchive(Message):
    """List an archive's photos, have them ingested, and wait until the serving index holds them."""

    kind: ClassVar[str] = "import"
    collection: str
    path: str  # of the archive or folder, on a disk that API and workers share
    role: Literal["gallery", "distractor"] = "gallery"
    aligned: bool = False
    source: str | None = None
    remove_after: bool = True


class IngestBatch(Message):
    """Enrol the items first..last-1 of an import."""

    kind: ClassVar[str] = "ingest"
    job: str
    first: int
    last: int


class ImportEmbeddings(Message):
    """Enrol the vectors of a file, and wait until the serving index holds them.

    path: of the .npy file, on a disk that API and workers share; table: of the table beside it, or None
    """

    kind: ClassVar[str] = "import-embeddings"
    collection: str
    path: str
    table: str | None = None

    @property
    def lock(self) -> str | None:
        return f"import-embeddings:{self.collection}"


class FitFirst(Message):
    """Fit a WPCA on the first faces of a collection and publish it: the collection's first learned model.

    It takes seconds and makes each further face cheaper, so it does not wait in the training queue.
    """

    kind: ClassVar[str] = "fit-first"
    collection: str

    @property
    def lock(self) -> str | None:
        return f"fit-first:{self.collection}"


class Train(Message):
    """Fit, calibrate and measure a candidate model. requested_by: POLICY, or empty if a caller asked for it"""

    kind: ClassVar[str] = "train"
    queue: ClassVar[QueueName] = "training"
    training: str
    collection: str
    requested_by: str = ""

    @property
    def lock(self) -> str | None:
        return f"train:{self.collection}"


class Publish(Message):
    """Run the gate, re-embed beside the live index, and move the pointers of these tasks.

    version: of the first task's deployment, from If-Match
    rolled_back: the champion of all these tasks that a roll back replaces by the previous model; None: no roll back
    """

    kind: ClassVar[str] = "publish"
    collection: str
    tasks: tuple[str, ...]
    model: str
    override: bool = False
    reason: str = ""
    by: str = ""
    version: int | None = None
    rolled_back: str | None = None
    pointer: Literal["champion", "challenger"] = "champion"

    @property
    def lock(self) -> str | None:
        return f"publish:{self.collection}"


class Evaluate(Message):
    """Measure a model on a protocol."""

    kind: ClassVar[str] = "evaluate"
    queue: ClassVar[QueueName] = "training"
    evaluation: str


class Compare(Message):
    """Measure two models side by side on a collection."""

    kind: ClassVar[str] = "compare"
    queue: ClassVar[QueueName] = "training"
    collection: str
    task: str
    models: tuple[str, str]


class DiscoverPeople(Message):
    """Group the faces of a collection that have no name into clusters of one person."""

    kind: ClassVar[str] = "discover-people"
    queue: ClassVar[QueueName] = "training"
    collection: str
    min_probability: float

    @property
    def lock(self) -> str | None:
        return f"discover-people:{self.collection}"


class ReportMessage(Message):
    """Measure a collection, and change nothing.

    number: the last report of a collection is the one with the highest; `reports.enqueue_report` sets it
    """

    queue: ClassVar[QueueName] = "training"
    collection: str
    number: int = 0

    @property
    def report_number(self) -> int:
        return self.number


class ExamineGallery(ReportMessage):
    """Look for faces and people of a collection that make it worse."""

    kind: ClassVar[str] = "examine"


class DrawAtlas(Message):
    """Draw the map of a deployment's faces, or bring it up to date."""

    kind: ClassVar[str] = "draw-atlas"
    queue: ClassVar[QueueName] = "training"
    collection: str
    task: str
    method: Literal["pca", "tsne"]
    seed: int = 0
    only_update: bool = False  # keep the map, and place new faces on it, as long as it suits model and gallery

    @property
    def lock(self) -> str | None:
        return f"draw-atlas:{self.collection}:{self.task}"


class ForecastGrowth(ReportMessage):
    """Predict how many strangers a collection names, and how many people it finds, as it grows."""

    kind: ClassVar[str] = "forecast"
    fpir: float | None = None


class Erase(Message):
    """Delete the files of a collection, subject or face whose rows were deleted, and complete the receipt.

    erasure: the id of the row that says what is erased; empty: only the files of these images are
    """

    kind: ClassVar[str] = "erase"
    collection: str
    whole: bool = False
    images: tuple[str, ...] = ()
    erasure: str = ""

    @property
    def collections(self) -> tuple[str, ...]:
        return ()  # it works on what is deleted already


class TakeSnapshot(Message):
    """Write a snapshot into the home. collection: the only one to copy; None: the whole service"""

    kind: ClassVar[str] = "snapshot"
    snapshot: str
    collection: str | None = None

    @property
    def lock(self) -> str | None:
        return "snapshot"


class RestoreSnapshot(Message):
    """Restore a collection of a snapshot in the home under a free name.

    source: its id in the snapshot; collection: its id from now on; new_face_ids: whether its faces get other ids
    """

    kind: ClassVar[str] = "restore"
    snapshot: str
    source: str
    collection: str
    new_face_ids: bool = True

    @property
    def collections(self) -> tuple[str, ...]:
        return ()  # it makes the collection

    @property
    def lock(self) -> str | None:
        return f"restore:{self.collection}"


class Sweep(Message):
    """Delete orphaned files older than an hour, dead followers, embeddings of unreferenced models, and old answers.

    Faces whose damaged crops can be read again are used again.
    """

    kind: ClassVar[str] = "sweep"


MESSAGES: dict[str, type[Message]] = {
    m.kind: m
    for m in (
        ImportArchive, IngestBatch, ImportEmbeddings, FitFirst, Train, Publish, Evaluate, Compare,
        DiscoverPeople, ExamineGallery, DrawAtlas, ForecastGrowth, Erase, TakeSnapshot, RestoreSnapshot, Sweep,
    )
}  # fmt: skip

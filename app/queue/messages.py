"""The kinds of jobs. A message holds ids, never rows: the worker reads the current rows."""

from typing import ClassVar, Literal

from pydantic import BaseModel

QueueName = Literal["default", "training"]


class Message(BaseModel, frozen=True, extra="forbid"):
    """The parameters of a job."""

    kind: ClassVar[str]
    queue: ClassVar[QueueName] = "default"

    @property
    def lock(self) -> str | None:
        """Jobs with the same lock run one after the other, in the order of their creation."""
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
    """Fit, calibrate and measure a candidate model."""

    kind: ClassVar[str] = "train"
    queue: ClassVar[QueueName] = "training"
    training: str
    collection: str

    @property
    def lock(self) -> str | None:
        return f"train:{self.collection}"


class Publish(Message):
    """Run the gate, re-embed beside the live index, and move the pointers of these tasks."""

    kind: ClassVar[str] = "publish"
    collection: str
    tasks: tuple[str, ...]
    model: str
    override: bool = False
    reason: str = ""
    by: str = ""
    version: int | None = None  # of the first task's deployment, from If-Match
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


class ExamineGallery(Message):
    """Look for faces and people of a collection that make it worse."""

    kind: ClassVar[str] = "examine"
    queue: ClassVar[QueueName] = "training"
    collection: str


class Erase(Message):
    """Delete the files of a collection, subject or face whose rows were deleted."""

    kind: ClassVar[str] = "erase"
    collection: str
    whole: bool = False
    images: tuple[str, ...] = ()


class Sweep(Message):
    """Delete orphaned files older than an hour, dead followers, embeddings of unreferenced models, and old answers."""

    kind: ClassVar[str] = "sweep"


MESSAGES: dict[str, type[Message]] = {
    m.kind: m
    for m in (
        ImportArchive, IngestBatch, FitFirst, Train, Publish, Evaluate, Compare, DiscoverPeople,
        ExamineGallery, Erase, Sweep,
    )
}  # fmt: skip

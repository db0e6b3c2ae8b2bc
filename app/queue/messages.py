"""The jobs that there are. A message holds ids, never rows: the worker reads the truth afresh."""

from typing import ClassVar, Literal

from pydantic import BaseModel

Lane = Literal["work", "train"]


class Message(BaseModel, frozen=True, extra="forbid"):
    """A small frozen object that names a job to do."""

    kind: ClassVar[str]
    lane: ClassVar[Lane] = "work"

    @property
    def lock(self) -> str | None:
        """Jobs of one lock are done one after the other."""
        return None


class ImportArchive(Message):
    """List an archive's photos, have them ingested, and wait until the serving index holds them."""

    kind: ClassVar[str] = "import"
    collection: str
    path: str  # of the archive or folder, on a disk that API and workers share
    role: Literal["gallery", "distractor"] = "gallery"
    aligned: bool = False
    remove_after: bool = True


class IngestBatch(Message):
    """Enrol the items first..last-1 of an import."""

    kind: ClassVar[str] = "ingest"
    job: str
    first: int
    last: int


class FitFirst(Message):
    """Fit a WPCA on the first faces of a collection and publish it: the first model that was learned.

    Seconds of work, after which each further face costs less: not left to the trainer, which yields to all others.
    """

    kind: ClassVar[str] = "fit-first"
    collection: str

    @property
    def lock(self) -> str | None:
        return f"fit-first:{self.collection}"


class Train(Message):
    """Fit, calibrate and measure a candidate."""

    kind: ClassVar[str] = "train"
    lane: ClassVar[Lane] = "train"
    training: str
    collection: str

    @property
    def lock(self) -> str | None:
        return f"train:{self.collection}"


class Publish(Message):
    """Judge, re-embed beside the live index, and move the pointers of these tasks."""

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
    lane: ClassVar[Lane] = "train"
    evaluation: str


class Compare(Message):
    """Measure two models side by side on a collection."""

    kind: ClassVar[str] = "compare"
    lane: ClassVar[Lane] = "train"
    collection: str
    task: str
    models: tuple[str, str]


class Erase(Message):
    """Remove the files of a collection, subject or face whose rows are gone."""

    kind: ClassVar[str] = "erase"
    collection: str
    whole: bool = False
    images: tuple[str, ...] = ()


class Sweep(Message):
    """Tidy: orphaned files older than an hour, dead followers, embeddings of unreferenced generations, old answers."""

    kind: ClassVar[str] = "sweep"


MESSAGES: dict[str, type[Message]] = {
    m.kind: m for m in (ImportArchive, IngestBatch, FitFirst, Train, Publish, Evaluate, Compare, Erase, Sweep)
}

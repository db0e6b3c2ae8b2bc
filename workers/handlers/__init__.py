"""The handlers of all kinds of jobs."""

from collections.abc import Callable
from typing import Any

from app.queue.messages import (
    Compare,
    DiscoverPeople,
    Erase,
    Evaluate,
    ExamineGallery,
    FitFirst,
    ImportArchive,
    IngestBatch,
    Message,
    Publish,
    Sweep,
    Train,
)
from workers.context import JobContext
from workers.handlers.compare import compare_models
from workers.handlers.discover_people import discover_people_in_collection
from workers.handlers.erase import erase_files
from workers.handlers.evaluate import run_evaluation
from workers.handlers.examine import examine_gallery
from workers.handlers.fit_first import fit_first_model
from workers.handlers.importing import import_archive
from workers.handlers.ingest import ingest_batch
from workers.handlers.publish import publish_model
from workers.handlers.sweep import sweep_all
from workers.handlers.train import train_model

Handler = Callable[[Any, JobContext], dict[str, Any] | None]
"""handler(message, context) returns the job's result. A job may run twice: a second run must change nothing more."""

HANDLERS: dict[type[Message], Handler] = {
    ImportArchive: import_archive,
    IngestBatch: ingest_batch,
    FitFirst: fit_first_model,
    Train: train_model,
    Publish: publish_model,
    Evaluate: run_evaluation,
    Compare: compare_models,
    DiscoverPeople: discover_people_in_collection,
    ExamineGallery: examine_gallery,
    Erase: erase_files,
    Sweep: sweep_all,
}

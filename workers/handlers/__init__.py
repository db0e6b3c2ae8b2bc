"""The handlers of all kinds of jobs."""

from collections.abc import Callable
from typing import Any

from app.queue.messages import (
    Compare,
    DiscoverPeople,
    DrawAtlas,
    Erase,
    Evaluate,
    ExamineGallery,
    FitFirst,
    ForecastGrowth,
    ImportArchive,
    ImportEmbeddings,
    IngestBatch,
    Message,
    Publish,
    RestoreSnapshot,
    Sweep,
    TakeSnapshot,
    Train,
)
from workers.context import JobContext
from workers.damaged_faces import leave_out_damaged_faces
from workers.handlers.compare import compare_models
from workers.handlers.discover_people import discover_people_in_collection
from workers.handlers.draw_atlas import draw_deployment_atlas
from workers.handlers.embedding_import import import_embeddings
from workers.handlers.erase import erase_files
from workers.handlers.evaluate import run_evaluation
from workers.handlers.examine import examine_gallery
from workers.handlers.fit_first import fit_first_model
from workers.handlers.forecast import forecast_growth
from workers.handlers.importing import import_archive
from workers.handlers.ingest import ingest_batch
from workers.handlers.publish import publish_model
from workers.handlers.snapshot import restore_snapshot, take_snapshot
from workers.handlers.sweep import sweep_all
from workers.handlers.train import train_model

Handler = Callable[[Any, JobContext], dict[str, Any] | None]
"""handler(message, context) returns the job's result. A job may run twice: a second run must change nothing more."""

HANDLERS: dict[type[Message], Handler] = {
    ImportArchive: import_archive,
    IngestBatch: ingest_batch,
    ImportEmbeddings: import_embeddings,
    FitFirst: leave_out_damaged_faces(fit_first_model),
    Train: leave_out_damaged_faces(train_model),
    Publish: leave_out_damaged_faces(publish_model),
    Evaluate: leave_out_damaged_faces(run_evaluation),
    Compare: leave_out_damaged_faces(compare_models),
    DiscoverPeople: discover_people_in_collection,
    ExamineGallery: examine_gallery,
    DrawAtlas: draw_deployment_atlas,
    ForecastGrowth: forecast_growth,
    Erase: erase_files,
    TakeSnapshot: take_snapshot,
    RestoreSnapshot: restore_snapshot,
    Sweep: sweep_all,
}

"""The table of contents of all that is done in the background."""

from collections.abc import Callable
from typing import Any

from app.queue.messages import (
    Compare,
    Erase,
    Evaluate,
    FitFirst,
    ImportArchive,
    IngestBatch,
    Message,
    Publish,
    Sweep,
    Train,
)
from workers.context import JobContext
from workers.handlers.compare import run as run_compare
from workers.handlers.erase import run as run_erase
from workers.handlers.evaluate import run as run_evaluate
from workers.handlers.fit_first import run as run_fit_first
from workers.handlers.importing import run as run_importing
from workers.handlers.ingest import run as run_ingest
from workers.handlers.publish import run as run_publish
from workers.handlers.sweep import run as run_sweep
from workers.handlers.train import run as run_train

Handler = Callable[[Any, JobContext], dict[str, Any] | None]
"""handler(message, context) -> the job's result. It may be run twice, and must then change nothing more."""

HANDLERS: dict[type[Message], Handler] = {
    ImportArchive: run_importing,
    IngestBatch: run_ingest,
    FitFirst: run_fit_first,
    Train: run_train,
    Publish: run_publish,
    Evaluate: run_evaluate,
    Compare: run_compare,
    Erase: run_erase,
    Sweep: run_sweep,
}

"""Remove the files of models that an earlier run of the job has saved without their row."""

import shutil
from contextlib import suppress

from app.db.session import writing
from app.db.tables import ModelRecord
from app.storage.model_cache import HOLDOUT_SUFFIX
from workers.context import JobContext


def remove_unfinished_models(context: JobContext, name: str) -> None:
    """Remove the folders of a model and of its holdout model, unless the model has a row: a new run would keep them.

    The job is locked meanwhile: else a worker that has lost it could remove what its successor saves.
    Raises Interrupted, OSError.
    """
    resources = context.resources
    with writing(resources.database) as session:
        context.lock_job(session)
        if session.get(ModelRecord, name) is None:
            for folder in (name, name + HOLDOUT_SUFFIX):
                with suppress(FileNotFoundError):
                    shutil.rmtree(resources.models.folder / folder)

"""Remove what processes that were killed have left of models that they were saving."""

import re
import shutil
import time
from contextlib import suppress

from app.resources import Resources
from workers.cleanup.steps import ORPHAN_SECONDS

STAGED = re.compile(r"\.[0-9a-f]{32}")
"""The name of a folder that `ml.model.save_model` has not moved to its place."""


def remove_staged_models(resources: Resources) -> int:
    """Remove the staged folders that have not changed for an hour, and return their number."""
    latest, removed = time.time() - ORPHAN_SECONDS, 0
    for path in resources.models.folder.iterdir():
        with suppress(FileNotFoundError):  # it was complete meanwhile, or another sweep has removed it
            if STAGED.fullmatch(path.name) and path.stat().st_mtime < latest:
                shutil.rmtree(path)
                removed += 1
    return removed

"""Read the labels of a deployment again when they have changed, but not all the time."""

import time
from dataclasses import replace

from sqlalchemy.orm import Session

from app.serving.deployment_rows import DeploymentRow
from app.serving.deployments import DeploymentKey
from app.serving.labels.constraints import ServedConstraints
from app.serving.labels.reader import LabelReader


class LabelUpdates:
    """Updates the constraints of all deployments. Only the follower's thread calls it.

    The next reading waits as long as the last one took, so that frequent labels leave half of the time for searches.
    """

    def __init__(self) -> None:
        self._readers: dict[DeploymentKey, LabelReader] = {}
        self._due_at: dict[DeploymentKey, float] = {}  # when labels may be read again, by the monotonic clock

    def update(self, session: Session, constraints: ServedConstraints, row: DeploymentRow) -> ServedConstraints:
        """Return the constraints at the collection's last change, or those given if it is too soon to read labels."""
        if row.label_change <= constraints.change:
            return replace(constraints, change=row.change)
        if time.monotonic() < self._due_at.get(row.key, 0.0):
            return constraints
        started = time.monotonic()
        reader = self._readers.setdefault(row.key, LabelReader(*row.key))
        read = reader.read_all if row.label_reread_change > constraints.change else reader.read_new
        constraints = read(session, row.change)
        self._due_at[row.key] = 2 * time.monotonic() - started
        return constraints

    def forget(self, key: DeploymentKey) -> None:
        """Drop what has been read of a deployment that is no longer served."""
        self._readers.pop(key, None)
        self._due_at.pop(key, None)

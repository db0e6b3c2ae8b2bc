"""Read the source compensation of a deployment, and correct embeddings by it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.field_types import GUESS
from app.db.tables import StoredCompensation
from ml.compensation import NO_SOURCE, SourceCompensation
from ml.files import hash_bytes
from ml.types import Rows


@dataclass(frozen=True, eq=False)
class Compensation:
    """One version of the source compensation of a model in a deployment. version 0: nothing is corrected

    sha256: of its row, which tells it from another of this version, in a database that was set back; empty if there is
        none
    """

    version: int = 0
    corrections: SourceCompensation | None = None
    sha256: str = ""

    @property
    def has_corrections(self) -> bool:
        """Whether any source is corrected."""
        return bool(self.corrections and self.corrections.corrections)

    def is_another_of_this_version(self, other: Self) -> bool:
        """Whether the version is the same, and the corrections are not."""
        return self.version == other.version and self.sha256 != other.sha256

    def corrects(self, *sources: str | None) -> bool:
        """Whether the embeddings of one of these sources are corrected, or may be if the source is guessed."""
        if self.corrections is None:
            return False
        may_guess, corrected = bool(self.corrections.discriminants), self.corrections.corrections
        return any((source or NO_SOURCE) in corrected or (source == GUESS and may_guess) for source in sources)

    def correct(self, rows: Rows, sources: Sequence[str | None]) -> Rows:
        """Correct (n, dim) embeddings of faces with these n sources; the source GUESS is guessed."""
        if self.corrections is None or not self.corrects(*set(sources)):
            return rows
        names = np.array([source or NO_SOURCE for source in sources], np.object_)
        if GUESS not in self.corrections.corrections:
            guessed = np.flatnonzero(names == GUESS)
            names[guessed] = self.corrections.guess(rows[guessed])
        return self.corrections.apply(rows, names.astype(np.str_))


NO_COMPENSATION = Compensation()


def read_compensation(session: Session, collection: str, task: str, model_id: str) -> Compensation:
    """Return the current compensation of a model in a deployment. Raises ml.Corrupt."""
    stored = session.get(StoredCompensation, (collection, task, model_id), populate_existing=True)
    if stored is None or not stored.version:
        return NO_COMPENSATION
    corrections = SourceCompensation.from_bytes(stored.data) if stored.data else None
    return Compensation(stored.version, corrections, hash_bytes(stored.data))


def read_versions(session: Session) -> dict[tuple[str, str], dict[str, int]]:
    """Return (collection, task) -> model id -> the version of its compensation, of those that have one."""
    table, versions = StoredCompensation, dict[tuple[str, str], dict[str, int]]()
    rows = session.execute(select(table.collection_id, table.task, table.model_id, table.version))
    for collection, task, model_id, version in rows:
        if version:
            versions.setdefault((collection, task), {})[model_id] = version
    return versions

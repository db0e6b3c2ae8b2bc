"""Whom a photo is enrolled for: the collection and the person that there were when its request began.

A photo is analysed for up to seconds. A person, or a collection, that is erased meanwhile is not to be written again.
"""

from dataclasses import dataclass
from typing import Self

from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.errors import Conflict
from app.galleries.subjects import find_subject


@dataclass(frozen=True)
class EnrolmentTarget:
    """created_at: of the collection; subject_pk: None if nobody had this id, or none was given"""

    collection: str
    created_at: float
    subject: str | None
    subject_pk: int | None

    @classmethod
    def read(cls, session: Session, collection: str, subject: str | None) -> Self:
        """Raises NotFound if there is no such collection."""
        created_at = get_collection(session, collection).created_at
        return cls(collection, created_at, subject, _find_subject(session, collection, subject))

    def check(self, session: Session) -> None:
        """Raises NotFound if the collection is gone, Conflict if it or the subject is another by now."""
        if get_collection(session, self.collection).created_at != self.created_at:
            raise Conflict(f"the collection {self.collection!r} was deleted while the photo was being enrolled")
        is_known = self.subject_pk is not None
        if is_known and _find_subject(session, self.collection, self.subject) != self.subject_pk:
            raise Conflict(
                f"the subject {self.subject!r} was deleted or merged while the photo was being enrolled; send it "
                "again if it is still to be enrolled"
            )


def _find_subject(session: Session, collection: str, subject: str | None) -> int | None:
    row = None if subject is None else find_subject(session, collection, subject)
    return None if row is None else row.pk

"""What a process has committed itself is never answered from before it."""

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.db.written_changes import find_written_change, note_raised
from app.resources import Resources


def test_a_commit_that_is_noted_late_hides_no_later_one(resources: Resources) -> None:
    """Two threads commit one after the other, and note it in the other order."""
    created_at = 1.0
    with Session(resources.database) as first, Session(resources.database) as second:
        for session, change in ((first, 5), (second, 6)):
            session.execute(text("select 1"))
            note_raised(session, "staff", created_at, change)
        second.commit()
        first.commit()
    assert find_written_change(resources.database, "staff", created_at) == 6

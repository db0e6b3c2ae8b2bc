"""Searches that are answered from memory, on the event loop, and what sends them to a thread after all."""

from sqlalchemy.orm import Session


class DatabaseNeeded(Exception):
    """A search without a session needs the database, or would have to wait: it begins anew in a thread."""


def require_session(session: Session | None) -> Session:
    """Return the session. Raises DatabaseNeeded if there is none."""
    if session is None:
        raise DatabaseNeeded
    return session

"""Keys: made, shown once, kept hashed, found again by their hash."""

import hashlib
import secrets

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Key, now
from app.deps.caller import Caller, Role
from app.errors import NotFound


def digest(secret: str) -> str:
    """SHA-256 is enough: the secret has 256 random bits, so there is nothing to guess."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create(session: Session, role: Role, name: str = "", collections: tuple[str, ...] = ()) -> tuple[Key, str]:
    """The row and the secret, which is not kept."""
    secret = f"lk_{secrets.token_urlsafe(32)}"
    key = Key(role=role, name=name, collections=list(collections), digest=digest(secret))
    session.add(key)
    session.flush()
    return key, secret


def holder_or_none(session: Session, secret: str) -> Caller | None:
    """The lookup is by hash, so no comparison of the secret itself takes a telling time."""
    key = session.scalar(select(Key).where(Key.digest == digest(secret), Key.revoked_at.is_(None)))
    if key is None:
        return None
    return Caller(key.id, key.role, key.name, tuple(key.collections))  # type: ignore[arg-type]


def revoke(session: Session, key_id: str) -> None:
    key = session.get(Key, key_id)
    if key is None:
        raise NotFound(f"no key {key_id}")
    key.revoked_at = key.revoked_at or now()

"""Create, look up and revoke keys. Only the hash of a key is stored."""

import secrets

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Key, now
from app.deps.caller import Caller, Role
from app.errors import NotFound
from ml.files import hash_bytes


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret, in hex. A slow hash is not needed: the secret has 256 random bits."""
    return hash_bytes(secret.encode())


def create_key(session: Session, role: Role, name: str = "", collections: tuple[str, ...] = ()) -> tuple[Key, str]:
    """Store a new key. Returns its row, and the secret, which is not stored. collections: empty means all."""
    secret = f"lk_{secrets.token_urlsafe(32)}"
    key = Key(role=role, name=name, collections=list(collections), digest=hash_secret(secret))
    session.add(key)
    session.flush()
    return key, secret


def find_caller(session: Session, secret: str) -> Caller | None:
    """Return the holder of a key, or None if the key is unknown or revoked.

    The lookup is by hash, so its timing reveals nothing about the secret.
    """
    key = session.scalar(select(Key).where(Key.digest == hash_secret(secret), Key.revoked_at.is_(None)))
    if key is None:
        return None
    return Caller(key.id, key.role, key.name, tuple(key.collections))  # type: ignore[arg-type]


def revoke_key(session: Session, key_id: str) -> None:
    """Revoke a key; revoking it again changes nothing. Raises NotFound."""
    key = session.get(Key, key_id)
    if key is None:
        raise NotFound(f"no key {key_id}")
    key.revoked_at = key.revoked_at or now()

"""Create, look up, rotate and revoke keys. Only the hash of a secret is stored."""

import secrets
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.lookups import get_row
from app.db.tables import Key, now
from app.deps.caller import Caller, Role
from app.deps.key_secrets import check_still_opened, find_opened_keys, is_working
from app.errors import Conflict, Forbidden, Invalid
from app.storage.audit_log.notes import note_audited
from ml.files import hash_bytes

MAX_NAME_CHARACTERS = 255


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret, in hex. A slow hash is not needed: the secret has 256 random bits."""
    return hash_bytes(secret.encode())


def make_secret() -> str:
    return f"lk_{secrets.token_urlsafe(32)}"


def create_key(
    session: Session,
    role: Role,
    name: str = "",
    collections: tuple[str, ...] = (),
    expires_at: float | None = None,
) -> tuple[Key, str]:
    """Store a new key. Returns its row, and the secret, which is not stored.

    collections: empty means all; expires_at: None means never
    Raises Invalid if its name is too long, or it would have expired already.
    """
    if len(name) > MAX_NAME_CHARACTERS:
        raise Invalid(f"name: it has {len(name):,} characters; at most {MAX_NAME_CHARACTERS} are allowed")
    if expires_at is not None and expires_at <= now():
        raise Invalid("expires_at: it has passed; it is in seconds since 1970")
    secret = make_secret()
    key = Key(
        role=role, name=name, collections=list(collections), digest=hash_secret(secret), expires_at=expires_at
    )  # fmt: skip
    session.add(key)
    session.flush()
    note_audited(session, collections, f"key:{key.id}")
    return key, secret


def rotate_key(session: Session, key_id: str, overlap_seconds: float, caller: Caller | None = None) -> tuple[Key, str]:
    """Give a key another secret. The current secret is accepted for the overlap; an earlier one no longer.

    Raises NotFound, Conflict if the key is revoked or has expired, Forbidden if the key lasts longer than the caller's,
    Unauthenticated if the caller's secret has ended meanwhile.
    """
    key = _lock_key(session, key_id, caller)
    note_audited(session, key.collections)
    if caller is not None:
        check_grant(caller, key.collections, key.expires_at)
    if not is_working(key, now()):
        raise Conflict(f"key {key_id} is revoked or has expired; make another one")
    secret = make_secret()
    key.previous_digest, key.previous_until = key.digest, now() + overlap_seconds
    key.digest = hash_secret(secret)
    session.flush()
    return key, secret


def _lock_key(session: Session, key_id: str, caller: Caller | None) -> Key:
    """Return the newest row of a key, locked. Raises NotFound, or Unauthenticated if the caller's secret has ended.

    The caller may wait for a rotation or revocation of its own key, after which it may change nothing.
    """
    key: Key = get_row(session, "key", key_id)
    session.refresh(key, with_for_update=True)
    if caller is not None and caller.key_id == key_id:
        check_still_opened(session, caller)
    return key


def find_caller(session: Session, secret: str) -> Caller | None:
    """Return the holder of a key, or None if the secret is unknown, or the key was revoked or has expired."""
    digest = hash_secret(secret)
    opened = find_opened_keys(session, [digest], now()).get(digest)
    if opened is None:
        return None
    key, valid_until = opened
    return Caller(key.id, key.role, key.name, tuple(key.collections), valid_until, digest)  # type: ignore[arg-type]


def check_grant(caller: Caller, collections: Sequence[str], expires_at: float | None) -> None:
    """Check that a key that the caller makes or rotates reaches no further, and lasts no longer, than the caller's.

    collections: empty means all
    Raises Forbidden.
    """
    if caller.collections and not (collections and set(collections) <= set(caller.collections)):
        raise Forbidden(f"this key can only make keys that are bound to some of {', '.join(caller.collections)}")
    if caller.has_token:
        return  # a token lasts for minutes, the person's role does not
    if caller.valid_until is not None and (expires_at is None or expires_at > caller.valid_until):
        raise Forbidden(
            f"this key is accepted until {caller.valid_until:.0f}, and can only make or rotate keys that expire by then"
        )


def list_lasting_admins(session: Session) -> list[Key]:
    """List the admins' keys that are bound to no collection and never expire, locked until the transaction ends."""
    admins = select(Key).where(Key.role == "admin", Key.revoked_at.is_(None), Key.expires_at.is_(None))
    return [key for key in session.scalars(admins.order_by(Key.id).with_for_update()) if not key.collections]


def revoke_key(session: Session, key_id: str, caller: Caller | None = None) -> None:
    """Revoke a key with all its secrets; revoking it again changes nothing.

    Raises NotFound, Conflict for the last admin's key that is bound to no collection and never expires, Unauthenticated
    if the caller's secret has ended meanwhile.
    """
    lasting = list_lasting_admins(session)
    key = _lock_key(session, key_id, caller)
    note_audited(session, key.collections)
    if [admin.id for admin in lasting] == [key.id]:
        raise Conflict(
            "this is the last admin's key that is bound to no collection and never expires; make another one, then "
            "revoke it"
        )
    key.revoked_at = key.revoked_at or now()

"""Which secrets open a key now: the current one, and for the overlap of a rotation the one before."""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.db.tables import Key, now
from app.deps.caller import Caller
from app.errors import Unauthenticated


class OpenedKey(NamedTuple):
    """A key, and the time from which the secret that opened it is refused, None if it is not limited."""

    key: Key
    valid_until: float | None


def is_working(key: Key, at: float) -> bool:
    """Whether a key is neither revoked nor expired."""
    return key.revoked_at is None and (key.expires_at is None or at < key.expires_at)


def find_opened_keys(session: Session, digests: Collection[str], at: float) -> dict[str, OpenedKey]:
    """Return hash of a secret -> the key that it opens at this time. Secrets that open none are left out.

    The lookup is by hash, so its timing reveals nothing about the secrets.
    """
    known = select(Key).where(or_(Key.digest.in_(digests), Key.previous_digest.in_(digests)))
    known = known.execution_options(populate_existing=True)  # a key that was read before may have been revoked since
    opened: dict[str, OpenedKey] = {}
    for key in session.scalars(known):
        if is_working(key, at):
            ends = {key.previous_digest: key.previous_until, key.digest: None}
            for digest, end in ends.items():
                valid_until = min((e for e in (key.expires_at, end) if e is not None), default=None)
                if digest is not None and digest in digests and (valid_until is None or at < valid_until):
                    opened[digest] = OpenedKey(key, valid_until)
    return opened


def check_still_opened(session: Session, caller: Caller) -> None:
    """Check, before a request is committed, that its key was not revoked since it was sent: it may have waited.

    Nobody can revoke a token. Raises Unauthenticated.
    """
    if caller.digest and caller.digest not in find_opened_keys(session, [caller.digest], now()):
        raise Unauthenticated("this key was revoked, or has expired, since the request was sent; nothing was stored")

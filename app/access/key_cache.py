"""Remember the holders of keys for a moment, so that not every request reads the database."""

import math
import time
from collections.abc import Callable

from app.db.tables import now
from app.deps.caller import Caller

MAX_CACHED_KEYS = 10_000
MAX_STALE_SECONDS = 3600.0
RENEWAL_SHARE = 0.5
"""Of the time for which a caller is kept: then it is looked up again while requests go on."""


class KeyCache:
    """Callers by the hash of their key, for `seconds`. Safe to use from several threads.

    A caller that was looked up before a revocation is never stored after it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._callers: dict[str, tuple[float, Caller]] = {}

    def find(self, digest: str) -> Caller | None:
        """Return the caller, or None if it must be looked up."""
        looked_up_at, caller = self._callers.get(digest, (float("-inf"), None))
        if caller is None or time.monotonic() - looked_up_at > self.seconds:
            return None
        return caller if caller.valid_until is None or now() < caller.valid_until else None

    def is_ageing(self, digest: str) -> bool:
        """Whether a caller was looked up so long ago that it should be looked up again before it is dropped."""
        looked_up_at, _ = self._callers.get(digest, (-math.inf, None))
        return time.monotonic() - looked_up_at > RENEWAL_SHARE * self.seconds

    def forget(self, digest: str) -> None:
        """Drop a caller."""
        self._callers.pop(digest, None)

    def find_stale(self, digest: str) -> Caller | None:
        """Return the caller as it was last looked up, for a time when nothing can be looked up.

        Nobody can revoke a key then either, unless this process alone cannot: see `DatabaseReach`.
        """
        looked_up_at, caller = self._callers.get(digest, (float("-inf"), None))
        if caller is None or time.monotonic() - looked_up_at > MAX_STALE_SECONDS:
            return None
        return caller if caller.valid_until is None or now() < caller.valid_until else None

    def prepare_entry(self, digest: str) -> Callable[[Caller], None]:
        """Return the function that stores a caller. Call this before the lookup: `clear` makes it store nothing."""
        callers, began = self._callers, time.monotonic()

        def store(caller: Caller) -> None:
            if len(callers) >= MAX_CACHED_KEYS:
                callers.clear()
            callers[digest] = began, caller

        return store

    def clear(self) -> None:
        """Forget every caller, also those that are being looked up."""
        self._callers = {}

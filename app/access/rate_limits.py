"""Limit the requests of a key and of an address, and the wrong keys of an address, per minute.

With Redis, all processes count together; without it, or while it is away or a counter there cannot be read, each counts
for itself.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from prometheus_client import Counter
from starlette.types import Scope

from app.config import Settings
from app.deps.server.connections import group_address
from app.errors import TooManyRequests

KEY_PREFIX = "likeness"
REDIS_TIMEOUT_SECONDS = 0.5
REDIS_RETRY_SECONDS = 5.0
UNREADABLE_ERRORS = (OSError, ValueError, OverflowError)
"""Redis is away, or has a counter that is no number of ours."""
ACCEPTED_SECONDS = 600.0
MAX_ACCEPTED_SECRETS = 10_000
REFUSALS = Counter(
    "likeness_rate_limited", "Requests that this process refused with 429, by limit", ("limit",), registry=None
)
WRONG_KEYS = Counter("likeness_wrong_keys", "Requests to this process with an unknown or revoked key", registry=None)

log = logging.getLogger("likeness.access")

Limit = tuple[int, str, str]
"""How many requests a minute, what is limited, and of whom."""


class RateLimits:
    """The limits of the settings; 0 switches one off. Its methods raise TooManyRequests."""

    def __init__(self, settings: Settings) -> None:
        self.per_key = settings.max_key_requests_per_minute
        self.per_address = settings.max_address_requests_per_minute
        self.wrong_keys = settings.max_wrong_keys_per_minute
        self._counts = _Counts(settings.redis_url)
        self._accepted: dict[str, float] = {}

    async def count_request(self, address: str) -> None:
        """Count a request of an address."""
        if self.per_address:
            await self._count("address", self.per_address, address)

    async def count_use(self, key_id: str) -> None:
        """Count a request with a key."""
        if self.per_key:
            await self._count("key", self.per_key, key_id)

    @property
    def are_off(self) -> bool:
        """Whether neither the requests of a key nor those of an address are limited."""
        return not (self.per_address or self.per_key)

    def has_room(self, address: str, key_id: str) -> bool:
        """Whether a request of this address and key is within the limits, if that is known in this process."""
        return self._counts.has_room(self._list_limits(address, key_id))

    def count_at_once(self, address: str, key_id: str) -> None:
        """Count a request for which `has_room` was true."""
        self._counts.hit_at_once(self._list_limits(address, key_id))

    def _list_limits(self, address: str, key_id: str) -> list[Limit]:
        limits: list[Limit] = [(self.per_address, "address", address), (self.per_key, "key", key_id)]
        return [limit for limit in limits if limit[0]]

    async def check_guesses(self, address: str, digest: str) -> None:
        """Refuse an address that has sent too many wrong keys, unless this secret was accepted a short while ago.

        Clients behind the same address go on, and a guess costs no lookup.
        """
        if not self.wrong_keys or time.monotonic() - self._accepted.get(digest, -math.inf) < ACCEPTED_SECONDS:
            return
        wait = await self._counts.find_wait(self.wrong_keys, "wrong-keys", address)
        if wait is not None:
            raise _make_refusal("wrong-keys", "this address has sent too many wrong keys", wait)

    def note_accepted(self, digest: str) -> None:
        """Remember that a secret was right."""
        if len(self._accepted) >= MAX_ACCEPTED_SECRETS:
            self._accepted.clear()
        self._accepted[digest] = time.monotonic()

    def note_refused(self, digest: str) -> None:
        """Forget that a secret was right."""
        self._accepted.pop(digest, None)

    async def count_wrong_key(self, address: str) -> None:
        """Count and log a wrong key."""
        WRONG_KEYS.inc()
        log.warning("access.wrong_key address=%s", address)
        if self.wrong_keys:
            await self._counts.hit(self.wrong_keys, "wrong-keys", address)

    async def _count(self, limit: str, amount: int, name: str) -> None:
        wait = await self._counts.hit(amount, limit, name)
        if wait is not None:
            raise _make_refusal(limit, f"this {limit} may send {amount:,} requests a minute", wait)


class _RedisCounters(RedisStorage):
    """Counters that anybody who can write to Redis may have changed."""

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Return the last two counts, and when they expire. Raises ValueError if this class has not written them.

        It always has them expire, so others would count for ever. They are removed.
        """
        try:
            window = super().get_sliding_window(key, expiry)
            _, last_seconds, count, seconds = window
            if (count and not seconds) or last_seconds > expiry or seconds > 2 * expiry:
                raise ValueError(f"a counter expires in {max(last_seconds, seconds)} s")
        except ValueError:
            self.clear_sliding_window(key, expiry)
            raise
        return window


class _RedisAnswer(NamedTuple):
    """The seconds to wait, None if there is room."""

    wait_seconds: int | None


class _Counts:
    """Counts per minute, in Redis or in this process.

    While Redis is away, one count every REDIS_RETRY_SECONDS tries it, and no other waits for its answer.
    """

    def __init__(self, redis_url: str) -> None:
        self._memory = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._redis: SlidingWindowCounterRateLimiter | None = None
        self._redis_errors: tuple[type[Exception], ...] = UNREADABLE_ERRORS
        if redis_url:
            from redis import RedisError  # only where Redis is used

            self._redis_errors = (*UNREADABLE_ERRORS, RedisError)
            storage = _RedisCounters(
                redis_url,
                key_prefix=KEY_PREFIX,
                socket_timeout=REDIS_TIMEOUT_SECONDS,
                socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
            )
            self._redis = SlidingWindowCounterRateLimiter(storage)
        self._redis_away_until = -math.inf

    def has_room(self, limits: Sequence[Limit]) -> bool:
        """Whether none of these amounts is reached; False if only Redis knows."""
        if self._uses_redis():
            return False
        return all(self._memory.test(RateLimitItemPerMinute(amount), *name) for amount, *name in limits)

    def hit_at_once(self, limits: Sequence[Limit]) -> None:
        """Count one for each of these limits, in this process."""
        for amount, *name in limits:
            self._memory.hit(RateLimitItemPerMinute(amount), *name)

    async def hit(self, amount: int, *name: str) -> int | None:
        """Count one. Returns the seconds to wait if the amount is reached already, otherwise None."""
        return await self._ask(_hit, amount, *name)

    async def find_wait(self, amount: int, *name: str) -> int | None:
        """Return the seconds to wait if the amount is reached, otherwise None."""
        return await self._ask(_find_wait, amount, *name)

    async def _ask(self, ask: Callable[..., int | None], amount: int, *name: str) -> int | None:
        item = RateLimitItemPerMinute(amount)
        if self._uses_redis():
            is_retry = self._redis_away_until > -math.inf
            if is_retry:
                self._redis_away_until = time.monotonic() + REDIS_RETRY_SECONDS  # for all others
            answer = await asyncio.to_thread(self._ask_redis, is_retry, ask, item, *name)
            if answer is not None:
                return answer.wait_seconds
        return ask(self._memory, item, *name)

    def _ask_redis(
        self, is_retry: bool, ask: Callable[..., int | None], item: RateLimitItemPerMinute, *name: str
    ) -> _RedisAnswer | None:
        """Return None if Redis is away, also if that was noticed while this waited for a thread."""
        if not (is_retry or self._uses_redis()):
            return None
        try:
            answer = _RedisAnswer(ask(self._redis, item, *name))
        except self._redis_errors as error:
            log.warning("access.limits_without_redis error=%s", error)
            self._redis_away_until = time.monotonic() + REDIS_RETRY_SECONDS
            return None
        if is_retry:
            self._redis_away_until = -math.inf
        return answer

    def _uses_redis(self) -> bool:
        return self._redis is not None and time.monotonic() >= self._redis_away_until


def _hit(limiter: SlidingWindowCounterRateLimiter, item: RateLimitItemPerMinute, *name: str) -> int | None:
    if limiter.hit(item, *name):
        return None
    return _find_wait(limiter, item, *name) or 1  # the minute may have ended meanwhile


def _find_wait(limiter: SlidingWindowCounterRateLimiter, item: RateLimitItemPerMinute, *name: str) -> int | None:
    stats = limiter.get_window_stats(item, *name)
    return None if stats.remaining else max(1, math.ceil(stats.reset_time - time.time()))


def _make_refusal(limit: str, reason: str, wait_seconds: int) -> TooManyRequests:
    REFUSALS.labels(limit).inc()
    return TooManyRequests(f"{reason}; try again in {wait_seconds} s", retry_after_seconds=wait_seconds)


def find_address(scope: Scope) -> str:
    """Return what the client is counted by: its IPv4 address or IPv6 network."""
    client = scope.get("client")
    return group_address(str(client[0])) if client else ""

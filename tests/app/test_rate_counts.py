"""What counts against which limit, and for how long one has to wait, on a clock that stands. No server runs."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from app.access import rate_limits
from app.access.rate_limits import REFUSALS, WRONG_KEYS, RateLimits
from app.config import Settings
from app.errors import TooManyRequests

MINUTE = 1_700_000_040.0
"""The begin of a minute."""
OFF = {"max_key_requests_per_minute": 0, "max_address_requests_per_minute": 0, "max_wrong_keys_per_minute": 0}


class Clock:
    """A clock for the limits alone; asyncio has its own."""

    def __init__(self) -> None:
        self.seconds = MINUTE + 15

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    standing = Clock()
    monkeypatch.setattr(time, "time", standing)
    monkeypatch.setattr(rate_limits, "time", SimpleNamespace(time=standing, monotonic=standing))
    return standing


@pytest.fixture(autouse=True)
def _stand(clock: Clock) -> None:
    """No test counts in two minutes by chance."""


def limit(**limits: int) -> RateLimits:
    return RateLimits(Settings(**OFF | limits))  # type: ignore[arg-type]


def run(work: Coroutine[Any, Any, None]) -> str | None:
    """Return None if it is accepted, or the refusal."""
    try:
        asyncio.run(work)
    except TooManyRequests as refused:
        refusal = refused
    else:
        return None
    assert refusal.detail.endswith(f"; try again in {refusal.retry_after_seconds} s")
    return refusal.detail


def read(counter: Any, **labels: str) -> float:
    """Return the value of a counter."""
    samples = [sample for family in counter.collect() for sample in family.samples]
    return sum(s.value for s in samples if s.name.endswith("_total") and labels.items() <= s.labels.items())


def test_a_key_and_an_address_are_counted_apart_and_each_by_its_own_limit() -> None:
    limits = limit(max_key_requests_per_minute=1, max_address_requests_per_minute=2)
    before = [read(REFUSALS, limit=name) for name in ("key", "address")]
    assert run(limits.count_use("x")) is None
    assert [run(limits.count_request("x")) for _ in range(2)] == [None, None]
    assert run(limits.count_use("x")) == "this key may send 1 requests a minute; try again in 45 s"
    assert run(limits.count_request("x")) == "this address may send 2 requests a minute; try again in 45 s"
    assert [run(limits.count_use("y")), run(limits.count_request("y"))] == [None, None]
    assert [read(REFUSALS, limit=name) for name in ("key", "address")] == [count + 1 for count in before]


def test_a_limit_of_zero_is_off() -> None:
    limits = limit()
    assert {run(limits.count_use("x")) for _ in range(5)} == {None}
    assert {run(limits.count_request("x")) for _ in range(5)} == {None}
    for _ in range(5):
        asyncio.run(limits.count_wrong_key("x"))
    assert run(limits.check_guesses("x", "digest")) is None


def test_large_numbers_are_shown_with_commas() -> None:
    limits = limit(max_key_requests_per_minute=1000)

    async def use() -> None:
        for _ in range(1001):
            await limits.count_use("x")

    assert str(run(use())).startswith("this key may send 1,000 requests a minute;")


def test_who_waits_as_long_as_told_is_accepted(clock: Clock) -> None:
    limits = limit(max_key_requests_per_minute=1)
    assert run(limits.count_use("x")) is None
    clock.seconds += 45
    assert "try again in 1 s" in str(run(limits.count_use("x"))), "the minute before counts for its share"
    clock.seconds += 1
    assert run(limits.count_use("x")) is None


def test_an_address_that_guesses_is_refused_before_the_lookup_and_others_are_not() -> None:
    limits = limit(max_wrong_keys_per_minute=2)
    before = read(REFUSALS, limit="wrong-keys")
    for _ in range(2):
        assert run(limits.check_guesses("x", "guess")) is None
        asyncio.run(limits.count_wrong_key("x"))
    assert run(limits.check_guesses("x", "guess")) == "this address has sent too many wrong keys; try again in 45 s"
    assert read(REFUSALS, limit="wrong-keys") == before + 1
    assert run(limits.check_guesses("y", "guess")) is None


def test_a_secret_that_was_right_is_no_guess_for_ten_minutes(clock: Clock) -> None:
    limits = limit(max_wrong_keys_per_minute=1)
    limits.note_accepted("right")

    def guess() -> list[bool]:
        asyncio.run(limits.count_wrong_key("x"))
        return [run(limits.check_guesses("x", digest)) is None for digest in ("right", "wrong")]

    assert guess() == [True, False]
    clock.seconds += 599
    assert guess() == [True, False]
    clock.seconds += 1
    assert guess() == [False, False]


def test_only_so_many_right_secrets_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_ACCEPTED_SECRETS", 2)
    limits = limit(max_wrong_keys_per_minute=1)
    asyncio.run(limits.count_wrong_key("x"))
    remembered = []
    for digest in "abc":
        limits.note_accepted(digest)
        remembered.append([run(limits.check_guesses("x", known)) is None for known in "abc"])
    assert remembered == [[True, False, False], [True, True, False], [False, False, True]]


def test_a_wrong_key_is_counted_and_logged_with_its_address_also_without_a_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = read(WRONG_KEYS)
    with caplog.at_level(logging.WARNING, "likeness.access"):
        for limits in (limit(), limit(max_wrong_keys_per_minute=1)):
            asyncio.run(limits.count_wrong_key("192.0.2.1"))
    assert [record.getMessage() for record in caplog.records] == ["access.wrong_key address=192.0.2.1"] * 2
    assert read(WRONG_KEYS) == before + 2


class RedisStandIn:
    """What counts in Redis. It has a limit of its own, and may be away."""

    def __init__(self) -> None:
        self.is_away, self.calls = False, list[tuple[Any, ...]]()
        self.read_error: Exception | None = None
        self.remaining, self.silent_seconds = 0, 0.0

    def hit(self, item: Any, *name: str) -> bool:
        return self._answer("hit", item, *name) and False

    def get_window_stats(self, item: Any, *name: str) -> Any:
        self._answer("wait", item, *name)
        if self.read_error is not None:
            raise self.read_error
        return SimpleNamespace(remaining=self.remaining, reset_time=time.time() + 7.5)

    def _answer(self, call: str, item: Any, *name: str) -> bool:
        self.calls.append((call, item.amount, *name))
        if self.is_away:
            time.sleep(self.silent_seconds)
            raise ConnectionResetError("no Redis")
        return True


def test_redis_counts_while_it_is_there_and_is_asked_again_after_five_seconds(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    limits, redis = limit(max_key_requests_per_minute=3), RedisStandIn()
    limits._counts._redis = redis  # type: ignore[assignment]
    assert "try again in 8 s" in str(run(limits.count_use("x")))
    assert redis.calls == [("hit", 3, "key", "x"), ("wait", 3, "key", "x")]
    redis.is_away = True
    assert run(limits.count_use("x")) is None
    clock.seconds += 4.9
    assert run(limits.count_use("x")) is None
    assert len(redis.calls) == 3, "not asked meanwhile"
    clock.seconds += 0.1
    assert run(limits.count_use("x")) is None
    assert len(redis.calls) == 4
    assert "this key may send 3" in str(run(limits.count_use("x"))), "this process has counted three"
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ["access.limits_without_redis error=no Redis"] * 2


def count_at_once(limits: RateLimits, number: int) -> float:
    """Count so many uses, for which Redis is asked on four threads, and return how many seconds it takes."""

    async def use() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
        await asyncio.gather(*(limits.count_use("x") for _ in range(number)))

    started = time.perf_counter()
    asyncio.run(use())
    return time.perf_counter() - started


def test_requests_that_come_together_do_not_wait_one_after_the_other_for_a_silent_redis(clock: Clock) -> None:
    limits, redis = limit(max_key_requests_per_minute=1_000), RedisStandIn()
    limits._counts._redis, redis.is_away, redis.silent_seconds = redis, True, 0.3  # type: ignore[assignment]
    assert count_at_once(limits, 60) < 1.5
    assert 0 < len(redis.calls) <= 4, "one on each thread"
    redis.calls.clear()
    clock.seconds += 5
    assert count_at_once(limits, 60) < 1.5
    assert len(redis.calls) == 1, "one request tries it again"
    redis.calls.clear()
    clock.seconds += 5
    redis.is_away, redis.remaining = False, 1
    redis.hit = lambda *_: bool(redis.calls.append(("hit",))) or True  # type: ignore[method-assign,func-returns-value]
    count_at_once(limits, 1)
    count_at_once(limits, 60)
    assert len(redis.calls) == 61, "all, once it is back"


def test_a_wait_is_computed_without_redis_when_it_goes_away_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    limits, redis = limit(max_wrong_keys_per_minute=1), RedisStandIn()
    asyncio.run(limits.count_wrong_key("x"))
    redis.is_away = True
    limits._counts._redis = redis  # type: ignore[assignment]
    assert "try again in 45 s" in str(run(limits.check_guesses("x", "guess")))
    assert redis.calls == [("wait", 1, "wrong-keys", "x")]
    assert caplog.messages[1:] == ["access.limits_without_redis error=no Redis"]


def test_redis_is_given_up_after_half_a_second_and_counts_under_names_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Any, dict[str, Any]]] = []

    def open_storage(*arguments: Any, **options: Any) -> Any:
        opened.append((arguments, options))
        return rate_limits.MemoryStorage()

    monkeypatch.setattr(rate_limits, "_RedisCounters", open_storage)
    RateLimits(Settings(redis_url="redis://localhost:1"))
    options = {"key_prefix": "likeness", "socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    assert opened == [(("redis://localhost:1",), options)]


@pytest.mark.parametrize("error", [ValueError("invalid literal for int()"), OverflowError("too large for a float")])
def test_a_counter_that_cannot_be_read_is_as_if_redis_was_away(error: Exception) -> None:
    limits, redis = limit(max_key_requests_per_minute=1, max_wrong_keys_per_minute=1), RedisStandIn()
    redis.read_error = error
    limits._counts._redis = redis  # type: ignore[assignment]
    assert run(limits.count_use("x")) is None
    assert "this key may send 1" in str(run(limits.count_use("x"))), "this process has counted one"
    limits._counts._redis_away_until = 0.0
    assert run(limits.check_guesses("x", "guess")) is None


def test_who_is_refused_waits_a_second_also_if_the_minute_ends_meanwhile() -> None:
    limits, redis = limit(max_key_requests_per_minute=1), RedisStandIn()
    redis.remaining = 1
    limits._counts._redis = redis  # type: ignore[assignment]
    assert "try again in 1 s" in str(run(limits.count_use("x")))

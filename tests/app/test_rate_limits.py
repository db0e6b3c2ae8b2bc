"""Requests of a key and of an address, and the wrong keys of an address, are limited per minute."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import httpx
import pytest
from redis import Redis

from app.access import rate_limits
from app.access.rate_limits import RateLimits, find_address
from app.config import Settings
from app.errors import TooManyRequests
from app.resources import Resources
from tests.service import Service, serve_api

WINDOW_SECONDS, MAX_TEST_SECONDS = 60, 6


@pytest.fixture(autouse=True)
def start_within_a_window() -> None:
    """Keep a test from counting in two windows, which begin at full minutes."""
    seconds_left = WINDOW_SECONDS - time.time() % WINDOW_SECONDS
    if seconds_left < MAX_TEST_SECONDS:
        time.sleep(seconds_left)


@contextmanager
def serve(resources: Resources, **limits: int) -> Iterator[Service]:
    with (
        serve_api(resources.settings.model_copy(update=limits)) as url,
        httpx.Client(base_url=url, timeout=30, verify=False) as client,
    ):
        yield Service(url, client, resources)


def send(client: httpx.Client, secret: str | dict[str, str]) -> int:
    headers = secret if isinstance(secret, dict) else {"x-api-key": secret}
    return client.get("/v1/collections", headers=headers).status_code


def test_a_key_that_sends_too_many_requests_has_to_wait_and_others_do_not(resources: Resources) -> None:
    with serve(resources, max_key_requests_per_minute=5) as service:
        first, second = service.key("reader"), service.key("reader")
        assert [send(service.client, first) for _ in range(7)] == [200] * 5 + [429] * 2
        refused = service.client.get("/v1/collections", headers=first)
        assert (refused.json()["code"], refused.json()["retryable"]) == ("TooManyRequests", True)
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert send(service.client, second) == 200
        metrics = service.client.get("/metrics", headers=second).text
        assert 'likeness_rate_limited_total{limit="key"}' in metrics


def test_an_address_that_sends_too_many_requests_has_to_wait_and_probes_are_answered(resources: Resources) -> None:
    with serve(resources, max_address_requests_per_minute=4) as service:
        keys = [service.key("reader") for _ in range(6)]
        assert [send(service.client, key) for key in keys] == [200] * 4 + [429] * 2
        assert service.client.get("/livez").status_code == 200


def test_wrong_keys_are_limited_logged_and_counted_and_right_keys_go_on(
    resources: Resources, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(resources, max_wrong_keys_per_minute=3) as service:
        known, unknown = service.key("reader"), service.key("reader")
        before = [sample for family in rate_limits.WRONG_KEYS.collect() for sample in family.samples]
        count = next(sample.value for sample in before if sample.name.endswith("_total"))
        assert send(service.client, known) == 200
        assert [send(service.client, f"lk_wrong-{n}") for n in range(5)] == [401] * 3 + [429] * 2
        assert [send(service.client, known) for _ in range(3)] == [200] * 3
        assert send(service.client, unknown) == 429, "nobody can tell it from a guess"
        assert service.client.get("/v1/collections").status_code == 401, "without a key nothing is looked up"
        time.sleep(1.1)
        assert send(service.client, known) == 200, "although it has to be looked up again"
        metrics = service.client.get("/metrics", headers=known).text
        assert f"likeness_wrong_keys_total {count + 3}" in metrics
    logged = [record.getMessage() for record in caplog.records if "access.wrong_key" in record.getMessage()]
    assert logged == ["access.wrong_key address=127.0.0.1"] * 3


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_processes_with_redis_count_together(resources: Resources) -> None:
    if not resources.settings.redis_url:
        pytest.skip("needs redis-server, which is not installed")
    limit = {"max_key_requests_per_minute": 11}
    with serve(resources, **limit) as one, serve(resources, **limit) as other:
        key = one.key("reader")
        answers = [send(client, key) for _ in range(7) for client in (one.client, other.client)]
        assert answers == [200] * 11 + [429] * 3


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_counter_that_another_program_wrote_refuses_nobody(resources: Resources) -> None:
    if not resources.settings.redis_url:
        pytest.skip("needs redis-server, which is not installed")
    redis = Redis.from_url(resources.settings.redis_url)
    limits = RateLimits(Settings(redis_url=resources.settings.redis_url, max_key_requests_per_minute=100))
    assert asyncio.run(is_accepted(limits))
    [counter] = redis.keys("likeness:*/key/k/100/*")
    for value, expiry_seconds in product(["1e10", "9" * 400, "9" * 5_000, "inf", "101"], [None, 86_400, 90]):
        redis.set(counter, value, ex=expiry_seconds)
        limits._counts._redis_away_until = 0.0
        is_one_of_ours = (value, expiry_seconds) == ("101", 90)
        assert asyncio.run(is_accepted(limits)) is not is_one_of_ours
        if expiry_seconds != 90:
            assert not redis.exists(counter), "it was removed"


def test_while_redis_is_away_each_process_counts_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    limits = RateLimits(Settings(redis_url="redis://127.0.0.1:1", max_key_requests_per_minute=2))

    async def use() -> list[bool]:
        return [await is_accepted(limits) for _ in range(4)]

    assert asyncio.run(use()) == [True, True, False, False]
    assert len([record for record in caplog.records if "limits_without_redis" in record.getMessage()]) == 1


async def is_accepted(limits: RateLimits) -> bool:
    try:
        await limits.count_use("k")
    except TooManyRequests:
        return False
    return True


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("192.0.2.1", 80), "192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 80), "2001:db8:1:2::/64"),
        (None, ""),
    ],
)
def test_the_address_of_an_ipv6_client_is_its_network(client: Any, address: str) -> None:
    assert find_address({"client": client}) == address

"""Whether a process is ready is found out once for all who ask, since they need no key."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from app.health import readiness
from app.health.readiness import MAX_REUSE_SECONDS, REUSE_FACTOR, Readiness
from app.serving.engine import Engine

ENGINE: Any = object()


class Search:
    """Stands in for the search of a database: it waits until it may end, and counts how often it ran."""

    def __init__(self) -> None:
        self.count, self.may_end, self.error = 0, threading.Event(), None

    def __call__(self, engine: Engine) -> list[str]:
        assert engine is ENGINE
        self.count += 1
        assert self.may_end.wait(10)
        if self.error is not None:
            raise self.error
        return [f"reason {self.count}"]


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    made = Search()
    monkeypatch.setattr(readiness, "list_unready_reasons", made)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as the only element."""
    now = [100.0]
    monkeypatch.setattr(readiness, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


async def ask(state: Readiness, count: int, search: Search, clock: list[float], seconds: float) -> list[Any]:
    """Ask at the same time, and let the search take this long. Return what each gets, errors included."""
    search.may_end.clear()
    asking = [asyncio.create_task(state.list_reasons(ENGINE)) for _ in range(count)]
    await asyncio.sleep(0.05)
    clock[0] += seconds
    search.may_end.set()
    return list(await asyncio.gather(*asking, return_exceptions=True))


@pytest.mark.parametrize(("seconds", "held"), [(0.1, 0.1 * REUSE_FACTOR), (2.0, MAX_REUSE_SECONDS)])
def test_an_answer_is_shared_and_holds_for_a_multiple_of_its_cost(
    search: Search, clock: list[float], seconds: float, held: float
) -> None:
    async def test() -> None:
        state = Readiness()
        assert await ask(state, 100, search, clock, seconds) == [["reason 1"]] * 100
        clock[0] += held - 0.01
        assert await ask(state, 100, search, clock, 0.0) == [["reason 1"]] * 100
        clock[0] += 0.02
        assert await ask(state, 100, search, clock, 0.0) == [["reason 2"]] * 100
        assert search.count == 2

    asyncio.run(test())


def test_an_error_reaches_all_who_asked_and_does_not_hold(search: Search, clock: list[float]) -> None:
    async def test() -> None:
        state = Readiness()
        search.error = OSError("away")
        assert await ask(state, 3, search, clock, 1.0) == [search.error] * 3
        search.error = None
        assert await ask(state, 3, search, clock, 1.0) == [["reason 2"]] * 3

    asyncio.run(test())


def test_a_client_that_hangs_up_ends_nobody_else_s_search(search: Search, clock: list[float]) -> None:
    async def test() -> None:
        state = Readiness()
        gone = asyncio.create_task(state.list_reasons(ENGINE))
        await asyncio.sleep(0.05)
        gone.cancel()
        assert await ask(state, 2, search, clock, 1.0) == [["reason 1"]] * 2

    asyncio.run(test())

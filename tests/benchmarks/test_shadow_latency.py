"""The latency of searches beside a shadow comparison: the figures, and a short run."""

import asyncio
from typing import Any

import pytest

from benchmarks import shadow_latency
from benchmarks.load.connections import Address, ConnectionPool
from benchmarks.load.generator import Record
from benchmarks.load.traffic import Gallery, MixedTraffic
from benchmarks.shadow_latency import KINDS, Block, ShadowedService, find_worst_ratio, measure, summarise
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service


def make_block(face_ms: float, photo_ms: float, compared: int = 0) -> Block:
    records = [Record("face", 200, face_ms / 1000, True), Record("photo", 200, photo_ms / 1000, True)]
    return Block({"pauses": records, "no pauses": records}, {"compared": compared, "dropped": 1, "skipped": 0})


def find_row(figures: dict[str, Any], kind: str) -> dict[str, Any]:
    wanted = ("pauses", kind, 0.95)
    [row] = [row for row in figures["latency"] if (row["load"], row["kind"], row["percentile"]) == wanted]
    return dict(row)


def test_ratios_are_those_of_the_same_round() -> None:
    rounds = [
        {0.0: make_block(10, 40), 0.1: make_block(10, 40), 1.0: make_block(20, 40, 2)},
        {0.0: make_block(20, 40), 0.1: make_block(20, 20), 1.0: make_block(30, 40, 2)},
        {0.0: make_block(40, 40), 0.1: make_block(40, 40), 1.0: make_block(40, 40, 1)},
    ]
    figures = summarise(rounds)
    row = find_row(figures, "face")
    assert row["ms"] == 20.0
    assert row["shares"][1.0] == {"ms": 30.0, "ratio": 1.5, "ratios": [1.0, 2.0]}
    assert find_row(figures, "photo")["shares"][0.1]["ratios"] == [0.5, 1.0]
    assert find_worst_ratio(figures) == 1.5
    assert figures["outcomes"][1.0] == {"compared": 5, "dropped": 3, "skipped": 0, "searches": 12}
    assert figures["wrong answers"] == 0


def test_a_search_that_waits_for_a_comparison_misses_the_goal() -> None:
    figures = summarise([{0.0: make_block(10, 40), 0.1: make_block(10, 40), 1.0: make_block(20, 80)}])
    assert find_worst_ratio(figures) == 2.0


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_searches_are_compared_at_a_share_of_one_alone(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_latency, "WARM_UP_SECONDS", 0.1)
    rows, subjects = people(12, 4, dim=8)
    champion, challenger = make_model("m-1"), make_model("m-2", seed=1)
    writer = GalleryWriter(service.resources).make(champion, challenger=challenger)
    ids = writer.add({champion.id: rows, challenger.id: rows}, subjects)
    service.wait_for_indexes()
    url = service.client.base_url
    key = service.client.headers["Authorization"].removeprefix("Bearer ")
    address = Address(url.host, url.port or 80, key)
    traffic = MixedTraffic(address, Gallery("staff", rows, subjects, ids), shares=KINDS)
    shadowed = ShadowedService(service.client, ConnectionPool(address), traffic)
    figures = asyncio.run(measure(shadowed, rounds=1, seconds=0.5))
    outcomes = figures["outcomes"]
    assert outcomes[0.0]["compared"] == 0
    assert outcomes[1.0]["searches"] > 0
    assert sum(outcomes[1.0][name] for name in ("compared", "dropped", "skipped")) == outcomes[1.0]["searches"]
    assert figures["wrong answers"] == 0

"""The benchmark of searches: its stages are the libraries alone, so that what the service adds can be seen."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import search
from benchmarks.search import WHOLE, build_stages, measure_overhead, time_in_turns


def test_overhead_is_what_the_whole_takes_beyond_its_stages() -> None:
    now, seconds = [0.0], {"decode": 0.002, "detect": 0.006, WHOLE: 0.010}

    def take(name: str) -> None:
        now[0] += seconds[name]

    times = time_in_turns({name: lambda name=name: take(name) for name in seconds}, 3, lambda: now[0])
    assert [len(values) for values in times.values()] == [3, 3, 3]
    added_ms, percent = measure_overhead(times)
    assert added_ms == pytest.approx(2)
    assert percent == pytest.approx(25)


def test_the_stages_call_the_libraries_once_each_and_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def record(name: str, value: object) -> object:
        calls.append(name)
        return value

    crop, embedding = np.zeros((8, 8, 3), np.uint8), np.zeros((1, 4), np.float32)
    front_end = SimpleNamespace(
        detector=SimpleNamespace(detect=lambda image: record("detect", ["face"])),
        align=lambda image, face: record("align", SimpleNamespace(crops={"colour": crop})),
    )
    model = SimpleNamespace(
        recipe=SimpleNamespace(crops=["colour"]),
        describe=lambda crops: record("describe", crops["colour"]),
        embed=lambda described: record("embed", embedding),
    )
    index = SimpleNamespace(search=lambda rows, k: record("search", (rows is embedding, k)))
    monkeypatch.setattr(search.images, "read", lambda data: record("decode", crop))
    stages = build_stages(b"photo", front_end, model, index)
    calls.clear()
    results = [stage() for stage in stages.values()]
    assert calls == ["decode", "detect", "align", "describe", "embed", "search"]
    assert results[-1] == (True, 10)
    assert not any("HTTP" in name for name in itertools.chain(stages))

"""The figures of the benchmarks of load: what they count, and how they are put together."""

import math

import pytest

from benchmarks.load.generator import Record
from benchmarks.overload import summarise
from benchmarks.soak import MemoryReading, describe_growth, find_slope


def test_only_accepted_requests_count_for_the_ratio() -> None:
    quiet = [Record("vector", 200, 0.010, True)] * 100
    loaded = [Record("vector", 200, 0.025, True)] * 60 + [Record("photo", 503, 0.001, True)] * 40
    figures = summarise(quiet, loaded, capacity=50.0, seconds=1.0)
    assert figures["ratio of p99"] == 2.5
    assert figures["refused, %"] == 40
    assert figures["statuses"] == {200: 60, 503: 40}
    assert figures["refusal p50, p99"] == [1.0, 1.0]
    assert figures["wrong answers"] == 0
    assert math.isnan(figures["by kind"]["photo"]["loaded p50, p99"][1])


def test_a_refusal_without_retry_after_and_a_lost_request_are_wrong() -> None:
    quiet = [Record("list", 200, 0.01, True)]
    loaded = [Record("list", 200, 0.01, True), Record("list", 503, 0.01, False), Record("list", 0, 0.01, False)]
    assert summarise(quiet, loaded, capacity=1.0, seconds=1.0)["wrong answers"] == 2


def test_the_slope_is_in_percent_of_the_mean_per_hour() -> None:
    assert find_slope([0, 1800, 3600], [99, 100, 101]) == pytest.approx(2.0)
    assert find_slope([0, 1800, 3600], [100, 100, 100]) == pytest.approx(0.0)


def test_growth_that_levels_off_is_seen_in_the_second_half() -> None:
    """The training worker is not one of the default workers. The first sixth of the time is left out."""
    mib = {0: 50, 600: 100, 1800: 110, 2700: 110, 3600: 110}
    readings = [MemoryReading(s, {"api": 2**20, "worker default": m * 2**20}) for s, m in mib.items()]
    readings = [r._replace(sizes={**r.sizes, "worker training": 90 * 2**20}) for r in readings]
    figures = describe_growth(readings, 3600)
    assert figures["default workers, MiB"] == [100, 110]
    assert figures["workers, MiB"] == [190, 200]
    assert figures["default workers, % an hour"] > figures["workers, % an hour"] > 4
    assert figures["workers, % an hour in the second half"] == pytest.approx(0.0)
    assert figures["API, % an hour"] == pytest.approx(0.0)

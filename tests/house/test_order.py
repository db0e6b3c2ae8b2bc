"""The order of the tests: what waits and what computes is mixed, and what takes long does not come at the end."""

from collections import Counter
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.conftest import MAX_SLOW_MOMENT, deal_modules, is_slow

WORKERS, MODULES = 4, 40


def make_tests(folder: str, count: int, is_killing: bool = False) -> list[Any]:
    """Tests of modules in this folder, as far as their order needs them. count: of each module"""
    marker = "chaos" if is_killing else None
    return [
        SimpleNamespace(path=Path(f"tests/{folder}/test_{n}.py"), get_closest_marker=lambda _, marker=marker: marker)
        for n in range(MODULES)
        for _ in range(count)
    ]


def test_each_run_has_its_share_of_slow_modules_and_none_at_its_end() -> None:
    items = [*make_tests("app", 10), *make_tests("flows", 3), *make_tests("ml", 20)]
    dealt = deal_modules(items, WORKERS)
    assert Counter(map(id, dealt)) == Counter(map(id, items)), "none is lost or repeated"
    assert len(list(groupby(dealt, key=lambda item: item.path))) == 3 * MODULES, "modules stay together"
    share = len(items) // WORKERS
    for number in range(WORKERS):
        run = dealt[number * share : (number + 1) * share]
        slow = [at / share for at, item in enumerate(run) if is_slow(item.path)]
        assert len(slow) == pytest.approx(3 * MODULES / WORKERS, rel=0.2)
        assert max(slow) < MAX_SLOW_MOMENT + 0.1
        assert min(slow) < 0.2


def test_the_modules_of_an_undivided_folder_stay_together() -> None:
    items = [*make_tests("app", 10), *make_tests("house", 3), *make_tests("ml", 20)]
    dealt = deal_modules(items, WORKERS)
    assert Counter(map(id, dealt)) == Counter(map(id, items)), "none is lost or repeated"
    assert [folder for folder, _ in groupby(item.path.parent.name for item in dealt)].count("house") == 1


def test_every_other_worker_begins_with_a_test_that_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    killing = make_tests("chaos", 1, is_killing=True)[:WORKERS]
    items = [*make_tests("app", 10), *killing, *make_tests("flows", 3)]
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", str(WORKERS))
    share = len(items) // WORKERS
    conftest.pytest_collection_modifyitems(items)
    positions = [index for index, item in enumerate(items) if item in killing]
    assert positions == [0, share + share // 2, 2 * share, 3 * share + share // 2]


def test_one_process_runs_the_tests_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    items = make_tests("flows", 3)
    before = list(items)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "1")
    conftest.pytest_collection_modifyitems(items)
    assert items == before

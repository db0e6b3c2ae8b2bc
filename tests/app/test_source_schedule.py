"""When the sources of a deployment are measured: one deployment at a time, and with rests between."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from app.resources import Resources
from app.serving.background_tasks import BackgroundTasks
from app.serving.compensation import renewal
from app.serving.compensation.schedule import RenewalSchedule
from app.serving.index_builder import IndexKey
from app.serving.loaded_index import LoadedIndex
from ml.compensation import MIN_FACES_TO_CORRECT
from tests.app.test_sources import until


class Renewals:
    """Takes the place of `renewal.renew`: notes each collection that is measured, and works on it as told."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work, self.collections = work, list[str]()

    def renew(self, resources: Resources, index: LoadedIndex) -> bool:
        self.collections.append(index.key.collection)
        self.work()
        return False


@dataclass(eq=False)
class IdleIndex:
    """What the schedule reads of an index that has been idle for long."""

    key: IndexKey
    state: SimpleNamespace
    last_change_at: float = 0.0


def make_index(collection: str, change: int = 1, compensation: int = 0) -> LoadedIndex:
    key = IndexKey(collection, "identity", "m-1", 0.0, compensation)
    return cast(LoadedIndex, IdleIndex(key, SimpleNamespace(change=change, vectors=MIN_FACES_TO_CORRECT)))


@pytest.fixture
def schedule(lasting: Resources, monkeypatch: pytest.MonkeyPatch) -> RenewalSchedule:
    monkeypatch.setattr("app.serving.compensation.schedule.MIN_INTERVAL_SECONDS", 0.0)
    return RenewalSchedule(lasting, BackgroundTasks(lambda: None), idle_seconds=0.1)


def test_one_deployment_is_measured_at_a_time(schedule: RenewalSchedule, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    renewals = Renewals(lambda: may_end.wait(60))
    monkeypatch.setattr(renewal, "renew", renewals.renew)
    first, second = make_index("staff"), make_index("guests")
    schedule.renew_if_due(first)
    until(lambda: renewals.collections == ["staff"])
    schedule.renew_if_due(second)
    schedule.tasks.finish(0.2)
    assert renewals.collections == ["staff"]
    may_end.set()
    schedule.tasks.finish(10)
    schedule.renew_if_due(second)
    until(lambda: renewals.collections == ["staff", "guests"])


def test_a_long_measurement_is_followed_by_a_longer_rest(
    schedule: RenewalSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest belongs to the model: a new version of its compensation does not end it."""
    renewals = Renewals(lambda: time.sleep(0.2))
    monkeypatch.setattr(renewal, "renew", renewals.renew)

    def take_step(index: LoadedIndex) -> int:
        schedule.renew_if_due(index)
        schedule.tasks.finish(10)
        schedule.tasks.tidy()
        return len(renewals.collections)

    started = time.monotonic()
    take_step(make_index("staff"))
    take_step(make_index("staff", change=2, compensation=1))
    assert renewals.collections == ["staff"]
    take_step(make_index("guests"))
    assert renewals.collections == ["staff", "guests"]
    until(lambda: take_step(make_index("staff", change=3, compensation=1)) == 3)
    assert renewals.collections[-1] == "staff"
    assert time.monotonic() - started > 2.0

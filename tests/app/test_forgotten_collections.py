"""What a process keeps in memory of a collection that was deleted: nothing, or it would grow with each of them."""

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
from sqlalchemy import Engine as Database

from app.db.session import writing
from app.galleries.deletion import delete_collection
from app.publishing.pointers import lock_collection
from app.resources import Resources
from app.serving.calibration.schedule import MIN_FACES_TO_CALIBRATE
from app.serving.engine import open_engine
from tests.rows import GalleryWriter, make_model

NAME = "collection-that-is-deleted"
MODEL = make_model("m-one")
PASSED_OVER = (ModuleType, FunctionType, BuiltinFunctionType, type, Database)
"""Code, and the database, which keeps the last 500 statements with the values that they had first."""


def iterate_reachable(root: object) -> Iterator[tuple[object, object]]:
    """Yield each object that can be reached from this one, with the one that refers to it."""
    seen, waiting = {id(root)}, deque([root])
    while waiting:
        holder = waiting.popleft()
        for held in gc.get_referents(holder):
            if id(held) not in seen and not isinstance(held, PASSED_OVER):
                seen.add(id(held))
                waiting.append(held)
                yield held, holder


def list_holders(root: object) -> list[Any]:
    return [holder for held, holder in iterate_reachable(root) if isinstance(held, str) and held == NAME]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_nothing_is_kept_of_a_collection_that_was_deleted(resources: Resources) -> None:
    """When it is calibrated, looked at for sources, and searched by a model's name, this is remembered."""
    rows = np.random.default_rng(0).standard_normal((2 * MIN_FACES_TO_CALIBRATE, 8)).astype(np.float32)
    gallery = GalleryWriter(resources, NAME).make(MODEL)
    gallery.add({MODEL.id: rows}, [f"p{i // 2}" for i in range(len(rows))])
    with open_engine(resources) as engine:
        with engine.use(NAME, model=MODEL.id):
            assert list_holders(engine)
        sync = engine.follower.sync
        wait_for(lambda: bool(sync.calibration._started) and bool(sync.compensation._rests_until))
        with writing(resources.database) as session:
            delete_collection(session, lock_collection(session, NAME))
        wait_for(lambda: not engine.registry.all() and not list_holders(engine))

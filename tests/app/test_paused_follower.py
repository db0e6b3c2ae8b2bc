"""A follower that was paused while a collection changed catches up, beside one that was not."""

import os
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from app.resources import Resources
from app.serving.engine import Engine, open_engine
from tests.paused_follower import pause_follower
from tests.rows import GalleryWriter, make_model

CHANGES = int(os.environ.get("PAUSED_CHANGES", 200))
MODEL = make_model("m-one")
FACES_AT_FIRST = 40
MAX_WAIT_SECONDS = 60.0


@pytest.fixture
def engines(resources: Resources) -> Iterator[tuple[Engine, Engine]]:
    with open_engine(resources) as first, open_engine(resources) as second:
        yield first, second


def read_served(engine: Engine) -> tuple[set[int], dict[int, str | None]]:
    """Return the faces of the index, and pk -> subject by the names in memory."""
    with engine.use("staff") as serving:
        ids = serving.deployment.champion.read_ids()
        names = serving.deployment.faces.read(np.arange(2 * CHANGES + FACES_AT_FIRST + 1), time.time())
        return set(ids.tolist()), {pk: face.subject for pk, face in names.items()}


def test_a_paused_follower_catches_up(
    resources: Resources, engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, paused = engines
    gallery = GalleryWriter(resources).make(MODEL)
    draw = np.random.default_rng(0)
    gallery.add({MODEL.id: draw.standard_normal((FACES_AT_FIRST, 8)).astype(np.float32)}, ["p0"] * FACES_AT_FIRST)
    expected: dict[int, str | None] = dict.fromkeys(gallery.pks, "p0")

    wait_to_agree(first, expected)
    wait_to_agree(paused, expected)
    go_on = pause_follower(paused, monkeypatch)
    before = read_served(paused)
    for change in range(CHANGES):
        if change % 3 == 2:
            removed = int(draw.choice(gallery.pks))
            gallery.remove([removed])
            del expected[removed]
        else:
            name = f"p{change % 7}"
            gallery.add({MODEL.id: draw.standard_normal((1, 8)).astype(np.float32)}, [name])
            expected[gallery.pks[-1]] = name
    wait_to_agree(first, expected)
    assert read_served(paused) == before, "it was paused"
    go_on.set()
    wait_to_agree(paused, expected)


def wait_to_agree(engine: Engine, expected: dict[int, str | None]) -> None:
    """Wait until the index and the names of an engine are as expected: pk -> subject."""
    limit = time.monotonic() + MAX_WAIT_SECONDS
    while (served := read_served(engine)) != (set(expected), expected) and time.monotonic() < limit:
        time.sleep(0.02)
    assert served == (set(expected), expected)


def wait_for(condition: Callable[[], bool], seconds: float = MAX_WAIT_SECONDS) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not come true in time"
        time.sleep(0.02)

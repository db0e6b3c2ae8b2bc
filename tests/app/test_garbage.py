"""A process of the API looks for garbage seldom, and not among what was there before its first request."""

import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.cli.server.api_process import ApiProcess
from app.config import Settings
from app.imports import NEW_OBJECTS, garbage_collection_off


@pytest.fixture
def usual_collections() -> Iterator[None]:
    """Undo what a process does for good."""
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*thresholds)


def test_a_process_that_has_started_collects_seldom(
    usual_collections: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = list[str]()
    monkeypatch.setattr(gc, "freeze", lambda: collected.append("frozen"))
    process = ApiProcess(Settings(home=tmp_path), waits_for_indexes=False)
    assert gc.get_threshold()[0] == 700
    process._note_started(cast(Any, SimpleNamespace(follower=SimpleNamespace())))
    assert collected == ["frozen"]
    assert gc.get_threshold()[0] == NEW_OBJECTS
    assert gc.isenabled()


def test_collections_go_on_after_a_block_without_them() -> None:
    was_enabled = gc.isenabled()
    for is_enabled, switch in ((True, gc.enable), (False, gc.disable)):
        switch()
        with garbage_collection_off():
            assert not gc.isenabled()
        assert gc.isenabled() == is_enabled
    if was_enabled:
        gc.enable()

"""Hold the follower of an engine, as a process that is paused."""

import threading

import pytest

from app.serving.engine import Engine


def pause_follower(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Have the follower wait before its next step until the event is set."""
    stopped, go_on, step = threading.Event(), threading.Event(), engine.follower.step

    def wait_and_step() -> None:
        stopped.set()
        go_on.wait()
        step()

    monkeypatch.setattr(engine.follower, "step", wait_and_step)
    assert stopped.wait(60), "its last step did not end in time"
    return go_on

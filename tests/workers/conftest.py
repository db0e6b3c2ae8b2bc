"""No process serves in these tests, unless one starts it."""

import pytest


@pytest.fixture(autouse=True)
def _no_process_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep jobs from waiting until a process reports a new collection."""
    monkeypatch.setattr("app.serving.reporter.MAX_REPORT_SECONDS", 0.0)

"""A service that a command starts for itself."""

from pathlib import Path

import pytest

from app.cli.private_service import run_service


def test_a_service_that_does_not_start_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="did not become ready"), run_service(tmp_path, detector="yunet"):
        raise AssertionError("it must not start")
    printed = capfd.readouterr().err
    assert str(tmp_path / "service.log") in printed
    assert "detectors pull" in printed

"""No library reports to its maker that it is used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

IMPORTS = "import ml.landmarks.regressor, ml.descriptors.common.onnx_session, onnxruntime"


@pytest.mark.parametrize("statement", [IMPORTS, "import app.main", "import workers.main"])
def test_onnx_runtime_makes_no_identifier_and_sends_nothing(statement: str, tmp_path: Path) -> None:
    """With telemetry on, importing ONNX Runtime leaves the file of its session in the temporary folder."""
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    folders = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    report = "import os, sys; print(os.environ['ORT_DISABLE_TELEMETRY'], 'onnxruntime' in sys.modules)"
    command = [sys.executable, "-c", f"{statement}; {report}"]
    process = subprocess.run(command, env=environment | folders, capture_output=True, text=True, check=True)
    assert process.stdout.split()[0] == "1"
    assert not list(tmp_path.rglob("*ses*"))


def test_an_operator_may_turn_telemetry_on() -> None:
    command = [sys.executable, "-c", "import os, ml; print(os.environ['ORT_DISABLE_TELEMETRY'])"]
    environment = os.environ | {"ORT_DISABLE_TELEMETRY": "0"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["0"]

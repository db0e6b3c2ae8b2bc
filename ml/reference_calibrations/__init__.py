"""Calibrations that ship with a recogniser, for galleries too small to be measured themselves."""

import json
from pathlib import Path

from ml.calibration import Calibration
from ml.errors import Corrupt

FOLDER = Path(__file__).parent


def load_reference_calibration(recogniser: str) -> Calibration:
    """Of the squared distance between unit rows, 0 to 4, for the task identity; see README.md for where each comes
    from. Raises Corrupt where there is none of that name or its file is damaged."""
    path = FOLDER / f"{recogniser}.json"
    try:
        stored = json.loads(path.read_bytes())
        return Calibration.from_dict(stored["calibration"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"the reference calibration {path.name} cannot be read: {error}") from error

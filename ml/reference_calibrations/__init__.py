"""Reference calibrations: measured elsewhere, shipped with a recogniser, and used while a gallery is small."""

import json
from pathlib import Path

from ml.calibration import Calibration
from ml.errors import Corrupt

FOLDER = Path(__file__).parent


def load_reference_calibration(recogniser: str) -> Calibration:
    """Load the calibration of a recogniser for the task identity; README.md says how each was measured.

    It applies to the squared distance between embeddings of unit length (0 to 4).
    Raises Corrupt if there is none for this recogniser, or if its file is damaged.
    """
    path = FOLDER / f"{recogniser}.json"
    try:
        stored = json.loads(path.read_bytes())
        return Calibration.from_dict(stored["calibration"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"the reference calibration {path.name} cannot be read: {error}") from error

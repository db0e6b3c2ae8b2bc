"""Keep what the last check of a gallery's thresholds has shown, so that a start need not wait for the next check."""

import logging
from typing import Any

from app.serving.calibration.measured import Measured
from app.serving.calibration.validity_check import Checked
from app.serving.deployments import Validity
from app.serving.faces.face_table import FaceTable
from app.serving.faces.lost_faces import hash_contents
from app.serving.index_snapshots import SnapshotStore
from app.serving.loaded_index import LoadedIndex
from ml.files import hash_bytes

log = logging.getLogger("likeness.engine")

FORMAT = 2


def save_check(
    snapshots: SnapshotStore, index: LoadedIndex, faces: FaceTable, measured: Measured, last: Checked
) -> None:
    """Write what the last check has shown, unless the index has changed since."""
    with index.update_lock:
        if index.state.change != last.change:
            return
        state = _describe(index, faces, measured)
    validity = last.validity
    shown = {"hubs": sorted(validity.hubs), "is_outdated": validity.is_outdated, "is_due": validity.is_due}
    try:
        snapshots.save_check(index.key, state | {"validity": shown})
    except OSError as error:
        log.warning("gallery.check_not_saved collection=%s error=%s", index.key.collection, error)


def load_check(snapshots: SnapshotStore, index: LoadedIndex, faces: FaceTable, measured: Measured) -> Validity | None:
    """Return what the last check has shown, if neither the gallery nor its measurement has changed since."""
    saved = snapshots.load_check(index.key)
    if saved is None:
        return None
    shown = saved.pop("validity")
    if saved != _describe(index, faces, measured):
        return None
    return Validity(frozenset(shown["hubs"]), shown["is_outdated"], shown["is_due"])


def _describe(index: LoadedIndex, faces: FaceTable, measured: Measured) -> dict[str, Any]:
    """Return what a check depends on."""
    return {
        "format": FORMAT,
        "change": index.state.change,
        "contents": hash_contents(index, faces),
        "measured_change": measured.change,
        "levels": hash_bytes(repr(measured.levels).encode()),
        "labels": measured.labels_hash,
        "ended": measured.ended,
    }

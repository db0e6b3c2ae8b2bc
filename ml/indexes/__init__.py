"""Indexes: `build` one that fits a collection, `load` a saved one, `measure_curve` of recall against latency."""

from ml.indexes.base import Device, IndexOptions
from ml.indexes.common.cells import MAX_FLAT_FACES, MAX_SAMPLES_PER_CELL, default_cell_count
from ml.indexes.common.factory import build, load
from ml.indexes.common.shared_scans import scan_helpers
from ml.indexes.common.tuning import (
    CandidatePoint,
    OperatingPoint,
    choose_candidates,
    choose_operating_point,
    measure_candidate_curve,
    measure_curve,
)

__all__ = [
    "MAX_FLAT_FACES",
    "MAX_SAMPLES_PER_CELL",
    "CandidatePoint",
    "Device",
    "IndexOptions",
    "OperatingPoint",
    "build",
    "choose_candidates",
    "choose_operating_point",
    "default_cell_count",
    "load",
    "measure_candidate_curve",
    "measure_curve",
    "scan_helpers",
]
